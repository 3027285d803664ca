"""The models of what the API says of groups, leases, servers and chains.

Times are seconds since 1970, ages and lags seconds. None = unknown.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from databus.daemon.http.openapi import ApiModel, Scn
from databus.leases.sightings import Holding

_HOLDING = (
    "`unknown` = not looked at for long enough; `run_out` = not renewed for longer than it lasts"
)


class CoordinatorView(ApiModel):
    """The store where groups, leases and servers meet, and whether it answers."""

    url: str = Field(description="Without a password")
    seen_at: float | None = Field(description="When what is shown was seen; None = not yet")
    problem: str = Field(description="Why it cannot be looked at now: what is shown may be old")


class GroupSummary(ApiModel):
    """A group of consumers."""

    name: str
    sources: list[str]
    partitions: int
    partition_by: list[str]
    generation: int = Field(description="Counts the resizes")
    room: str
    members: int
    owned: int | None = Field(description="Partitions whose owner is not known to have gone")
    halted: str = Field(description="Who keeps it from reading, and why; empty = nobody")
    behind_s: float | None = Field(description="The greatest lag; None if one is unknown")
    unknown_lags: int | None = Field(description="Partitions whose lag is unknown")
    moves: int = Field(description="Partitions that moved within a day")
    all_moves: int = Field(description="Partitions that ever moved")
    problem: str


class GroupsView(ApiModel):
    """All groups of the coordinator."""

    coordinator: CoordinatorView | None = Field(description="None without one")
    groups: list[GroupSummary]
    left_out: int = Field(description="Groups that are not shown, because there are too many")


class MemberView(ApiModel):
    """A process of a group."""

    process: str
    room: str
    partitions: int = Field(description="That it is to own")
    holding: Holding = Field(description=f"Whether it renews its lease: {_HOLDING}")
    renewed_at: float | None = Field(description="By its own clock")


class PartitionView(ApiModel):
    """A partition: whose it is, and how far it has come."""

    partition: int
    owner: str | None = Field(description="Who has its lease; None = nobody")
    assigned: str | None = Field(description="Who is to have it; None = nobody")
    term: int
    taken_at: float | None = Field(description="When the owner took it, by the owner's clock")
    holding: Holding = Field(description=f"Whether the owner renews its lease: {_HOLDING}")
    state: Literal["not_begun", "bootstrap", "online", "unreadable"]
    scn: Scn | None = Field(description="SCN of the last window that was consumed whole")
    committed_at: float | None = Field(description="When that window was committed")
    behind_s: float | None = Field(
        description="From that commit to the newest one of the source; 0 = it has that one. None "
        "= unknown: nothing is consumed yet, in a bootstrap, or no relay knows the newest window"
    )
    problem: str


class MoveView(ApiModel):
    """Partitions that went from one process to another."""

    at: float = Field(description="By the clock of the one that took them")
    generation: int
    former: str = Field(description="Empty if nobody had them before")
    owner: str
    partitions: list[int]


class GroupView(ApiModel):
    """One group, with its partitions."""

    coordinator: CoordinatorView
    summary: GroupSummary
    processes: list[MemberView]
    partitions: list[PartitionView]
    partitions_at: float | None = Field(description="When they were read; None = not yet")
    newest_scn: Scn | None = Field(description="The newest window of the source that is known")
    newest_at: float | None = Field(description="When that was committed")
    moves: list[MoveView] = Field(description="Of the last day, the newest first")
    moves_since: float | None = Field(description="All that are later are there; None = none known")


class LeaseView(ApiModel):
    """A lease."""

    name: str
    owner: str = Field(description="Empty = nobody has it")
    term: int
    ttl_s: float
    renewed_at: float | None = Field(
        description="When it was last renewed, or taken if it depends on another, by its owner's "
        "clock"
    )
    holding: Holding = Field(description=_HOLDING)
    depends_on: str | None = Field(description="The lease that it lasts as long as; None = none")


class LeasesView(ApiModel):
    """The leases of the coordinator."""

    coordinator: CoordinatorView | None = Field(description="None without one")
    leases: list[LeaseView]
    left_out: int = Field(description="Leases that are not shown, because there are too many")


class LeasesQuery(ApiModel):
    """Which leases."""

    dependent: bool = Field(default=False, description="Those of groups' partitions, too")


class ServedSourceView(ApiModel):
    """A physical source at a server, and its place in the tree."""

    name: str
    sources: list[str]
    oldest_scn: Scn | None
    newest_scn: Scn | None
    newest_at: float | None
    behind_s: float | None = Field(
        description="From its newest commit to the newest one of all servers; 0 = no more than the "
        "few seconds between their entries"
    )
    reads: str = Field(description="URL of the relay that it is read from; empty = the database")
    parent: str | None = Field(description="That relay's `instance`; None = it is not listed")
    depth: int | None = Field(
        description="Relays between it and the database, 0 = it reads that; None = unknown"
    )
    is_in_loop: bool = Field(description="Those above it read each other in a circle")
    is_draining: bool


class ServerView(ApiModel):
    """A relay or bootstrap server."""

    instance: str
    kind: Literal["relay", "bootstrap"]
    url: str
    room: str
    connections: int
    state: Literal["alive", "unknown", "gone"] = Field(
        description="`alive` = its entry was renewed while it was looked at; `unknown` = not yet; "
        "`gone` = it is not listed any more, since less than ten minutes"
    )
    renewed_at: float = Field(description="When it wrote its entry, by its own clock")
    seen_at: float = Field(description="When it was last listed")
    sources: list[ServedSourceView]


class ServersView(ApiModel):
    """The relays and bootstrap servers of the coordinator, and which of them reads which."""

    coordinator: CoordinatorView | None = Field(description="None without one")
    servers: list[ServerView]


class ChainLink(ApiModel):
    """A relay of a chain."""

    instance: str = Field(description="Differs between any two processes")
    name: str = Field(description="Its URL as it gives it")
    url: str = Field(description="As the one below it reaches it; empty for the first")
    room: str
    reads: str = Field(description="URL of the relay that it reads; empty = the database")
    state: str = Field(description="Of its capture")
    is_connected: bool
    newest_scn: Scn | None
    newest_at: float | None
    behind_s: float | None = Field(description="How far the database's log is ahead of it")
    is_draining: bool
    problem: str = Field(description="Why nothing is known of it")

    @classmethod
    def silent(cls, url: str, problem: str) -> ChainLink:
        """Return the link of a relay that does not answer."""
        return cls(
            instance="",
            name=url,
            url=url,
            room="",
            reads="",
            state="unreachable",
            is_connected=False,
            newest_scn=None,
            newest_at=None,
            behind_s=None,
            is_draining=False,
            problem=problem,
        )


class ChainView(ApiModel):
    """The relays from this one up to the database, for one physical source."""

    physical_source: str
    depth: int | None = Field(description="Relays above this one; None = unknown")
    links: list[ChainLink] = Field(description="This relay first; 16 at most")
    loop: str = Field(description="Which relays read each other in a circle; empty = none")


class Chains(ApiModel):
    """The chains of all physical sources."""

    chains: list[ChainView]
