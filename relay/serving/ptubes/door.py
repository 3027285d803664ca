"""The ports for Ptubes' clients and their monitoring, as the daemon starts and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from databus.conf.doors.ptubes_settings import PtubesSettings
from databus.conf.settings import HttpSettings
from databus.daemon.fair_queue import FairQueue
from databus.daemon.service import bind_port, run_for_life
from databus.daemon.tokens import make_access
from databus.relay.relay import Relay
from databus.relay.serving.ptubes.connection import Answering, Connection, Connections
from databus.relay.serving.ptubes.http_requests import Request
from databus.relay.serving.ptubes.monitor import MonitorRoutes
from databus.relay.serving.ptubes.opening import SessionOpener
from databus.relay.serving.ptubes.routes import Answer, Caller, DataRoutes
from databus.relay.serving.ptubes.traffic import Sessions

_TICK_S = 1.0


class PtubesDoor:
    """A front door; see `databus.daemon.service.FrontDoor`."""

    name = "Ptubes"

    def __init__(self, relay: Relay, settings: PtubesSettings) -> None:
        self._relay, self._settings = relay, settings
        self.sessions = Sessions()
        self.connections = Connections(settings)
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._starting: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None

    @property
    def ports(self) -> list[int]:
        """The bound ports: for clients, and for monitoring."""
        return [one.getsockname()[1] for one in self._sockets]

    @property
    def address(self) -> str:
        """Where clients connect; empty before it is bound, and after the end."""
        return f"{self._settings.host}:{self.ports[0]}" if self._sockets else ""

    def bind(self) -> str:
        """Bind and listen; return the address. Raises SettingsError."""
        settings = self._settings
        try:
            self._sockets.append(bind_port("ptubes.port", settings.host, settings.port))
            if settings.monitor_port is not None:
                port = settings.monitor_port
                self._sockets.append(bind_port("ptubes.monitor_port", settings.host, port))
        except BaseException:
            self._close_sockets()
            raise
        return self.address

    def serve(self, queue: FairQueue) -> None:
        """Begin to answer."""
        settings = self._settings
        opener = SessionOpener(self._relay, settings, queue)
        data = DataRoutes(
            self._relay, opener, self.sessions, make_access(self._relay.settings.http)
        )
        http = HttpSettings(host=settings.host, open_to_all=settings.open_to_all)
        monitor = MonitorRoutes(self._relay, opener, self.sessions, http)
        routes = (data, monitor)[: len(self._sockets)]
        listening = self._listen([_answering(one) for one in routes])
        self._starting = run_for_life(listening, "the start of ptubes' door")
        self._ticking = run_for_life(self._tick(), "the clock of ptubes' door")

    async def close(self, timeout_s: float) -> None:
        """Accept no more, let answers finish for a while, and end every session."""
        self.connections.is_closing = True
        if self._starting is not None:
            await self._starting
        for server in self._servers:
            server.close()
        self._close_sockets()
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        for one in self.sessions:
            one.session.disconnect()
        left = list(self.connections.open)
        for connection in left:
            connection.close()
        await self._wait_for(left, timeout_s)
        for connection in left:
            connection.abort()
        await self._wait_for(left, None)

    async def _wait_for(self, connections: list[Connection], timeout_s: float | None) -> None:
        works = [asyncio.ensure_future(one.drain()) for one in connections]
        if works:
            _, late = await asyncio.wait(works, timeout=timeout_s)
            for one in late:
                one.cancel()

    def _close_sockets(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets = []

    async def _listen(self, answering: list[Answering]) -> None:
        loop = asyncio.get_running_loop()
        for bound, answer in zip(self._sockets, answering, strict=True):

            def make(answer: Answering = answer) -> Connection:
                return Connection(self.connections, answer, self.sessions.end)

            self._servers.append(await loop.create_server(make, sock=bound))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_S)
            self.connections.tick(loop.time())


def _answering(routes: DataRoutes | MonitorRoutes) -> Answering:
    async def answer(request: Request, caller: Caller, is_busy: bool) -> Answer:
        return await routes.answer(request, caller, is_busy=is_busy)

    return answer
