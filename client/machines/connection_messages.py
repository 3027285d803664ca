"""The messages to the connection machine, and its instructions.

Every instruction that sends a request is answered by exactly one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from databus.client.machines.position import Position
from databus.client.machines.server_set import Servers
from databus.client.responses import PageHeaders, StreamHeaders
from databus.client.subscription import Bindings, RegisteredSchema
from databus.conf.named_places import NamedPlace
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, ScnNotFoundError


class HalfWindow(NamedTuple):
    """A window that is incomplete: its SCN, and how many of its events have arrived."""

    scn: int
    event_count: int


class Progress(NamedTuple):
    """What one stream answer brought, complete or not.

    `position` is after the last whole window passed on, None without one; `half` is the
    part of the next window that has arrived, in this answer or earlier ones.
    """

    position: Position | None = None
    half: HalfWindow | None = None


class PageFacts(NamedTuple):
    """Summary of one bootstrap page: the server's next checkpoint and the number of events."""

    checkpoint: Checkpoint
    event_count: int
    timestamp_ns: int  # of its last event; -1 without one


NO_PROGRESS = Progress()
NO_HEADERS = StreamHeaders()
NO_PAGE_HEADERS = PageHeaders()


class ConnectionStateMessage:
    """Base class of the messages to the connection machine."""


@dataclass(frozen=True, slots=True)
class Started(ConnectionStateMessage):
    """Start connecting."""


@dataclass(frozen=True, slots=True)
class Waited(ConnectionStateMessage):
    """A `Wait` is over."""


@dataclass(frozen=True, slots=True)
class SourcesAnswered(ConnectionStateMessage):
    """The relay has these sources: name → id."""

    sources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SchemasAnswered(ConnectionStateMessage):
    """The relay has these schemas of the sources asked for."""

    schemas: tuple[RegisteredSchema, ...]


@dataclass(frozen=True, slots=True)
class PositionAnswered(ConnectionStateMessage):
    """The place that was asked for is after window `scn`."""

    scn: int


@dataclass(frozen=True, slots=True)
class StreamAnswered(ConnectionStateMessage):
    """A stream answer is complete."""

    body_bytes: int
    elapsed_s: float
    headers: StreamHeaders = NO_HEADERS
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class StartScnAnswered(ConnectionStateMessage):
    """The snapshots are consistent from `scn` on; `store_id` is "" if not sent."""

    scn: int
    store_id: str = ""


@dataclass(frozen=True, slots=True)
class TargetScnAnswered(ConnectionStateMessage):
    """The SCN to catch up to, and a mark: a window with rows in the server's log."""

    scn: int
    mark: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PageAnswered(ConnectionStateMessage):
    """A bootstrap answer is complete; `page` is None if it was empty."""

    page: PageFacts | None = None
    headers: PageHeaders = NO_PAGE_HEADERS


@dataclass(frozen=True, slots=True)
class RequestFailed(ConnectionStateMessage):
    """A request failed or its answer was bad, possibly after some good windows."""

    error: DatabusError
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class PointNotFound(ConnectionStateMessage):
    """The relay no longer holds the requested SCN or place."""

    error: ScnNotFoundError


@dataclass(frozen=True, slots=True)
class SchemaUnknown(ConnectionStateMessage):
    """The answer was abandoned at an event whose schema the registration does not have.

    `scn` is its window's; -1 in a bootstrap's page.
    """

    schema_id: bytes
    progress: Progress = NO_PROGRESS
    src_id: int = -1
    scn: int = -1


@dataclass(frozen=True, slots=True)
class WindowTooLarge(ConnectionStateMessage):
    """A window is larger than `max_window_bytes`."""

    error: DatabusError
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class ServersTaken(ConnectionStateMessage):
    """The set of servers has changed; never sent while a request is in flight."""

    servers: Servers
    must_pick_again: bool = False


@dataclass(frozen=True, slots=True)
class Closed(ConnectionStateMessage):
    """The registration has ended."""


class ConnectionInstruction:
    """Base class of the instructions of the connection machine."""


@dataclass(frozen=True, slots=True)
class Wait(ConnectionInstruction):
    """Wait, then send `Waited`. A change of servers may end the wait early."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GetSources(ConnectionInstruction):
    """Request `/sources`."""

    server: str


@dataclass(frozen=True, slots=True)
class GetSchemas(ConnectionInstruction):
    """Request `/register`."""

    server: str
    src_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GetPosition(ConnectionInstruction):
    """Request the position of a named place in the log of sources."""

    server: str
    src_ids: tuple[int, ...]
    place: NamedPlace


@dataclass(frozen=True, slots=True)
class GetStream(ConnectionInstruction):
    """Request `/stream`.

    `position` is after the last whole window; `checkpoint` is the one to send: the same
    position, or one within the incomplete window. With `may_be_held` the relay may hold
    the request until there are new windows.
    """

    server: str
    src_ids: tuple[int, ...]
    position: Position
    checkpoint: Checkpoint
    size_bytes: int
    filters: str | None = None
    is_from_latest: bool = False
    may_be_held: bool = True


@dataclass(frozen=True, slots=True)
class GetStartScn(ConnectionInstruction):
    """Request `/startSCN` of the sources with these names."""

    server: str
    sources: tuple[str, ...]
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class GetTargetScn(ConnectionInstruction):
    """Request `/targetSCN`."""

    server: str
    source: str


@dataclass(frozen=True, slots=True)
class GetPage(ConnectionInstruction):
    """Request `/bootstrap`."""

    server: str
    src_ids: tuple[int, ...]
    checkpoint: Checkpoint
    size_bytes: int
    filters: str | None = None


@dataclass(frozen=True, slots=True)
class BeginBootstrap(ConnectionInstruction):
    """A bootstrap starts, continues or restarts at `checkpoint`: put that into the buffer."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class HandOverPage(ConnectionInstruction):
    """Put the page into the buffer: it begins after `since_scn` and ends at `checkpoint`."""

    checkpoint: Checkpoint
    since_scn: int


@dataclass(frozen=True, slots=True)
class KeepCheckpoint(ConnectionInstruction):
    """The bootstrap enters its next phase: put its checkpoint into the buffer, to save at once."""

    checkpoint: Checkpoint
    since_scn: int


@dataclass(frozen=True, slots=True)
class EndBootstrap(ConnectionInstruction):
    """The bootstrap is over: put that into the buffer."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class UseBindings(ConnectionInstruction):
    """Decode with these bindings from now on."""

    bindings: Bindings


@dataclass(frozen=True, slots=True)
class RollBack(ConnectionInstruction):
    """Drop the incomplete window; reading continues after `scn`."""

    scn: int


@dataclass(frozen=True, slots=True)
class MoveOn(ConnectionInstruction):
    """No selected event lies before `position`: put an empty window into the buffer, which
    moves the consumers' checkpoint there.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class ReportProblem(ConnectionInstruction):
    """Report a bad answer of a server; the next instructions deal with it.

    Failed requests need no `ReportProblem`: the puller has seen the error.
    """

    error: DatabusError


@dataclass(frozen=True, slots=True)
class Fail(ConnectionInstruction):
    """Stop reading: the error needs a person."""

    error: DatabusError


@dataclass(frozen=True, slots=True)
class Disconnect(ConnectionInstruction):
    """Close the HTTP connection."""


# Instructions that are answered by a message.
REQUESTS = (
    Wait,
    GetSources,
    GetSchemas,
    GetPosition,
    GetStream,
    GetStartScn,
    GetTargetScn,
    GetPage,
)
