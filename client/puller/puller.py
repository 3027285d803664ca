"""The I/O shell around one registration's connection machine: carries out its instructions.

Runs as one task on the client's loop thread. It contains no rules: the machine decides on
requests, `ServerRequests` makes them, the decoders parse the answers, and `Buffer` limits
the speed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from random import Random

from databus.client.machines.connection import ConnectionMachine
from databus.client.machines.connection_messages import (
    NO_PROGRESS,
    REQUESTS,
    BeginBootstrap,
    Closed,
    ConnectionInstruction,
    ConnectionStateMessage,
    Disconnect,
    EndBootstrap,
    Fail,
    GetPage,
    GetPosition,
    GetStream,
    HandOverPage,
    KeepCheckpoint,
    MoveOn,
    PageAnswered,
    PointNotFound,
    ReportProblem,
    RequestFailed,
    RollBack,
    ServersTaken,
    Started,
    StreamAnswered,
    UseBindings,
    Wait,
    Waited,
)
from databus.client.machines.position import Position
from databus.client.machines.reachability import Reachability, Silence
from databus.client.machines.server_set import (
    BeginRequest,
    EndRequest,
    Servers,
    ServerSetChangeMessage,
    ServerSetMachine,
    TakeServers,
)
from databus.client.machines.states import BOOTSTRAPPING, Connection
from databus.client.puller.buffer import Buffer
from databus.client.puller.buffer_items import (
    BootstrapBegun,
    BootstrapEnded,
    BufferItem,
    RolledBack,
    empty_page,
)
from databus.client.puller.page_decoder import PageDecoder
from databus.client.puller.requests import Request, ServerRequests
from databus.client.puller.stats import RegistrationStats
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import Bindings, Subscription
from databus.conf.settings import ClientSettings
from databus.schemas.errors import DatabusError, ScnNotFoundError

log = logging.getLogger(__name__)

OnRegistered = Callable[[Bindings], None]


class Puller:
    """Reads one registration's events into its buffer. All methods: loop thread only."""

    def __init__(
        self,
        subscription: Subscription,
        servers: Servers,
        position: Position,
        settings: ClientSettings,
        buffer: Buffer[BufferItem],
        rng: Random,
        on_error: Callable[[DatabusError], None],
        is_impatient: bool = False,
        on_registered: OnRegistered | None = None,
        *,
        stats: RegistrationStats,
        clock: Callable[[], float],
        client_id: str = "",
    ) -> None:
        """Read from `position` on; unrecoverable errors go to `on_error`.

        Every request carries `client_id`.
        """
        self.last_problem: DatabusError | None = None
        self.relay: str | None = None  # the last relay that answered an event request
        self.reachability = Reachability(clock)
        self._stats = stats
        self._subscription = subscription
        self._settings = settings
        self._buffer = buffer
        self._rng = rng
        self._on_error = on_error
        self._is_impatient = is_impatient
        self._on_registered = on_registered
        self._servers = ServerSetMachine(servers)
        self._taken: TakeServers | None = None
        self._woken = asyncio.Event()
        self._window_decoder = WindowDecoder(settings.max_window_bytes)
        self._page_decoder = PageDecoder(settings.max_window_bytes)
        self._requests = ServerRequests(
            settings, self._window_decoder, self._page_decoder, self._receive, client_id
        )
        self._connection = self._make_connection(position)

    @property
    def state(self) -> Connection:
        """State of the connection machine."""
        return self._connection.state

    @property
    def server(self) -> str | None:
        """The server being read, or the last one tried."""
        return self._connection.server

    @property
    def position(self) -> Position:
        """The position at which reading continues."""
        return self._connection.position

    def silence(self, others: Silence | None) -> Silence | None:
        """Return the silence of all servers in use; None while one of them may answer."""
        servers = self._servers.servers.of_sources(self._subscription.sources)
        asked = servers.bootstraps if self.state in BOOTSTRAPPING else servers.relays
        return self.reachability.silence(asked, others)

    def change_servers(self, message: ServerSetChangeMessage) -> None:
        """Change the server set; the change takes effect when no request is in flight."""
        for taken in self._servers.handle(message):
            self._taken = taken
            self._woken.set()

    def wake(self) -> None:
        """Check the buffer for room again."""
        self._woken.set()

    async def run(self) -> None:
        """Read until cancelled or until an unrecoverable error."""
        if self.state is Connection.CLOSED:  # a retry after an error that has been dealt with
            self._connection = self._make_connection(self.position)
        pending = deque(self._connection.handle(Started()))
        try:
            while pending:
                pending = self._with_new_servers(pending)
                pending.extend(await self._carry_out(pending.popleft()))
        finally:
            self._connection.handle(Closed())
            self._forget_answer()  # the next run starts with a whole window

    def _make_connection(self, position: Position) -> ConnectionMachine:
        return ConnectionMachine(
            self._subscription,
            self._servers.servers,
            position,
            self._settings,
            self._rng,
            self._is_impatient,
        )

    def _with_new_servers(
        self, pending: deque[ConnectionInstruction]
    ) -> deque[ConnectionInstruction]:
        """Pass new servers to the machine; its instructions replace a pending request."""
        taken, self._taken = self._taken, None
        if taken is None:
            return pending
        # No request is in flight between two instructions, so the machine may switch servers.
        instead = self._connection.handle(ServersTaken(taken.servers, taken.must_pick_again))
        if not instead:
            return pending
        return deque([*(i for i in pending if not isinstance(i, REQUESTS)), *instead])

    async def _carry_out(self, instruction: ConnectionInstruction) -> list[ConnectionInstruction]:
        match instruction:
            case UseBindings(bindings):
                if self._on_registered is not None:
                    self._on_registered(bindings)
                self._window_decoder.use(bindings)
                self._page_decoder.use(bindings)
            case Disconnect():
                self._forget_answer()
            case ReportProblem(error):
                self._report_problem(error, self.server)
                self._stats.failed_request()
            case Fail(error):
                self.last_problem = error
                self._on_error(error)
            case Wait(seconds):
                await self._wait(seconds)
                return self._connection.handle(Waited())
            case _ if isinstance(instruction, Request):
                # The servers have changed: `run` asks the machine for another request.
                if not await self._wait_for_room(instruction):
                    return [instruction]
                return self._hand_over(await self._request(instruction))
            case _:
                self._put(instruction)
        return []

    def _put(self, instruction: ConnectionInstruction) -> None:
        """Put an item into the buffer that an instruction, not a stream, produces."""
        item: BufferItem
        match instruction:
            case RollBack(scn):
                self._window_decoder.reset()
                item = RolledBack(scn)
            case MoveOn(position):
                item = self._window_decoder.empty_window(position)
            case BeginBootstrap(checkpoint):
                item = BootstrapBegun(checkpoint)
            case HandOverPage(checkpoint, since_scn):
                item = self._page_decoder.take(checkpoint, since_scn)
            case KeepCheckpoint(checkpoint, since_scn):
                item = empty_page(checkpoint, since_scn)
            case EndBootstrap(checkpoint):
                item = BootstrapEnded(checkpoint)
            case _:
                raise AssertionError(f"not an instruction: {instruction!r}")
        self._deliver([item])

    def _receive(self, items: list[BufferItem]) -> None:
        """Put the items of a stream's answer into the buffer; the answer may go on for long."""
        if items:
            self.relay, self.last_problem = self.server, None
            self.reachability.answered()
        self._deliver(items)

    def _deliver(self, items: list[BufferItem]) -> None:
        """Put items into the buffer: the only way in, for windows and pages alike."""
        if not items:
            return
        self._buffer.put(items)
        # Yield the GIL to the dispatcher, which has just been woken: otherwise it would
        # wait until this thread has sent the next request (`benchmarks.latency`).
        time.sleep(0)

    def _forget_answer(self) -> None:
        self._window_decoder.reset()
        self._page_decoder.reset()
        self._requests.close()

    def _hand_over(self, message: ConnectionStateMessage) -> list[ConnectionInstruction]:
        server, instructions = self.server, self._connection.handle(message)
        if isinstance(message, RequestFailed):
            is_final = any(isinstance(instruction, Fail) for instruction in instructions)
            self._report_problem(message.error, server, is_final=is_final)
        if isinstance(message, StreamAnswered | PointNotFound):
            self.relay = server
        # An answer that the machine rejects does not prove that the server is well.
        is_good = not any(isinstance(instruction, ReportProblem) for instruction in instructions)
        if isinstance(message, StreamAnswered) and message.progress.half is not None:
            is_good = False  # what has been failing in this window may come yet
        if is_good and isinstance(message, StreamAnswered | PointNotFound | PageAnswered):
            self.reachability.answered()
        if is_good and isinstance(message, StreamAnswered | PageAnswered):
            self.last_problem = None
        return instructions

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a time, or until woken."""
        # No await lies between the check of what is waited for and this line, and wake-ups come on
        # this loop, so none is lost.
        self._woken.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _wait_for_room(self, request: Request) -> bool:
        """Wait until the answer fits into the buffer; False if the servers change first."""
        if not isinstance(request, GetStream | GetPage):
            return True
        while not self._buffer.ask_room(request.size_bytes):
            await self._wait(None)
            if self._taken is not None:
                return False
        return True

    async def _request(self, request: Request) -> ConnectionStateMessage:
        """Make a request and return the message for the machine."""
        # From here to EndRequest a change of the server set is deferred.
        self._servers.handle(BeginRequest())
        try:
            return await self._requests.make(request)
        except DatabusError as error:
            if isinstance(error, ScnNotFoundError) and isinstance(request, GetPosition | GetStream):
                return PointNotFound(error)  # for other requests it is only a bad answer
            return self._failed(request, error)
        finally:
            for taken in self._servers.handle(EndRequest()):
                self._taken = taken

    def _failed(self, request: Request, error: DatabusError) -> RequestFailed:
        self._stats.failed_request()
        # The decoder holds the progress of the last stream; other requests have none.
        progress = self._window_decoder.progress if isinstance(request, GetStream) else NO_PROGRESS
        return RequestFailed(error, progress)

    def _report_problem(
        self, error: DatabusError, server: str | None, *, is_final: bool = False
    ) -> None:
        """Log a problem once: a server that stays down would fill the log with the same line."""
        level = logging.DEBUG if str(error) == str(self.last_problem) else logging.WARNING
        then = "" if is_final else "; trying again"
        log.log(level, "%s: %s%s", self._subscription.name, error, then)
        self.reachability.failed(server, str(error))
        self.last_problem = error
