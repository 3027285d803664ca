"""The shell around one registration's connection machine: does what it asks for.

Runs as one task on the client's loop thread. It holds no rules: the machine
says what to ask whom, `Intake` what the bytes are, `Buffer` when to go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from random import Random

from databus.client.answers import (
    error_of,
    read_schemas,
    read_sources,
    read_stream_headers,
)
from databus.client.buffer import Buffer
from databus.client.connection import ConnectionMachine
from databus.client.connection_messages import (
    REQUESTS,
    Closed,
    ConnectionInstruction,
    ConnectionStateMessage,
    Disconnect,
    Fail,
    GetSchemas,
    GetSources,
    GetStream,
    MoveOn,
    PointNotFound,
    RequestFailed,
    RollBack,
    SchemasAnswered,
    SchemaUnknown,
    ServersTaken,
    SourcesAnswered,
    Started,
    StreamAnswered,
    Tell,
    UseBindings,
    Wait,
    Waited,
    WindowTooLarge,
)
from databus.client.intake import BufferItem, Intake, RolledBack, UnknownSchemaError
from databus.client.position import Position
from databus.client.server_set import (
    BeginRequest,
    EndRequest,
    Servers,
    ServerSetChangeMessage,
    ServerSetMachine,
    TakeServers,
)
from databus.client.states import Connection
from databus.client.subscription import Subscription
from databus.client.transport import Answer, Transport
from databus.conf.settings import ClientSettings
from databus.schemas.errors import (
    DatabusError,
    ProtocolError,
    ScnNotFoundError,
    ServerError,
    SettingsError,
    WindowTooLargeError,
)

log = logging.getLogger(__name__)

MAX_SMALL_ANSWER_BYTES = 64 << 20  # of /sources and /register
PROTOCOL_VERSION = "3"


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
    ) -> None:
        """Read from `position` on; what needs somebody goes to `on_error`."""
        self.last_problem: DatabusError | None = None
        self._subscription = subscription
        self._settings = settings
        self._buffer = buffer
        self._rng = rng
        self._on_error = on_error
        self._is_impatient = is_impatient
        self._servers = ServerSetMachine(servers)
        self._taken: TakeServers | None = None
        self._woken = asyncio.Event()
        self._transport = Transport(settings.connect_timeout_s)
        self._intake = Intake(settings.max_window_bytes)
        self._connection = self._make_connection(position)

    @property
    def state(self) -> Connection:
        """How far it has come."""
        return self._connection.state

    @property
    def server(self) -> str | None:
        """The server it reads from, or tried last."""
        return self._connection.server

    @property
    def position(self) -> Position:
        """After which window it reads on."""
        return self._connection.position

    def change_servers(self, message: ServerSetChangeMessage) -> None:
        """Take a change of the server set; it takes effect when no request is in flight."""
        for taken in self._servers.handle(message):
            self._taken = taken
            self._woken.set()

    def wake(self) -> None:
        """Look at the buffer's room again."""
        self._woken.set()

    async def run(self) -> None:
        """Read until cancelled, or until something needs somebody."""
        if self.state is Connection.CLOSED:  # again, after an error that was dealt with
            self._connection = self._make_connection(self.position)
        pending = deque(self._connection.handle(Started()))
        try:
            while pending:
                pending = self._with_new_servers(pending)
                pending.extend(await self._carry_out(pending.popleft()))
        finally:
            self._connection.handle(Closed())
            self._intake.reset()  # whatever ended it: who reads again begins with a whole window
            self._transport.close()

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
        """Tell the machine of new servers; what it then asks for takes the place of a request."""
        taken, self._taken = self._taken, None
        if taken is None:
            return pending
        instead = self._connection.handle(ServersTaken(taken.servers, taken.must_pick_again))
        if not instead:
            return pending
        return deque([*(i for i in pending if not isinstance(i, REQUESTS)), *instead])

    async def _carry_out(self, instruction: ConnectionInstruction) -> list[ConnectionInstruction]:
        match instruction:
            case UseBindings(bindings):
                self._intake.use(bindings)
            case RollBack(scn):
                self._intake.reset()
                self._buffer.put([RolledBack(scn)])
            case MoveOn(position):
                self._buffer.put([self._intake.empty_window(position)])
            case Disconnect():
                self._intake.reset()
                self._transport.close()
            case Tell(error):
                self._tell(error)
            case Fail(error):
                self.last_problem = error
                self._on_error(error)
            case Wait(seconds):
                await self._wait(seconds)
                return self._connection.handle(Waited())
            case GetSources() | GetSchemas() | GetStream():
                return self._hand_over(await self._request(instruction))
        return []

    def _hand_over(self, message: ConnectionStateMessage) -> list[ConnectionInstruction]:
        instructions = self._connection.handle(message)
        is_good = not any(isinstance(instruction, Tell) for instruction in instructions)
        if is_good and isinstance(message, StreamAnswered):
            self.last_problem = None
        return instructions

    async def _wait(self, seconds: float | None) -> None:
        """Wait so long, or until woken."""
        self._woken.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _request(
        self, instruction: GetSources | GetSchemas | GetStream
    ) -> ConnectionStateMessage:
        """Make a request and say how it ended."""
        if isinstance(instruction, GetStream):
            while not self._buffer.ask_room(instruction.size_bytes):
                await self._wait(None)
        self._servers.handle(BeginRequest())
        try:
            if isinstance(instruction, GetStream):
                return await self._get_stream(instruction)
            return await self._get_small(instruction)
        except ScnNotFoundError as error:
            return PointNotFound(error)
        except DatabusError as error:
            return self._failed(error)
        finally:
            for taken in self._servers.handle(EndRequest()):
                self._taken = taken

    def _failed(self, error: DatabusError) -> RequestFailed:
        self._tell(error)
        return RequestFailed(error, self._intake.progress)

    def _tell(self, error: DatabusError) -> None:
        """Say once what is wrong; a server that is down is asked again and again."""
        level = logging.DEBUG if str(error) == str(self.last_problem) else logging.WARNING
        log.log(level, "%s: %s; trying again", self._subscription.name, error)
        self.last_problem = error

    async def _get_small(self, instruction: GetSources | GetSchemas) -> ConnectionStateMessage:
        server = instruction.server
        if isinstance(instruction, GetSources):
            answer = await self._get(server, "/sources", {"v": "1"})
            return SourcesAnswered(read_sources(server, answer.body))
        ids = ",".join(map(str, instruction.src_ids))
        parameters = {"sources": ids, "protocolVersion": PROTOCOL_VERSION}
        answer = await self._get(server, "/register", parameters)
        return SchemasAnswered(read_schemas(server, answer.body))

    async def _get(self, server: str, path: str, parameters: Mapping[str, str]) -> Answer:
        answer = await self._transport.get(
            server,
            path,
            parameters,
            timeout_s=self._settings.request_timeout_s,
            max_bytes=MAX_SMALL_ANSWER_BYTES,
        )
        error = error_of(server, -1, answer.status, answer.headers)
        if error is not None:
            raise error
        return answer

    async def _get_stream(self, instruction: GetStream) -> ConnectionStateMessage:
        server, started_s = instruction.server, asyncio.get_running_loop().time()
        self._intake.begin(instruction.position)
        try:
            answer = await self._transport.get(
                server,
                "/stream",
                self._stream_parameters(instruction),
                timeout_s=self._settings.request_timeout_s + self._settings.wait_ms / 1000,
                max_bytes=2 * instruction.size_bytes + (64 << 10),
                on_chunk=self._take_chunk,
            )
            scn = instruction.checkpoint.window_scn
            error = error_of(server, scn, answer.status, answer.headers)
            if error is not None:
                raise error
            self._intake.end()
        except UnknownSchemaError as unknown:
            return SchemaUnknown(unknown.schema_id, self._intake.progress)
        except WindowTooLargeError as large:
            settings_error = SettingsError(f"{large}; raise max_window_bytes")
            return WindowTooLarge(settings_error, self._intake.progress)
        except ProtocolError as bad:
            raise ServerError(server, f"bad bytes in /stream: {bad}") from bad
        elapsed_s = asyncio.get_running_loop().time() - started_s
        headers = read_stream_headers(server, answer.headers)
        return StreamAnswered(answer.body_bytes, elapsed_s, headers, self._intake.progress)

    def _take_chunk(self, chunk: bytes) -> None:
        items = self._intake.receive(chunk)
        self._buffer.put(items)
        if items:
            # Give the interpreter to the dispatcher: it was woken just now, and would
            # wait for it until this thread has sent the next request (`benchmarks.latency`).
            time.sleep(0)

    def _stream_parameters(self, instruction: GetStream) -> dict[str, str]:
        parameters = {
            "sources": ",".join(map(str, instruction.src_ids)),
            "checkPoint": instruction.checkpoint.to_json(),
            "size": str(instruction.size_bytes),
            "output": "binary",
            "maxev": "2",
            # The newest is asked for without waiting: the answer then says where that
            # is (x-databus-resume), and nothing can come between two requests.
            "wait": "0" if instruction.is_from_latest else str(self._settings.wait_ms),
        }
        if instruction.filters is not None:
            parameters["filters"] = instruction.filters
        if instruction.is_from_latest:
            parameters["streamFromLatestScn"] = "true"
        return parameters
