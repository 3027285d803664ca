"""What the connection machine is told, and what it asks for.

Every instruction that sends something is answered by exactly one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from databus.client.machines.position import Position
from databus.client.machines.server_set import Servers
from databus.client.responses import PageHeaders, StreamHeaders
from databus.client.subscription import Bindings, RegisteredSchema
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, ScnNotFoundError


class HalfWindow(NamedTuple):
    """A window that has begun to arrive: its SCN, and how many events of it are here."""

    scn: int
    event_count: int


class Progress(NamedTuple):
    """What one stream answer brought, whether it ended well or not.

    `position` is after the last whole window handed on, None when there was
    none; `half` is what is held of the next one, from this answer or those
    before it.
    """

    position: Position | None = None
    half: HalfWindow | None = None


class PageFacts(NamedTuple):
    """What one bootstrap answer brought: where the server says it leads, and how much it is."""

    checkpoint: Checkpoint
    event_count: int
    timestamp_ns: int  # of its last event; -1 without one


NO_PROGRESS = Progress()
NO_HEADERS = StreamHeaders()
NO_PAGE_HEADERS = PageHeaders()


class ConnectionStateMessage:
    """The root of what the connection machine takes."""


@dataclass(frozen=True, slots=True)
class Started(ConnectionStateMessage):
    """Begin."""


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
class StreamAnswered(ConnectionStateMessage):
    """A stream answer has come to its end."""

    body_bytes: int
    elapsed_s: float
    headers: StreamHeaders = NO_HEADERS
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class StartScnAnswered(ConnectionStateMessage):
    """The snapshots are consistent from `scn` on; `store_id` is "" if not told."""

    scn: int
    store_id: str = ""


@dataclass(frozen=True, slots=True)
class TargetScnAnswered(ConnectionStateMessage):
    """The SCN to catch up to, and a window with rows that the server's log has."""

    scn: int
    mark: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PageAnswered(ConnectionStateMessage):
    """A bootstrap answer has come to its end; without `page` it was empty."""

    page: PageFacts | None = None
    headers: PageHeaders = NO_PAGE_HEADERS


@dataclass(frozen=True, slots=True)
class RequestFailed(ConnectionStateMessage):
    """A request could not be sent, or its answer was bad, perhaps after some good windows."""

    error: DatabusError
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class PointNotFound(ConnectionStateMessage):
    """The relay no longer holds the point asked for."""

    error: ScnNotFoundError


@dataclass(frozen=True, slots=True)
class SchemaUnknown(ConnectionStateMessage):
    """The answer was given up at an event of a schema that came after registration."""

    schema_id: bytes
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class WindowTooLarge(ConnectionStateMessage):
    """A window is larger than may be put together in memory."""

    error: DatabusError
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True, slots=True)
class ServersTaken(ConnectionStateMessage):
    """The set of servers has changed; never sent while a request is in flight."""

    servers: Servers
    must_pick_again: bool = False


@dataclass(frozen=True, slots=True)
class Closed(ConnectionStateMessage):
    """Nothing more is wanted."""


class ConnectionInstruction:
    """The root of what the connection machine asks for."""


@dataclass(frozen=True, slots=True)
class Wait(ConnectionInstruction):
    """Wait so long, then say `Waited`. A change of servers may cut it short."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GetSources(ConnectionInstruction):
    """Ask for `/sources`."""

    server: str


@dataclass(frozen=True, slots=True)
class GetSchemas(ConnectionInstruction):
    """Ask for `/register`."""

    server: str
    src_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GetStream(ConnectionInstruction):
    """Ask for `/stream`.

    `position` is after the last whole window; `checkpoint` is what to ask for,
    the same place or one within the window that is half here. `may_be_held`:
    the answer may wait for news.
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
    """Ask for `/startSCN` of the sources with these names."""

    server: str
    sources: tuple[str, ...]
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class GetTargetScn(ConnectionInstruction):
    """Ask for `/targetSCN`."""

    server: str
    source: str


@dataclass(frozen=True, slots=True)
class GetPage(ConnectionInstruction):
    """Ask for `/bootstrap`."""

    server: str
    src_ids: tuple[int, ...]
    checkpoint: Checkpoint
    size_bytes: int
    filters: str | None = None


@dataclass(frozen=True, slots=True)
class BeginBootstrap(ConnectionInstruction):
    """A bootstrap begins, goes on or begins anew at `checkpoint`: put that into the buffer."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class HandOverPage(ConnectionInstruction):
    """Put the page that was read into the buffer: it begins after `since_scn`, leads to this."""

    checkpoint: Checkpoint
    since_scn: int


@dataclass(frozen=True, slots=True)
class KeepCheckpoint(ConnectionInstruction):
    """The bootstrap has come to its next phase: put that into the buffer, to be kept at once."""

    checkpoint: Checkpoint
    since_scn: int


@dataclass(frozen=True, slots=True)
class EndBootstrap(ConnectionInstruction):
    """The bootstrap is over: put that into the buffer."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class UseBindings(ConnectionInstruction):
    """Decode what is read from now on with these."""

    bindings: Bindings


@dataclass(frozen=True, slots=True)
class RollBack(ConnectionInstruction):
    """Drop the window that is half here, and say that reading went back to after `scn`."""

    scn: int


@dataclass(frozen=True, slots=True)
class MoveOn(ConnectionInstruction):
    """Nothing up to `position` concerns the consumers: it goes into the buffer as an empty
    window, so that their checkpoint gets there too.
    """

    position: Position


@dataclass(frozen=True, slots=True)
class Tell(ConnectionInstruction):
    """Say what is wrong with what a server answered; what follows deals with it.

    Of requests that failed it is not said: the one who made them knows.
    """

    error: DatabusError


@dataclass(frozen=True, slots=True)
class Fail(ConnectionInstruction):
    """Stop: this needs somebody."""

    error: DatabusError


@dataclass(frozen=True, slots=True)
class Disconnect(ConnectionInstruction):
    """Let go of the connection."""


# The instructions that are answered by a message.
REQUESTS = (Wait, GetSources, GetSchemas, GetStream, GetStartScn, GetTargetScn, GetPage)
