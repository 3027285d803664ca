"""The port for clients of Canal: connections, and what is done for them. On the loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from databus.conf.doors.canal_settings import CanalSettings
from databus.daemon.fair_queue import FairQueue
from databus.daemon.service import bind_port, run_for_life
from databus.leases.places import open_kind
from databus.relay.relay import Relay
from databus.relay.serving.canal.consuming.cursor_store import (
    CursorKeeper,
    CursorStore,
    FileCursors,
    Key,
)
from databus.relay.serving.canal.consuming.destinations import Destination, Destinations
from databus.relay.serving.canal.consuming.entry_reader import Stage
from databus.relay.serving.canal.door.kept_places import KeptPlaces
from databus.relay.serving.canal.protocol.errors import BAD_REQUEST, CanalError
from databus.relay.serving.canal.protocol.packets import MOST_FRAME_BYTES, FrameReader, failure
from databus.relay.serving.canal.protocol.passwords import SEED_BYTES, Login, read_login
from databus.relay.serving.canal.protocol.session import Session, Step
from databus.schemas.errors import DatabusError, ProtocolError

if TYPE_CHECKING:  # kazoo is an extra
    from databus.relay.serving.canal.consuming.zookeeper_nodes import CanalNodes
    from databus.relay.serving.canal.door.cluster_nodes import ClusterNodes, Running

log = logging.getLogger(__name__)

LOGIN_S = 20.0  # for which a connection may be without a login
MOST_QUEUED = 64  # frames of one connection that wait; then nothing more is read of it


class CanalDoor:
    """The front door for clients of Canal."""

    name = "Canal"

    def __init__(self, relay: Relay, settings: CanalSettings) -> None:
        """Open nothing yet; raises SettingsError."""
        self.settings = settings
        self.login: Login = read_login(settings)
        self.connections: dict[Connection, None] = {}  # the oldest first
        self.refused_logins = self.refused_connections = self.bad_frames = 0
        self.address = ""
        """As clients are given it."""
        self.destinations = Destinations(())
        self.keeper: CursorKeeper | None = None
        self._relay = relay
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._noting: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        self._stage: Stage | None = None
        self._nodes: CanalNodes | None = None
        self._cluster: ClusterNodes | None = None
        if settings.zookeeper:
            module = "databus.relay.serving.canal.consuming.zookeeper_nodes"
            self._nodes = open_kind(module, "CanalNodes", relay.settings.coordinator)

    @property
    def problem(self) -> str:
        """Why cursors cannot be written now; "" if they can."""
        of_cluster = "" if self._cluster is None else self._cluster.problem
        return of_cluster or ("" if self.keeper is None else self.keeper.problem)

    def bind(self) -> str:
        """Bind and listen; return the address. Raises SettingsError."""
        host = self.settings.host
        found = bind_port("canal.port", host, self.settings.port)
        self._socket = found
        self.address = self.settings.public_address or f"{host}:{found.getsockname()[1]}"
        return self.address

    def serve(self, queue: FairQueue) -> None:
        """Begin to answer."""
        self._loop = asyncio.get_running_loop()
        self._stage = stage = Stage(
            self._relay, queue, self.settings, ZoneInfo(self.settings.time_zone)
        )
        self.keeper = keeper = CursorKeeper(self._store(), self._cursor_taken)
        self.destinations = Destinations(
            Destination(stage, one, keeper) for one in self.settings.destinations
        )
        if self._nodes is None:
            for one in self.destinations.by_name.values():
                one.activate()
        else:
            self._cluster = self._join(self._nodes)
        places = KeptPlaces(self._relay, self.destinations)
        self._noting = run_for_life(places.run(), "the watch of canal's cursors")
        assert self._socket is not None
        self._starting = run_for_life(self._start(self._socket), "the start of canal's door")

    async def close(self, timeout_s: float) -> None:
        """Accept no more, end all sessions, and keep the cursors."""
        self._is_closing = True
        if self._starting is not None:
            await self._starting
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait([self._noting])
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for one in self.destinations.by_name.values():
            one.is_active = False
        tasks = [task for one in list(self.connections) for task in one.end()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        self.destinations.end()
        if self._stage is not None and self._stage.ending:
            await asyncio.wait(set(self._stage.ending), timeout=timeout_s)
        if self.keeper is not None and self._loop is not None:
            ended = await self._loop.run_in_executor(None, self.keeper.close, timeout_s)
            if not ended:
                log.warning("canal: cursors were not kept in time: %s", self.keeper.problem)
        if self._cluster is not None and self._loop is not None:
            # After the cursors: another relay begins with them as soon as this one has left.
            await self._loop.run_in_executor(None, self._cluster.stop, timeout_s)

    def admit(self, connection: Connection) -> bool:
        """Take a new connection; return False if there are too many.

        Those without a login keep nobody out: the oldest of them makes room.
        """
        if self._relay.is_closing:
            return False
        if len(self.connections) >= self.settings.max_connections:
            self.refused_connections += 1
            strangers = (one for one in self.connections if not one.session.is_admitted)
            oldest = next(strangers, None)
            if oldest is None:
                return False
            oldest.end()
            del self.connections[oldest]
        self.connections[connection] = None
        return True

    async def _start(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=bound)

    def _store(self) -> CursorStore:
        if self._nodes is None:
            return FileCursors(self._relay.settings.data_dir)
        module = import_module("databus.relay.serving.canal.consuming.zookeeper_cursors")
        found: CursorStore = module.ZookeeperCursors(self._nodes)
        return found

    def _join(self, nodes: CanalNodes) -> ClusterNodes:
        module = import_module("databus.relay.serving.canal.door.cluster_nodes")
        names = list(self.destinations.by_name)
        found: ClusterNodes = module.ClusterNodes(
            nodes, self.address, names, self._may_serve, self._running_changed
        )
        found.start()
        return found

    def _may_serve(self, destination: str) -> bool:
        """Return whether this relay can begin to serve a destination; on any thread."""
        sources = self.destinations.by_name[destination].settings.physical_sources
        known = self._relay.physical_sources
        return not self._relay.is_closing and all(
            name in known
            and (known[name].capture.status.was_opened or known[name].reader.max_scn >= 0)
            for name in sources
        )

    def _running_changed(self, destination: str, running: Running) -> None:
        """Take over a destination, or leave it to another relay; on the thread that looks."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set_running, destination, running)

    def _set_running(self, destination: str, running: Running) -> None:
        found = self.destinations.by_name[destination]
        if self._is_closing:
            return
        if running.is_here and not found.is_active:
            log.warning("canal: destination %s is served here", destination)
            found.activate()
        elif not running.is_here:
            if found.is_active:
                other = running.elsewhere or "another relay, or none"
                log.warning("canal: destination %s is not served here now: %s", destination, other)
                found.deactivate(running.elsewhere)
            found.elsewhere = running.elsewhere

    def _cursor_taken(self, key: Key, error: DatabusError) -> None:
        """Forget a client whose cursor another relay has written; on the keeper's thread."""
        log.warning("canal: %s, client %d: %s", *key, error)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.destinations.drop, key)


