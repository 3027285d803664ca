"""The connection machine: how one registration gets its events.

Messages in, instructions out; `puller` does the I/O. This file has the relays' side;
`bootstrap` has the bootstrap servers' side.

Four rules keep the stream complete:
* The position moves by whole windows only. A window that is incomplete when an answer
  breaks off is rolled back and read again from its beginning.
* A window larger than `size` continues at the offset that the relay names
  (`x-databus-resume`). A relay that names none is assumed to count the events it sends, so
  with a selection of sources or rows the offset would be wrong: then the window is
  requested again with a larger `size`, until it fits.
* A position reached only through a header is confirmed when a relay answers a request from
  there without saying that it is behind. Until then it is not checkpointed, and if the
  relay is behind, reading returns to the last confirmed position.
* A relay that does not hold the SCN is no reason to give up while another relay, or a
  bootstrap server, has not been asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from databus.client.machines.advice import explain_gone, explain_none, explain_unheld
from databus.client.machines.backoff import BackOff
from databus.client.machines.bootstrap import BootstrapSession
from databus.client.machines.connection_messages import (
    NO_PROGRESS,
    Closed,
    ConnectionInstruction,
    ConnectionStateMessage,
    Disconnect,
    Fail,
    GetPosition,
    GetSchemas,
    GetSources,
    GetStream,
    HalfWindow,
    MoveOn,
    PointNotFound,
    PositionAnswered,
    Progress,
    ReportProblem,
    RequestFailed,
    RollBack,
    SchemasAnswered,
    SchemaUnknown,
    ServersTaken,
    SourcesAnswered,
    Started,
    StreamAnswered,
    UseBindings,
    Wait,
    Waited,
    WindowTooLarge,
)
from databus.client.machines.position import Position, place_order
from databus.client.machines.request_size import RequestSize
from databus.client.machines.server_rotation import ServerOrder
from databus.client.machines.server_set import Servers
from databus.client.machines.states import BOOTSTRAPPING, CONNECTION, Connection, StateMachine
from databus.client.subscription import Registered, Subscription, bind, find_ids
from databus.conf.settings import BackOffSettings, ClientSettings
from databus.schemas.checkpoint import Checkpoint, LogWindow
from databus.schemas.errors import (
    DatabusError,
    IllegalTransitionError,
    IncompatibleSchemaError,
    InvalidParameterError,
    OtherLogError,
    PlaceNotFoundError,
    SchemaError,
    SchemaNotFoundError,
    ScnNotFoundError,
    ServerError,
    SettingsError,
    TableStoppedError,
    UnknownSourceError,
)

# For relays that answer "nothing new" at once instead of holding the request.
_POLLING = BackOffSettings(first_s=0.001, factor=2.0, max_s=0.25)

Instructions = list[ConnectionInstruction]


class ConnectionMachine:
    """The connection of one registration. Not thread-safe."""

    def __init__(
        self,
        subscription: Subscription,
        servers: Servers,
        position: Position,
        settings: ClientSettings,
        rng: Random,
        is_impatient: bool = False,
    ) -> None:
        """Start at `position`; an impatient machine fails when every relay refuses it."""
        self.position = position
        self.server: str | None = None
        self._machine = StateMachine(Connection.INITIAL, CONNECTION)
        self._subscription = subscription
        self._settings = settings
        self._is_impatient = is_impatient
        self._servers = servers = servers.of_sources(subscription.sources)
        self._relays = ServerOrder(servers.relays, rng)
        self._has_bootstraps = bool(servers.bootstraps)
        self._back_off = BackOff(settings.back_off, rng)
        self._polling = BackOff(_POLLING, rng)
        self._gone: dict[str, ScnNotFoundError] = {}
        self._refused: set[str] = set()
        self._is_same_log = False  # the server has checked the checkpoint's mark
        self._asks_proof = False  # the last request, which is not held
        self._asked_proof_scn = -1
        self._src_ids: Mapping[str, int] = {}
        self._registered = Registered({}, ())
        self._is_everything = False  # all rows of the relay's sources are read
        # For which the client has registered again, and the position then.
        self._unknown_schema: tuple[bytes, int] | None = None
        self._size = RequestSize(settings)
        self._half: HalfWindow | None = None
        self._continue_at: tuple[int, int] | None = None
        # The last confirmed position while `position` comes from a header only.
        self._confirmed: Position | None = None
        self._resume_by = ""  # the server whose header named `position` or `_continue_at`
        self._bootstrap = BootstrapSession(
            subscription,
            ServerOrder(servers.bootstraps, rng),
            self._machine,
            settings.bootstrap_order,
            self._back_off,
            self._size,
            servers.ranks(),
        )

    @property
    def state(self) -> Connection:
        """Current state."""
        return self._machine.state

    def handle(self, message: ConnectionStateMessage) -> Instructions:
        """Handle one message; return the instructions, in order."""
        match message:
            case Started():
                self._machine.fire("start")
                return self._pick()
            case Closed():
                return self._close()
            case ServersTaken():
                return self._take_servers(message)
        if self.state in BOOTSTRAPPING:
            # Both halves share one state, so the state tells which of them asked.
            return self._at_bootstrap(self._bootstrap.handle(message))
        return self._handle_of_relay(message)

    def _handle_of_relay(self, message: ConnectionStateMessage) -> Instructions:
        match message:
            case Waited():
                # The pause was between two polls of a relay, or before the next relay.
                return self._stream() if self.state is Connection.STREAMING else self._pick()
            case SourcesAnswered(sources):
                return self._find_sources(sources)
            case SchemasAnswered():
                return self._register(message)
            case PositionAnswered(scn):
                return self._take_position(scn)
            case StreamAnswered():
                return self._take_answer(message)
            case SchemaUnknown():
                return [*self._break_off(message.progress), *self._take_unknown(message)]
            case WindowTooLarge(error, progress):
                return [*self._break_off(progress), *self._fail(error)]
            case RequestFailed(error, progress):
                return [*self._break_off(progress), *self._try_next(error)]
            case PointNotFound(error):
                return [*self._break_off(NO_PROGRESS), *self._not_found(error)]
        raise IllegalTransitionError(self.state, type(message).__name__)

    def _close(self) -> Instructions:
        """Close the connection, unless it is closed."""
        if not self._machine.may("close"):
            return []
        self._machine.fire("close")
        return [Disconnect()]

    # Picking a server

    def _pick(self) -> Instructions:
        """Request the sources of the next relay in turn."""
        sources = self._subscription.sources
        self.server = self._relays.next(ranks=self._servers.ranks(sources, self.position.scn))
        if self.server is None:
            problem = explain_none(self._servers, sources)
            return [ReportProblem(problem), Wait(self._back_off.next_s())]
        self._machine.fire("picked")
        # Another relay may have captured another log, so its first request carries the mark again.
        self._is_same_log = False
        return [GetSources(self.server)]

    def _try_next(self, error: DatabusError) -> Instructions:
        self._machine.fire("failed")
        is_final = isinstance(error, InvalidParameterError | OtherLogError | PlaceNotFoundError)
        # Lasts until a person does something, for which an impatient client does not wait.
        is_refusal = isinstance(error, UnknownSourceError | SchemaError | TableStoppedError)
        if is_final or (self._is_impatient and is_refusal):
            self._refused.add(self._server())
            if self._refused >= set(self._relays):
                return self._fail(error)
        return [Disconnect(), Wait(self._back_off.next_s())]

    def _leave(self, error: DatabusError) -> Instructions:
        """Report a bad answer and try the next relay."""
        return [ReportProblem(error), *self._try_next(error)]

    def _take_servers(self, message: ServersTaken) -> Instructions:
        self._servers = servers = message.servers.of_sources(self._subscription.sources)
        has_new = self._relays.replace(servers.relays)
        # A relay that was taken out no longer counts as one that lacks the SCN, or that refused.
        self._gone = {server: e for server, e in self._gone.items() if server in self._relays}
        self._refused &= set(self._relays)
        self._has_bootstraps = bool(servers.bootstraps)
        at_bootstrap = self._bootstrap.change_servers(servers, message.must_pick_again)
        if self.state in BOOTSTRAPPING:
            return self._at_bootstrap(at_bootstrap)
        is_kept = self.server in self._relays and not message.must_pick_again
        # A machine that waits for its next try makes it now, if there is a new server.
        if is_kept and not (has_new and self.state is Connection.PICKING_RELAY):
            return []
        if not self._machine.may("servers_changed"):
            return []
        self._machine.fire("servers_changed")
        return [*self._break_off(NO_PROGRESS), Disconnect(), *self._pick()]

    def _not_found(self, error: ScnNotFoundError) -> Instructions:
        self._machine.fire("scn_not_found")
        self._gone[self._server()] = error
        # Reading goes back to the last confirmed position, as a header may name any SCN. Not
        # back to "latest", which by now is later: that would skip windows.
        if self._confirmed is not None and not self._confirmed.is_latest:
            self.position = self._confirmed
        self._confirmed = None
        if any(relay not in self._gone for relay in self._relays):
            return [Disconnect(), Wait(self._back_off.next_s())]
        error = min(self._gone.values(), key=lambda e: e.oldest)
        if self.position.place is not None:
            return self._fail(explain_unheld(self.position.place, error))
        if not self._has_bootstraps:
            return self._fail(explain_gone(error))
        self._machine.fire("gone_everywhere")
        return self._at_bootstrap(self._bootstrap.begin(self.position.checkpoint, self._registered))

    def _at_bootstrap(self, instructions: Instructions) -> Instructions:
        """Mirror the session's position and server; return to the relays when it is over."""
        self.position = Position(self._bootstrap.checkpoint)
        self.server = self._bootstrap.server
        if self.state is not Connection.PICKING_RELAY:
            return instructions
        self._gone.clear()
        return [*instructions, *self._pick()]

    # Registering

    def _find_sources(self, offered: Mapping[str, int]) -> Instructions:
        try:
            self._src_ids = find_ids(self._subscription.sources, offered)
        except DatabusError as error:
            return self._leave(error)
        is_all = set(self._src_ids) == set(offered)
        self._is_everything = is_all and self._subscription.is_everything
        self._machine.fire("sources_known")
        return [self._get_schemas()]

    def _register(self, message: SchemasAnswered) -> Instructions:
        try:
            bindings = bind(self._subscription, self._src_ids, message.schemas)
        except IncompatibleSchemaError as error:
            return self._fail(error)  # other relays of these sources have the same schemas
        except SchemaError as error:
            return self._leave(error)
        self._registered = Registered(self._src_ids, message.schemas)
        if self.position.checkpoint.is_bootstrap:
            return self._resume_bootstrap()
        if self.position.place is not None:
            self._machine.fire("ask_position")
            src_ids = tuple(self._src_ids.values())
            asked = GetPosition(self._server(), src_ids, self.position.place)
            return [UseBindings(bindings), asked]
        self._machine.fire("registered")
        return [UseBindings(bindings), *self._stream()]

    def _take_position(self, scn: int) -> Instructions:
        """Stream from the place that the relay has found."""
        self._machine.fire("position_known")
        self.position = Position(Checkpoint.at(scn))
        return [MoveOn(self.position), *self._stream()]

    def _resume_bootstrap(self) -> Instructions:
        if not self._has_bootstraps:
            return self._fail(
                SettingsError(
                    "the checkpoint is in the middle of a bootstrap, and no bootstrap server "
                    "is configured (bootstrap_servers)"
                )
            )
        self._machine.fire("resume_bootstrap")
        resumed = self._bootstrap.resume(self.position.checkpoint, self._registered)
        return self._at_bootstrap(resumed)

    def _take_unknown(self, message: SchemaUnknown) -> Instructions:
        """Register again; leave the relay if that has not helped."""
        # With the place: whole windows in between make it another ALTER.
        unknown = message.schema_id, self.position.scn
        if unknown == self._unknown_schema:
            return self._leave(self._explain_unknown(message))
        self._unknown_schema = unknown
        self._machine.fire("schema_unknown")
        # The answer is abandoned in its middle; the connection cannot be used again.
        return [Disconnect(), self._get_schemas()]

    def _explain_unknown(self, message: SchemaUnknown) -> SchemaNotFoundError:
        names = {src_id: name for name, src_id in self._src_ids.items()}
        return SchemaNotFoundError(
            f"{self._server()} sends rows of source {names.get(message.src_id, '?')} "
            f"({message.src_id}) at scn {message.scn} with schema {message.schema_id.hex()}, "
            "which it does not list at /register"
        )

    def _get_schemas(self) -> GetSchemas:
        return GetSchemas(self._server(), tuple(self._src_ids.values()))

    # Streaming

    def _stream(self) -> Instructions:
        is_continued = self._continue_at is not None
        checkpoint = self.position.checkpoint
        if self._continue_at is not None:
            checkpoint = self.position.within(*self._continue_at)
        if self._is_same_log:
            checkpoint = checkpoint.with_mark(None).with_log_window(None)
        is_from_latest = self.position.is_latest and not is_continued
        # "Latest" is requested without waiting: the answer then names its position
        # (x-databus-resume), so nothing is missed between two requests. Nor does the next
        # request wait, so that the position is confirmed soon.
        came_from_latest = self._confirmed is not None and self._confirmed.is_latest
        # Nor does one that is to name a window of the log: it is asked for once at each place.
        lacks_proof = self._is_same_log and not is_continued and not self.position.is_proved
        self._asks_proof = lacks_proof and self.position.scn != self._asked_proof_scn
        if self._asks_proof:
            self._asked_proof_scn = self.position.scn
        return [
            GetStream(
                self._server(),
                tuple(self._src_ids.values()),
                self.position,
                checkpoint,
                self._size.size_bytes,
                self._subscription.filters_json(self._src_ids),
                is_from_latest,
                not (is_from_latest or came_from_latest or self._asks_proof),
            )
        ]

    def _take_answer(self, message: StreamAnswered) -> Instructions:
        self._machine.fire("streamed")
        self._advance(message.progress)
        if message.headers.is_ahead:
            return self._wait_for_relay()
        self._is_same_log = True
        return [*self._confirm(), *self._go_on(message)]

    def _confirm(self) -> Instructions:
        """Confirm the requested position, and pass it on if it was unconfirmed."""
        was_confirmed, self._confirmed = self._confirmed is None, None
        return [] if was_confirmed else [MoveOn(self.position)]

    def _go_on(self, message: StreamAnswered) -> Instructions:
        headers = message.headers
        try:
            if headers.pending_event_bytes is not None:
                self._size.grow_for_event(
                    headers.pending_event_bytes, self._server(), self.position.scn
                )
                return self._stream()
            rolled_back = self._find_continuation(headers.resume, message.body_bytes)
        except SettingsError as error:
            return [*self._break_off(NO_PROGRESS), *self._fail(error)]
        except ServerError as error:
            return [*self._break_off(NO_PROGRESS), *self._leave(error)]
        rolled_back = [*rolled_back, *self._note(headers.log_window)]
        if self._half is None:  # else what has been failing in this window may come yet
            self._back_off.reset()
        self._gone.clear()
        self._refused.clear()
        if message.body_bytes:
            self._polling.reset()
        # It came in less than half of `wait`: the relay holds no requests, so poll with pauses.
        elif not self._asks_proof and message.elapsed_s * 2000 < max(self._settings.wait_ms, 1):
            return [*rolled_back, Wait(self._polling.next_s())]
        return [*rolled_back, *self._stream()]

    def _note(self, window: LogWindow | None) -> Instructions:
        """Take over a newer window of the log, and pass it on: nothing else proves the place."""
        before = self.position
        self.position = before.proved_by(window)
        if self.position is before or self._confirmed is not None:
            return []
        return [MoveOn(self.position)]

    def _find_continuation(self, resume: tuple[int, int] | None, body_bytes: int) -> Instructions:
        """Set the offset at which the next request continues within a window, if any."""
        half, begin = self._half, self._continue_at
        self._continue_at = None
        if half is None:
            self._size.reset()
        if resume is not None:
            self._follow(*resume, begin)
            return []
        # Without the header only a reader of everything knows its offset, which counts unfiltered
        # events. Any other one needs the whole window in one answer.
        if half is not None and self._is_everything:
            self._continue_at = (half.scn, half.event_count)
        elif half is not None:
            self._size.grow_for_window(half.scn, self.position.scn, self._server(), body_bytes)
            return self._break_off(NO_PROGRESS)
        return []

    def _follow(self, scn: int, offset: int, begin: tuple[int, int] | None) -> None:
        """Continue where the relay says; raise ServerError if that is not ahead."""
        half, checkpoint = self._half, self.position.checkpoint
        read = place_order(checkpoint.window_scn, checkpoint.window_offset)
        is_behind = place_order(scn, offset) < max(read, place_order(*begin) if begin else read)
        is_elsewhere = half is not None and (scn != half.scn or offset < half.event_count)
        if is_behind or is_elsewhere:
            raise ServerError(
                self._server(),
                f"says to continue at {scn}, {offset}; the last whole window is "
                f"{self.position.scn}, and the incomplete one is {half}",
            )
        self._resume_by = self._server()
        if offset >= 0:
            self._continue_at = (scn, offset)
        elif scn < 0 and self.position.is_latest:
            # The relay has never held a window: every window to come is newer than now.
            self.position = Position(Checkpoint.flexible())
        elif scn > self.position.scn:
            # No event up to there is selected, or "latest" was requested.
            self._confirmed = self.position
            self.position = self.position.after_window(scn)

    def _advance(self, progress: Progress) -> None:
        self._half = progress.half
        if progress.position not in (None, self.position):
            self._confirmed = None  # windows from there have arrived
        self.position = progress.position or self.position

    def _break_off(self, progress: Progress) -> Instructions:
        """Keep the whole windows that arrived and roll back the incomplete one."""
        half = progress.half or self._half
        self._advance(progress)
        self._half = self._continue_at = None
        if half is None:
            return []
        self.position = self.position.before_window(half.scn)
        return [RollBack(self.position.scn)]

    def _wait_for_relay(self) -> Instructions:
        """Try another relay because this one is behind; wait if it is the only one."""
        if self._confirmed is not None or self._continue_at is not None:
            return self._go_back()
        scn = self.position.checkpoint.window_scn
        error = ServerError(
            self._server(),
            f"has not reached scn {scn} yet; if that lasts, it has another log (another database, "
            "or one begun anew): use the relay of the right one, or remove the checkpoint and what "
            "was made of the rows, and read all again; or `start` has an SCN that never was",
        )
        if len(self._relays) == 1:
            return [ReportProblem(error), Wait(self._back_off.next_s())]
        return [*self._break_off(NO_PROGRESS), *self._leave(error)]

    def _go_back(self) -> Instructions:
        """Return to the last confirmed position: the relay lacks the one that a header named."""
        scn, _ = self._continue_at or (self.position.scn, -1)
        error = ServerError(
            self._server(),
            f"has not reached scn {scn}, where {self._resume_by or 'it'} said to continue; "
            "going back",
        )
        self.position, self._confirmed = self._confirmed or self.position, None
        return [*self._break_off(NO_PROGRESS), *self._leave(error)]

    def _fail(self, error: DatabusError) -> Instructions:
        self._machine.fire("close")
        return [Disconnect(), Fail(error)]

    def _server(self) -> str:
        assert self.server is not None, "no request is made before a server is picked"
        return self.server
