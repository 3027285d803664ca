"""The part of `databus top` that is about the cluster: groups, servers, leases, chains. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from databus.conf.units import count_text, duration_text
from databus.leases.sightings import Holding
from databus.relay.cluster.models import (
    ChainLink,
    Chains,
    ChainView,
    CoordinatorView,
    GroupSummary,
    GroupsView,
    LeasesView,
    LeaseView,
    ServedSourceView,
    ServersView,
    ServerView,
)

GROUPS_SHOWN, HALTS_SHOWN, SERVERS_SHOWN, LEASES_SHOWN = 8, 3, 12, 5
UNKNOWN = "unknown"
_HOLDING = {Holding.HELD: "green", Holding.RUN_OUT: "red", Holding.FREE: "dim"}
_STATES = {"alive": "green", "unknown": "yellow", "gone": "bold red"}


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """What a relay sees of its cluster."""

    groups: GroupsView
    leases: LeasesView
    servers: ServersView
    chains: Chains

    @property
    def is_alone(self) -> bool:
        """Whether there is neither a coordinator nor a relay above."""
        chains = self.chains.chains
        return self.groups.coordinator is None and not any(one.links[0].reads for one in chains)


def draw_cluster(cluster: ClusterPicture | None, now_s: float, style: str) -> list[RenderableType]:
    """Return the lines about the cluster; none for a relay that is alone."""
    if cluster is None or cluster.is_alone:
        return []
    parts: list[RenderableType] = [""]
    coordinator = cluster.groups.coordinator
    if coordinator is not None:
        parts.append(_coordinator(coordinator, now_s))
        if cluster.groups.groups:
            parts.append(_groups(cluster.groups.groups, style))
            parts += islice(_halts(cluster.groups.groups), HALTS_SHOWN)
        if cluster.servers.servers:
            parts.append(_servers(cluster.servers.servers, style))
        parts += map(_lease, _shown_leases(cluster.leases.leases))
    parts += [_chain(one) for one in cluster.chains.chains if one.links[0].reads]
    return parts


def lines_of(parts: Sequence[RenderableType]) -> int:
    """Return how many lines they take."""
    return sum(one.row_count + 1 if isinstance(one, Table) else 1 for one in parts)


def _coordinator(coordinator: CoordinatorView, now_s: float) -> Text:
    seen_at = coordinator.seen_at
    seen = "not seen yet" if seen_at is None else f"seen {_age(seen_at, now_s)} ago"
    if coordinator.problem:
        return _cut(f"COORDINATOR {seen}: {' '.join(coordinator.problem.split())}", "bold red")
    return _cut(f"coordinator {coordinator.url}, {seen}", "dim")


def _groups(groups: Sequence[GroupSummary], style: str) -> Table:
    table = _table("group", style)
    for name in ("processes", "owned", "lag", "moved"):
        table.add_column(name, justify="right", no_wrap=True)
    # What needs a person first.
    for one in sorted(groups, key=lambda g: (not (g.problem or g.halted), g.name))[:GROUPS_SHOWN]:
        owned = "?" if one.owned is None else str(one.owned)
        is_whole = one.owned == one.partitions
        table.add_row(
            Text(one.name),
            str(one.members),
            Text(f"{owned}/{one.partitions}", "" if is_whole else "yellow"),
            UNKNOWN if one.behind_s is None else duration_text(one.behind_s),
            count_text(one.moves),
        )
    if len(groups) > GROUPS_SHOWN:
        table.add_row(Text(f"and {len(groups) - GROUPS_SHOWN} more", "dim"))
    return table


def _halts(groups: Sequence[GroupSummary]) -> Iterator[Text]:
    for one in groups:
        text = one.problem or (one.halted and f"halted: {one.halted}")
        if text:
            yield _cut(f"{one.name}: {' '.join(text.split())}", "red")


def _servers(servers: Sequence[ServerView], style: str) -> Table:
    table = _table("server", style)
    table.add_column("state", no_wrap=True)
    for name in ("depth", "behind"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("newest scn", no_wrap=True)
    table.add_column("room", no_wrap=True, overflow="ellipsis")
    lines = list(tree_of(servers))
    for indent, server, source in lines[:SERVERS_SHOWN]:
        boots = " (bootstrap)" if server.kind == "bootstrap" else ""
        state = "draining" if source.is_draining else server.state
        table.add_row(
            Text(f"{'  ' * indent}{_short(server.url)}{boots}"),
            Text(state, _STATES.get(state, "cyan")),
            "loop" if source.is_in_loop else "?" if source.depth is None else str(source.depth),
            UNKNOWN if source.behind_s is None else duration_text(source.behind_s),
            f"{source.name} {'-' if source.newest_scn is None else source.newest_scn}",
            Text(server.room),
        )
    if len(lines) > SERVERS_SHOWN:
        table.add_row(Text(f"and {len(lines) - SERVERS_SHOWN} more", "dim"))
    return table


def tree_of(
    servers: Sequence[ServerView],
) -> Iterator[tuple[int, ServerView, ServedSourceView]]:
    """Yield each server of each physical source behind the one that it reads, with its level."""
    names = dict.fromkeys(source.name for one in servers for source in one.sources)
    for name in names:
        having = {
            one.instance: (one, source)
            for one in servers
            for source in one.sources
            if source.name == name
        }
        done: set[str] = set()
        roots = [i for i, (_, source) in having.items() if source.parent not in having]
        # Of those in a loop, none is above all others.
        stack = [(0, one) for one in (*reversed(list(having)), *reversed(roots))]
        while stack:
            level, instance = stack.pop()
            if instance in done:
                continue
            done.add(instance)
            yield level, *having[instance]
            below = [i for i, (_, source) in having.items() if source.parent == instance]
            stack += [(level + 1, one) for one in reversed(below)]


def _shown_leases(leases: Sequence[LeaseView]) -> Iterator[LeaseView]:
    """Yield those that are no processes of a group: these are counted there."""
    others = (one for one in leases if not one.name.startswith("group/"))
    return islice(others, LEASES_SHOWN)


def _lease(lease: LeaseView) -> Text:
    owner = f"{lease.owner}, " if lease.owner else ""
    text = f"lease {lease.name}: {owner}term {lease.term}, {lease.holding.replace('_', ' ')}"
    return _cut(text, _HOLDING.get(lease.holding, "yellow"))


def _chain(chain: ChainView) -> Text:
    if chain.loop:
        return _cut(f"{chain.physical_source} is read in a circle: {chain.loop}", "bold red")
    above = chain.links[1:]
    words = " < ".join(["here", *(_short(one.url) for one in above)])
    silent = next((one for one in above if one.problem), None)
    if silent is not None:
        problem = " ".join(silent.problem.split())
        return _cut(f"{chain.physical_source}: {words}: {problem}", "red")
    end = "database" if chain.depth is not None else _next_of(above or chain.links)
    return _cut(f"{chain.physical_source}: {words} < {end}", "dim")


def _next_of(links: Sequence[ChainLink]) -> str:
    return f"{_short(links[-1].reads)} (not known yet)"


def _short(url: str) -> str:
    return url.removeprefix("http://")


def _age(at: float, now_s: float) -> str:
    return duration_text(max(0.0, now_s - at))


def _table(first: str, style: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", style=style)
    table.add_column(first, no_wrap=True, overflow="ellipsis", min_width=12, max_width=34)
    return table


def _cut(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
