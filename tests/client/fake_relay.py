"""A relay that does what a test says: real HTTP on a real port, no ring behind it.

It serves windows out of a list as protocol.md says. What is put into `script`
is done instead to the next `/stream` requests, one each.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from databus.client.subscription import RegisteredSchema
from databus.demo.processes import free_port
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event
from databus.schemas.event.v2 import encode
from databus.schemas.filters import parse_filters
from databus.schemas.protocol import Header
from tests.client.shop import CUSTOMERS, ORDERS, SRC_IDS, registered

Act = Callable[["StreamHandler"], None]


class FakeRelay:
    """A scripted relay; use as a context manager."""

    handler: type[RequestHandler]

    def __init__(
        self,
        windows: Sequence[Sequence[Event]] = (),
        schemas: Sequence[RegisteredSchema] | None = None,
        sources: dict[str, int] | None = None,
        says_where_to_resume: bool = True,
        holds_requests: bool = True,
        port: int = 0,
    ) -> None:
        self.windows = [list(w) for w in windows]
        self.schemas = list(registered(ORDERS, CUSTOMERS) if schemas is None else schemas)
        self.sources = dict(SRC_IDS if sources is None else sources)
        self.oldest_gone = 0  # the newest SCN no longer held
        self.first_scns: dict[int, int] = {}  # after which it captures a source, by id
        self.script: deque[Act] = deque()
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.connections = 0
        self.headers: list[HTTPHeaders] = []  # of each request, in the order of `requests`
        self.takes_reports = False  # as relays did before there were any
        self.holds_reports = False  # and answers none
        self.posts = 0
        self.reports: list[dict[str, Any]] = []
        self.positions: list[dict[str, Any]] = []  # of its answers to them
        self.state = ""  # of the client, in them
        self.says_where_to_resume = says_where_to_resume
        self.holds_requests = holds_requests
        self.log_window = ""  # of its answers: SCN, timestamp and source; "" = it names none
        self.url = ""
        self.news: asyncio.Event
        self.stopping: asyncio.Event
        self._port = port or free_port()  # it may go away and come back there
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and every connection."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.stopping.set)
            self._thread.join()

    def append(self, *windows: Sequence[Event]) -> None:
        """Add windows, and answer the requests that wait for them."""

        def add() -> None:
            self.windows.extend(list(w) for w in windows)
            self.news.set()
            self.news = asyncio.Event()

        self._loop.call_soon_threadsafe(add)

    def streams(self) -> list[dict[str, str]]:
        """Return the parameters of the `/stream` requests so far."""
        return [parameters for path, parameters in self.requests if path == "/stream"]

    def paths(self) -> list[str]:
        """Return the paths asked for so far."""
        return [path for path, _ in self.requests]

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.news = asyncio.Event()
        server = _CountingServer(
            Application([(r"/.*", self.handler, {"relay": self})], log_function=_silent)
        )
        server.relay = self
        sockets = bind_sockets(self._port, "127.0.0.1")
        server.add_sockets(sockets)
        self.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        self._ready.set()
        await self.stopping.wait()
        server.stop()
        self.news.set()
        await server.close_all_connections()


class _CountingServer(HTTPServer):
    relay: FakeRelay

    def handle_stream(self, stream: Any, address: Any) -> None:
        self.relay.connections += 1
        super().handle_stream(stream, address)


class StreamHandler(RequestHandler):
    """Every command."""

    def initialize(self, relay: FakeRelay) -> None:
        self.relay = relay

    async def get(self) -> None:
        parameters = {k: v[-1].decode() for k, v in self.request.arguments.items()}
        relay, path = self.relay, self.request.path
        relay.requests.append((path, parameters))
        relay.headers.append(self.request.headers)
        if path == "/sources":
            self.finish(json.dumps([{"name": n, "id": i} for n, i in relay.sources.items()]))
        elif path == "/register":
            fields = [
                {"id": s.src_id, "version": s.version, "schema": s.text} for s in relay.schemas
            ]
            self.finish(json.dumps(fields))
        elif relay.script:
            relay.script.popleft()(self)
        else:
            await self._stream(parameters)

    async def post(self) -> None:
        relay = self.relay
        relay.posts += 1
        if relay.holds_reports:
            await relay.stopping.wait()
        elif relay.takes_reports:
            relay.reports.append(json.loads(self.request.body))
            self.finish({"positions": relay.positions, "state": relay.state})
        else:
            self.set_status(404)

    async def _stream(self, parameters: dict[str, str]) -> None:
        relay, news = self.relay, self.relay.news
        checkpoint = Checkpoint.from_json(parameters["checkPoint"])
        if parameters.get("streamFromLatestScn") == "true":
            newest = relay.windows[-1][0].scn if relay.windows else 0
            checkpoint = Checkpoint.at(newest)
        firsts = [relay.first_scns.get(int(i), 0) for i in parameters["sources"].split(",")]
        gone = max(relay.oldest_gone, *firsts)
        if not checkpoint.is_flexible and checkpoint.window_scn < gone:
            not_found(checkpoint.window_scn, gone + 1)(self)
            return
        newest = relay.windows[-1][0].scn if relay.windows else 0
        if checkpoint.window_scn > newest:
            self.set_header("x-databus-ahead", "true")
        if not self._send(parameters, checkpoint) and relay.holds_requests:
            try:
                async with asyncio.timeout(int(parameters["wait"]) / 1000):
                    await news.wait()
            except TimeoutError:
                pass
            self._send(parameters, checkpoint)

    def _send(self, parameters: dict[str, str], since: Checkpoint) -> bool:
        """Write what there is, up to `size`; says whether there was anything."""
        left = int(parameters["size"])
        filters = parse_filters(parameters.get("filters", "{}"))
        wanted = {int(i) for i in parameters["sources"].split(",")}
        resume = (since.window_scn, since.window_offset)
        sent = False
        for window in self.relay.windows:
            scn = window[0].scn
            skipped = since.window_offset if scn == since.window_scn else 0
            if scn < since.window_scn or (scn == since.window_scn and skipped == -1):
                continue
            events = [*window, end_of_period(scn, 1000 + scn)]
            for offset, event in enumerate(events[skipped:], skipped):
                if event.is_control or (
                    event.src_id in wanted
                    and (event.src_id not in filters or filters[event.src_id].matches(event.key))
                ):
                    data = encode(event)
                    if len(data) > left:
                        if not sent:
                            self.set_header("x-dbus-pending-event-size", str(len(data)))
                        self._finish(resume)
                        return True
                    self.write(data)
                    left -= len(data)
                    sent = True
                resume = (scn, -1 if event.is_eop else offset + 1)
        if sent or not self.relay.holds_requests or parameters["wait"] == "0":
            self._finish(resume)
            return True
        return False

    def _finish(self, resume: tuple[int, int]) -> None:
        if self.relay.says_where_to_resume and resume[0] >= 0:
            self.set_header("x-databus-resume", f"{resume[0]},{resume[1]}")
        if self.relay.log_window:
            self.set_header(Header.LOG_WINDOW, self.relay.log_window)

    def drop(self) -> None:
        """Close the connection here and now."""
        connection: Any = self.request.connection
        connection.stream.close()


FakeRelay.handler = StreamHandler


def not_found(scn: int, oldest: int) -> Act:
    """Answer ScnNotFound, as the cause of another error."""

    def act(handler: StreamHandler) -> None:
        handler.set_status(404)
        handler.set_header("x-dbus-error", "RequestProcessingException")
        handler.set_header("x-dbus-error-cause", "com.linkedin.databus.ScnNotFoundException")
        text = f"scn {scn} is gone; the oldest held is {oldest}"
        handler.set_header("x-dbus-error-cause-message", text)
        handler.set_header("x-databus-oldest-scn", str(oldest))

    return act


def status(code: int, name: str = "", message: str = "") -> Act:
    """Answer with a status, and an error's name where there is one."""

    def act(handler: StreamHandler) -> None:
        handler.set_status(code)
        if name:
            handler.set_header("x-dbus-error", name)
            handler.set_header("x-dbus-error-message", message)

    return act


def raw_body(body: bytes, **headers: str) -> Act:
    """Answer 200 with this body."""

    def act(handler: StreamHandler) -> None:
        for name, value in headers.items():
            handler.set_header(name.replace("_", "-"), value)
        handler.write(body)

    return act


def cut_after(body: bytes) -> Act:
    """Send a beginning of an answer, then close the connection."""

    def act(handler: StreamHandler) -> None:
        connection: Any = handler.request.connection
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
        connection.stream.write(head + body).add_done_callback(lambda _: handler.drop())
        handler._finished = True

    return act


def not_http(handler: StreamHandler) -> None:
    """Answer with something that is not HTTP, then close the connection."""
    connection: Any = handler.request.connection
    connection.stream.write(b"220 mail ready\r\n\r\n").add_done_callback(lambda _: handler.drop())
    handler._finished = True


def _silent(handler: RequestHandler) -> None:
    pass
