"""What the API says of the door for clients of Ptubes."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from databus.daemon.http.openapi import ApiModel, Call, Endpoint, Scn
from databus.relay.serving.ptubes.door import PtubesDoor
from databus.relay.serving.ptubes.traffic import OpenSession

MOST_SHOWN = 100  # sessions; clients choose how many they open, up to ptubes.max_connections


class PtubesSessionView(ApiModel):
    """A subscription of an instance of a client."""

    task: str = Field(description="The client's task name")
    reader_task: str
    address: str
    tables: list[str]
    partitions: int = Field(description="Into how many the client divides the rows")
    partition_set: list[int] = Field(description="Those that this instance has")
    scn: Scn | None = Field(description="Of the last window that was read for it")
    sent_events: int
    sent_bytes: int
    held_bytes: int = Field(description="Of windows that wait for its next fetch")


class PtubesView(ApiModel):
    """The door for clients of Ptubes."""

    address: str = Field(description="Where clients connect; empty = there is no such door")
    connections: int
    refused_connections: int
    bad_requests: int
    sessions: list[PtubesSessionView]
    left_out: int = Field(description="Sessions that are not shown, because there are too many")


class PtubesStatus:
    """The status of a relay's door for clients of Ptubes; without a door it is empty."""

    def __init__(self, door: PtubesDoor | None) -> None:
        self._door = door

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return the endpoints below a path."""
        return (
            Endpoint(
                "GET",
                f"{root}/ptubes",
                "The door for clients of Ptubes: their sessions",
                PtubesView,
                self.view,
            ),
        )

    async def view(self, _call: Call) -> PtubesView:
        """Return the door's status."""
        door = self._door
        if door is None:
            return PtubesView(
                address="",
                connections=0,
                refused_connections=0,
                bad_requests=0,
                sessions=[],
                left_out=0,
            )
        sessions = list(door.sessions)
        return PtubesView(
            address=door.address,
            connections=len(door.connections.open),
            refused_connections=door.connections.refused,
            bad_requests=door.connections.bad_requests,
            sessions=[_session(one) for one in sessions[:MOST_SHOWN]],
            left_out=max(0, len(sessions) - MOST_SHOWN),
        )


def _session(one: OpenSession) -> PtubesSessionView:
    session, wanted = one.session, one.session.wanted
    return PtubesSessionView(
        task=wanted.task,
        reader_task=wanted.reader_task,
        address=one.address,
        tables=sorted(wanted.tables),
        partitions=wanted.partitions,
        partition_set=sorted(wanted.owned),
        scn=session.scn if session.scn >= 0 else None,
        sent_events=session.events_sent,
        sent_bytes=session.bytes_sent,
        held_bytes=session.held_bytes,
    )
