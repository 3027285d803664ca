"""The connection machine's bootstrap half: how one registration gets through a bootstrap.

Messages in, instructions out, over the states of `states.CONNECTION`; `bootstrap_steps`
derives the next step from the checkpoint. Four rules:
* Row ids belong to one server. While snapshots are left, the server that began them is
  tried first, several times; another server restarts them, after the same SCN. A catch-up
  continues at any server.
* "Too old" (the server has not reached the SCN yet) is waited out and is no failure. From
  the server that named that SCN itself it means that its store is another one: the
  bootstrap restarts.
* "Too young" (the server does not reach back to the SCN): every server is asked before the
  start SCN is given up; within a bootstrap it restarts, a limited number of times.
* A page is handed over only after its checkpoint is known to be ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from databus.client.machines.backoff import BackOff
from databus.client.machines.bootstrap_steps import (
    STORE_ID_KEY,
    Step,
    after_page,
    begin,
    check_resumable,
    has_snapshots_left,
    settle,
    since_scn,
    sources_asked,
    step_of,
)
from databus.client.machines.connection_messages import (
    BeginBootstrap,
    ConnectionInstruction,
    ConnectionStateMessage,
    Disconnect,
    EndBootstrap,
    Fail,
    GetPage,
    GetSchemas,
    GetStartScn,
    GetTargetScn,
    HandOverPage,
    KeepCheckpoint,
    PageAnswered,
    ReportProblem,
    RequestFailed,
    SchemasAnswered,
    SchemaUnknown,
    StartScnAnswered,
    TargetScnAnswered,
    UseBindings,
    Wait,
    Waited,
    WindowTooLarge,
)
from databus.client.machines.request_size import RequestSize
from databus.client.machines.server_rotation import Rank, ServerOrder
from databus.client.machines.server_set import Servers
from databus.client.machines.states import BOOTSTRAPPING, Connection, StateMachine
from databus.client.subscription import Registered, Subscription, bind
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    CheckpointError,
    DatabusError,
    IllegalTransitionError,
    InvalidParameterError,
    OtherLogError,
    SchemaError,
    SchemaNotFoundError,
    ServerError,
    SettingsError,
    UnknownCommandError,
)
from databus.schemas.filters import filters_to_json

STICKY_TRIES = 3  # of the server that began the snapshots, before another one restarts them
MOST_BEGINNINGS = 5  # starts and restarts of one bootstrap

_TRIGGERS = {
    Step.START_SCN: "ask_start_scn",
    Step.SNAPSHOT: "read_snapshot",
    Step.TARGET_SCN: "ask_target_scn",
    Step.CATCH_UP: "read_catch_up",
    Step.ONLINE: "caught_up",
}

Instructions = list[ConnectionInstruction]


class BootstrapSession:
    """The bootstraps of one registration, one at a time. Not thread-safe."""

    def __init__(
        self,
        subscription: Subscription,
        servers: ServerOrder,
        machine: StateMachine[Connection],
        order: str,
        back_off: BackOff,
        size: RequestSize,
        ranks: Mapping[str, Rank],
    ) -> None:
        """Share the connection machine's state, back-off and request size."""
        self.checkpoint = Checkpoint()
        self.server: str | None = None
        self._subscription = subscription
        self._servers = servers
        self._ranks = ranks
        self._machine = machine
        self._order = order
        self._back_off = back_off
        self._size = size
        self._relay = Registered({}, ())  # the relay's answers at registration
        self._refusals: dict[str, DatabusError] = {}  # refused start SCNs, by server
        self._failures = 0  # consecutive failures, of all servers
        self._beginnings = 0
        self._unknown_schema: bytes | None = None
        self._target_by = ""  # the server that named the target SCN

    def begin(self, checkpoint: Checkpoint, relay: Registered) -> Instructions:
        """Start a bootstrap after the SCN that `checkpoint` has consumed."""
        self._enter(begin(checkpoint, self._order), relay)
        # Wait first: relays that do not hold a bootstrap's end would cause one after another.
        return [Disconnect(), BeginBootstrap(self.checkpoint), Wait(self._back_off.next_s())]

    def resume(self, checkpoint: Checkpoint, relay: Registered) -> Instructions:
        """Continue the bootstrap of a stored checkpoint."""
        self._enter(checkpoint, relay)
        try:
            check_resumable(checkpoint, self._subscription.sources)
        except CheckpointError as error:
            return self._fail(error)
        return [Disconnect(), BeginBootstrap(self.checkpoint), *self._pick()]

    def handle(self, message: ConnectionStateMessage) -> Instructions:
        """Handle one message; return the instructions, in order."""
        match message:
            case Waited():
                return self._pick()
            case SchemasAnswered(schemas):
                return self._register(Registered(self._relay.src_ids, schemas))
            case StartScnAnswered():
                return self._begin_snapshots(message)
            case TargetScnAnswered(scn, mark):
                return self._set_target(scn, mark)
            case PageAnswered():
                return self._take_page(message)
            case SchemaUnknown(digest):
                return self._register_again(digest)
            case WindowTooLarge(error):
                return self._fail(error)
            case RequestFailed(error):
                return self._take_failure(error)
        raise IllegalTransitionError(self._machine.state, type(message).__name__)

    def change_servers(self, servers: Servers, must_pick_again: bool) -> Instructions:
        """Use a new set of servers, and pick another server if the current one is gone."""
        has_new = self._servers.replace(servers.bootstraps)
        self._ranks = servers.ranks()
        self._refusals = {s: e for s, e in self._refusals.items() if s in self._servers}
        if self._machine.state not in BOOTSTRAPPING:
            return []
        is_kept = self.server in self._servers and not must_pick_again
        if is_kept and not (has_new and self._machine.state is Connection.PICKING_BOOTSTRAP):
            return []
        self._machine.fire("servers_changed")
        return [Disconnect(), *self._pick()]

    def _enter(self, checkpoint: Checkpoint, relay: Registered) -> None:
        self.checkpoint = checkpoint
        self._relay = relay
        self._refusals.clear()
        self._failures = self._beginnings = 0
        self._unknown_schema = None

    # Picking a server

    def _pick(self) -> Instructions:
        """Request the schemas of the server that began the snapshots, or of the next in turn."""
        tries = STICKY_TRIES if self._has_snapshots_left else 1
        holder = self._holder if self._failures < tries else None
        self.server = self._servers.next(holder, self._ranks)
        if self.server is None:
            return [Wait(self._back_off.next_s())]
        self._machine.fire("picked")
        return [self._get_schemas()]

    @property
    def _holder(self) -> str | None:
        """The server that began the snapshots, if it is still configured."""
        places = {urlsplit(url).netloc: url for url in self._servers}
        return places.get(self.checkpoint.server_info)

    @property
    def _is_at_holder(self) -> bool:
        """Whether the current server began the snapshots."""
        return urlsplit(self._server()).netloc == self.checkpoint.server_info

    @property
    def _has_snapshots_left(self) -> bool:
        return has_snapshots_left(self.checkpoint, self._subscription.sources)

    def _take_failure(self, error: DatabusError) -> Instructions:
        state = self._machine.state
        # A server without `/register`: the relay's schemas must do.
        if state is Connection.REGISTERING_AT_BOOTSTRAP and isinstance(error, UnknownCommandError):
            return self._register(self._relay)
        if isinstance(error, BootstrapTooOldError):
            return self._begin_after(error) if self._is_taken_back else self._try_later()
        is_too_young = isinstance(error, BootstrapTooYoungError)
        if is_too_young or isinstance(error, InvalidParameterError | OtherLogError):
            if is_too_young and state in (Connection.SNAPSHOT, Connection.CATCHUP):
                return self._begin_anew(error)
            self._refusals[self._server()] = error
            if all(server in self._refusals for server in self._servers):
                return self._fail(error)
        self._failures += 1
        return self._try_later()

    @property
    def _is_taken_back(self) -> bool:
        """Whether the server that is "too old" for an SCN named that SCN itself."""
        if self._machine.state is Connection.CATCHUP:
            return self._server() == self._target_by
        return self._machine.state is Connection.SNAPSHOT and self._is_at_holder

    def _try_later(self) -> Instructions:
        self._machine.fire("failed")
        return [Disconnect(), Wait(self._back_off.next_s())]

    def _leave(self, error: DatabusError) -> Instructions:
        """Report a bad answer, then try this server or another one again."""
        self._failures += 1
        return [ReportProblem(error), *self._try_later()]

    # Registering

    def _register(self, registered: Registered) -> Instructions:
        # The store may have rows of versions that only one of the two lists.
        schemas = (*self._relay.schemas, *registered.schemas)
        try:
            bindings = bind(self._subscription, self._relay.src_ids, schemas)
        except SchemaError as error:
            return self._fail(error)
        return [UseBindings(bindings), *self._go_on()]

    def _register_again(self, digest: bytes) -> Instructions:
        if self._unknown_schema == digest:
            return self._fail(
                SchemaNotFoundError(
                    f"{self._server()} sends rows of schema {digest.hex()}, which neither it nor "
                    "the relay lists at /register"
                )
            )
        self._unknown_schema = digest
        self._machine.fire("schema_unknown")
        return [Disconnect(), self._get_schemas()]

    def _get_schemas(self) -> GetSchemas:
        return GetSchemas(self._server(), tuple(self._relay.src_ids.values()))

    # The conversation

    def _go_on(self) -> Instructions:
        """Make the request of the next step."""
        settled = settle(self.checkpoint, self._subscription.sources)
        step = step_of(settled)
        if step is Step.SNAPSHOT and not self._is_at_holder:
            step = Step.START_SCN  # its row ids differ from those of the server that began
        # A phase ends without a request: its checkpoint is saved before the next phase begins.
        elif settled != self.checkpoint:
            self.checkpoint = settled
            return [KeepCheckpoint(settled, since_scn(settled)), *self._ask(step)]
        return self._ask(step)

    def _ask(self, step: Step) -> Instructions:
        self._machine.fire(_TRIGGERS[step])
        checkpoint, sources = self.checkpoint, self._subscription.sources
        match step:
            case Step.START_SCN:
                asked = begin(checkpoint, self._order)
                return [GetStartScn(self._server(), sources, asked)]
            case Step.TARGET_SCN:
                return [GetTargetScn(self._server(), checkpoint.snapshot_source)]
            case Step.ONLINE:
                self.checkpoint = checkpoint.online_at(checkpoint.bootstrap_target_scn)
                return [EndBootstrap(self.checkpoint), Disconnect()]
        return [self._get_page()]

    def _get_page(self) -> GetPage:
        names = sources_asked(self.checkpoint, self._subscription.sources)
        src_ids = {name: self._relay.src_ids[name] for name in names}
        filters = {
            src_ids[name]: one
            for name, one in self._subscription.sent_filters.items()
            if name in src_ids
        }
        return GetPage(
            self._server(),
            tuple(src_ids.values()),
            self.checkpoint,
            self._size.size_bytes,
            filters_to_json(filters) if filters else None,
        )

    def _begin_snapshots(self, message: StartScnAnswered) -> Instructions:
        server, since = self._server(), self.checkpoint.bootstrap_since_scn
        if message.scn < since:
            return self._leave(
                ServerError(server, f"starts at scn {message.scn}, before ours, {since}")
            )
        told: Instructions = []
        # The snapshots were begun elsewhere, and the row ids in the checkpoint mean nothing here.
        if self.checkpoint.bootstrap_start_scn != -1:
            self.checkpoint = begin(self.checkpoint, self._order)
            told = [BeginBootstrap(self.checkpoint)]
        self._refusals.clear()
        self._failures = 0
        # From our URL: the name that the server sends may not be reachable.
        place = urlsplit(server).netloc
        self.checkpoint = self.checkpoint.with_start_scn(message.scn).held_by(place)
        if message.store_id:
            self.checkpoint = self.checkpoint.with_extra(**{STORE_ID_KEY: message.store_id})
        return [*told, *self._go_on()]

    def _begin_anew(self, error: DatabusError) -> Instructions:
        self._beginnings += 1
        if self._beginnings >= MOST_BEGINNINGS:
            return self._fail(error)
        return self._begin_after(error)

    def _begin_after(self, error: DatabusError) -> Instructions:
        self._target_by = ""
        self.checkpoint = begin(self.checkpoint, self._order)
        return [ReportProblem(error), BeginBootstrap(self.checkpoint), *self._try_later()]

    def _set_target(self, scn: int, mark: tuple[int, int] | None) -> Instructions:
        try:
            self.checkpoint = self.checkpoint.with_target_scn(scn)
        except CheckpointError as error:
            return self._leave(ServerError(self._server(), str(error)))
        if mark is not None:  # lets the relay check that the rows come from its log
            self.checkpoint = self.checkpoint.with_mark(mark)
        self._target_by = self._server()
        self._failures = 0
        return self._go_on()

    def _take_page(self, message: PageAnswered) -> Instructions:
        page, headers, before = message.page, message.headers, self.checkpoint
        try:
            if headers.pending_event_bytes is not None and (page is None or not page.event_count):
                place = since_scn(before)
                self._size.grow_for_event(headers.pending_event_bytes, self._server(), place)
                return [self._get_page()]
            if page is None:
                raise ServerError(self._server(), "an empty page without a checkpoint")
            self.checkpoint = after_page(
                before, page.checkpoint, headers.is_completed, page.timestamp_ns
            )
        except SettingsError as error:
            return self._fail(error)
        except ServerError as error:
            return self._leave(error)
        except CheckpointError as error:
            return self._leave(
                ServerError(self._server(), f"a page that does not advance: {error}")
            )
        self._failures = 0
        self._unknown_schema = None
        self._size.reset()
        if page.event_count:
            # An empty page resets nothing: a bootstrap without rows must not restart quickly.
            self._back_off.reset()
        return [HandOverPage(self.checkpoint, since_scn(before)), *self._go_on()]

    def _fail(self, error: DatabusError) -> Instructions:
        self._machine.fire("close")
        return [Disconnect(), Fail(error)]

    def _server(self) -> str:
        assert self.server is not None, "no request is made before a server is picked"
        return self.server