class Connection(asyncio.Protocol):
    """One connection of a client: its frames are answered one after the other."""

    def __init__(self, door: CanalDoor) -> None:
        self.address = ""
        seeds = os.urandom(SEED_BYTES)
        self.session = Session(door.login, seeds, door.settings.idle_connection_s)
        self._door = door
        self._frames = FrameReader()
        self._queue: deque[bytes] = deque()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.address = f"{host}:{port}"
        if not self._door.admit(self):
            transport.abort()
            return
        transport.write(self.session.hello())
        self._timer = asyncio.get_running_loop().call_later(LOGIN_S, self._abort)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """End what is being done for it."""
        self._door.connections.pop(self, None)
        self._can_write.set()
        self._set_timer(None)
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Answer nothing more until the client has read."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        """Take frames, and begin to answer them."""
        self._frames.receive(data)
        try:
            while (frame := self._frames.next_frame()) is not None:
                self._queue.append(frame)
        except ProtocolError as error:
            self._refuse(error)
            return
        self._go_on()

    def end(self) -> list[asyncio.Task[None]]:
        """Close it; return what is still being done for it."""
        self._abort()
        return [self._task] if self._task is not None else []

    def _go_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if len(self._queue) > MOST_QUEUED and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if self._queue and self._task is None:
            self._set_timer(None)
            self._task = asyncio.get_running_loop().create_task(self._answer_all())
            self._task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or self._transport is None or self._transport.is_closing():
            return
        error = task.exception()
        if error is not None:
            log.error("canal: a request of %s", self.address, exc_info=error)
            self._abort()
            return
        self._set_timer(self.session.idle_s if self.session.is_admitted else LOGIN_S)
        self._go_on()

    async def _answer_all(self) -> None:
        transport = self._transport
        assert transport is not None
        while self._queue and not transport.is_closing():
            frame = self._queue.popleft()
            if self._is_paused and not self._queue:
                self._is_paused = False
                transport.resume_reading()
            try:
                step = self.session.receive(frame)
            except ProtocolError as error:
                self._refuse(error)
                return
            answer = await self._carry_out(step)
            if answer:
                transport.write(answer)
                await self._can_write.wait()
            if step.closes:
                self._door.refused_logins += 1
                transport.close()
                return
            if self.session.is_admitted:
                self._frames.most_bytes = MOST_FRAME_BYTES

    async def _carry_out(self, step: Step) -> bytes:
        wanted = step.wanted
        if wanted is None:
            return step.answer
        try:
            answer = await self._door.destinations.serve(wanted, self.address)
        except CanalError as error:
            return self.session.failed(wanted, error)
        except DatabusError as error:
            return self.session.failed(wanted, CanalError(BAD_REQUEST, str(error)))
        return self.session.done(wanted, answer)

    def _refuse(self, error: ProtocolError) -> None:
        """Answer what is no frame of Canal, and close: what follows cannot be understood."""
        self._door.bad_frames += 1
        if self._transport is not None and not self._transport.is_closing():
            self._queue.clear()
            if self._task is None or self._task is asyncio.current_task():
                self._transport.write(failure(BAD_REQUEST, str(error)))
            self._transport.close()

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._abort)

    def _abort(self) -> None:
        self._set_timer(None)
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.abort()
