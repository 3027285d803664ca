"""A source in memory, and a real relay around it on a real port."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.daemon.http.server import BoundedServer
from databus.daemon.service import Service, serve
from databus.demo import processes
from databus.relay.catch_up.catch_up import Reread
from databus.relay.relay import Relay
from databus.relay.service import make_service
from databus.relay.sources.kind import RereadPlace
from databus.relay.sources.log_status import LogProbe, LogStatus
from databus.relay.sources.source import (
    Captured,
    Change,
    Newest,
    Origin,
    ReadItem,
    RowChange,
    Source,
    Transaction,
)
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.event.metadata import Op
from databus.schemas.table import Column, Table
from databus.schemas.windows import NO_SCN, WindowBatch, WindowPiece
from tests import PATIENCE_S

Answered = TypeVar("Answered")

PERSON = Table(
    "shop.person",
    (
        Column("id", "integer", 0, nullable=False, key_position=0),
        Column("name", "text", 1),
    ),
    dialect="sqlite",
)
ORDERS = Table(
    "shop.orders",
    (
        Column("id", "integer", 0, nullable=False, key_position=0),
        Column("note", "text", 1),
    ),
    dialect="sqlite",
)


def insert(key: int, text: str = "x", table: Table = PERSON) -> RowChange:
    return RowChange(table, Op.INSERT, {"id": key, table.columns[1].name: text})


def transaction(scn: int, *changes: Change) -> Transaction:
    return Transaction(scn, scn * 1_000_000_000, changes, Origin(file="log", offset=scn))


def _scn(captured: ReadItem) -> int:
    """Return the SCN of what was captured; a piece's comes with its window's end."""
    if isinstance(captured, WindowBatch):
        return captured.last_scn
    return NO_SCN if isinstance(captured, WindowPiece) else captured.scn


class FakeSource(Source):
    """Yields what the test puts in, from the position asked for; one log for all openings."""

    is_at_end = True  # when it has nothing more to hand over
    silence_s = 0.0

    def __init__(self, settings: PhysicalSourceSettings, tables: Sequence[Table]) -> None:
        self.name = settings.name
        self._tables = tables
        self._arrived = threading.Condition()
        self._log: list[ReadItem] = []
        self._errors: list[Exception] = []
        self._read_errors: list[Exception] = []
        self.reread_errors: list[Exception] = []  # of those that share its log
        self._next = 0
        self._writer = WindowWriter(self.name)
        self.opened_after: list[int | None] = []
        self.told_newest: list[Newest | None] = []
        self.is_open = False
        self.empty_reads = 0  # so many of each connection bring nothing, whatever there is
        self.reads = 0  # of this connection
        self.answers = threading.Event()  # a database that is frozen does not
        self.answers.set()

    def put(self, *captured: ReadItem) -> None:
        with self._arrived:
            self._log.extend(captured)
            self._arrived.notify_all()

    def share(self, other: FakeSource) -> None:
        """Have the log and the failures of another one."""
        self._log, self._read_errors = other._log, list(other.reread_errors)

    def fail(self, *errors: Exception) -> None:
        """Raise these, one for each `read` or `open` from now on."""
        with self._arrived:
            self._errors.extend(errors)
            self._arrived.notify_all()

    def fail_for_good(self, error: Exception) -> None:
        """Raise this when it is read on two connections: once may be the connection's fault."""
        with self._arrived:
            self._read_errors += [error, error]
            self._arrived.notify_all()

    def fail_to_read(self, error: Exception) -> None:
        """Raise this when it is read next, on one connection."""
        with self._arrived:
            self._read_errors.append(error)
            self._arrived.notify_all()

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        self.opened_after.append(after_scn)
        self.told_newest.append(newest)
        assert self.answers.wait(PATIENCE_S)
        self.is_open = True
        self.reads = 0
        self._writer = WindowWriter(self.name, self._encoder, newest)
        self._raise_next()
        with self._arrived:
            self._next = sum(after_scn is not None and _scn(i) <= after_scn for i in self._log)

    def tables(self) -> Sequence[Table]:
        return self._tables

    def read(self) -> Sequence[Captured]:
        return self._writer.write_from(self._read)

    def _read(self) -> Sequence[ReadItem]:
        with self._arrived:
            self.reads += 1
            if self.reads <= self.empty_reads:
                return []
            self._arrived.wait_for(self._has_something, 0.05)
            self._raise_next()
            if self._read_errors:
                raise self._read_errors.pop(0)
            found = self._log[self._next :]
            self._next = len(self._log)
            return found

    def close(self) -> None:
        self.is_open = False

    def _has_something(self) -> bool:
        return bool(self._errors or self._read_errors or self._next < len(self._log))

    def _raise_next(self) -> None:
        with self._arrived:
            if self._errors:
                raise self._errors.pop(0)


class Answer:
    """An HTTP response, read whole."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()


class FakeLogProbe:
    """Looks at a database, and always finds the same."""

    def __init__(self, found: LogStatus) -> None:
        self._found = found

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        newest()
        return self._found

    def cancel(self) -> None:
        """Nothing waits."""


class ServedRelay:
    """A relay with its HTTP server on a thread of its own, and fake sources."""

    def __init__(
        self,
        folder: Path,
        log_probe: LogProbe | None = None,
        *,
        is_frozen: bool = False,
        is_reread: bool = False,
        **changes: Any,
    ) -> None:
        """`is_reread`: the logs of its sources can be read a second time, all of them."""
        self.rereads: list[FakeSource] = []
        self.sources: dict[str, FakeSource] = {}
        self._is_frozen = is_frozen  # the databases, until `source().answers` is set
        self.settings = relay_settings(folder, **changes)
        reread = Reread(lambda _settings, wanted: RereadPlace(wanted.scn), self._open_again)
        self.relay = Relay(
            self.settings,
            self._open_source,
            open_log_probe=lambda _settings: log_probe,
            reread_of=lambda _settings: reread if is_reread else None,
        )
        self.service = make_service(self.relay)
        self.server = ServiceThread(self.service)
        self.url = self.server.url

    def _open_source(self, settings: PhysicalSourceSettings) -> FakeSource:
        return self.source(settings.name)

    def _open_again(self, settings: PhysicalSourceSettings, _folder: Path) -> FakeSource:
        first = self.source(settings.name.removesuffix(".catch-up"))
        again = FakeSource(settings, first.tables())
        again.share(first)
        self.rereads.append(again)
        return again

    def source(self, name: str = "shop") -> FakeSource:
        if name not in self.sources:
            settings = next(p for p in self.settings.physical_sources if p.name == name)
            tables = [t for t in (PERSON, ORDERS) if t.source in settings.sources]
            self.sources[name] = FakeSource(settings, tables)
            if self._is_frozen:
                self.sources[name].answers.clear()
        return self.sources[name]

    def put(self, *transactions: Transaction, name: str = "shop") -> None:
        """Commit at the source and wait until the ring has it, and the source is running."""
        self.source(name).put(*transactions)
        self.wait_for_scn(transactions[-1].scn, name)
        wait_until(lambda: self.relay.physical_sources[name].capture.status.is_connected)

    def wait_for_scn(self, scn: int, name: str = "shop") -> None:
        wait_until(lambda: self.relay.physical_sources[name].ring.max_scn >= scn)

    def get(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> Answer:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return get(self.url, path + query, headers)

    def post(self, path: str, headers: dict[str, str] | None = None, **parameters: Any) -> Answer:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return post(self.url, path + query, headers)

    def stream(self, **parameters: Any) -> Answer:
        asked: dict[str, Any] = {
            "sources": "shop.person,shop.orders",
            "size": 1 << 20,
            "maxev": 2,
            "truncate": "true",
        } | parameters
        return self.get("/stream", **asked)

    def close(self) -> None:
        self.server.close()


class ServiceThread:
    """A service on a loop of its own thread."""

    def __init__(self, service: Service) -> None:
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._until: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.url = ""
        self._thread = threading.Thread(target=self._run, args=(service,))
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failed is not None:
            self._thread.join()
            raise self._failed

    def _run(self, service: Service) -> None:
        try:
            asyncio.run(self._serve(service))
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()

    async def _serve(self, service: Service) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = asyncio.Event()

        def listening(url: str, server: BoundedServer) -> None:
            self.url = url
            self._server = server
            self._ready.set()

        await serve(service, self._until, listening)

    def begin(self, work: Coroutine[Any, Any, Answered]) -> Future[Answered]:
        """Run a coroutine on the service's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Answered]) -> Answered:
        """Run a coroutine there to its end."""
        return self.begin(work).result(PATIENCE_S)

    def start_threads(self) -> None:
        """Start every thread of the loop's executor, for a fixture that several tests share.

        Otherwise a thread that begins in one of them would seem to be left behind by it.
        """

        async def all_at_once() -> None:
            loop, count = asyncio.get_running_loop(), min(32, (os.cpu_count() or 1) + 4)
            together = threading.Barrier(count)
            await asyncio.gather(*(loop.run_in_executor(None, together.wait) for _ in range(count)))

        self.run(all_at_once())

    def call(self, function: Callable[[], object]) -> None:
        """Call a function there, soon."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function)

    def open_connections(self) -> int:
        return self._server.open_connections

    def close(self) -> None:
        assert self._loop is not None
        assert self._until is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._until.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._raise_failure()


def relay_settings(folder: Path, **changes: Any) -> RelaySettings:
    raw: dict[str, Any] = {
        "data_dir": folder / "data",
        "http": {"port": 0},
        "physical_sources": [
            {"name": "shop", "uri": "fake:", "sources": [PERSON.source, ORDERS.source]}
        ],
    }
    return build_settings(raw | changes, RelaySettings)


def connect(url: str, timeout_s: float = PATIENCE_S) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=timeout_s)


def get(
    url: str, target: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> Answer:
    """Send a request with the target as it is, JSON and all."""
    given = {"Host": "relay", "Connection": "close"} | (headers or {})
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
    with connect(url) as sock:
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        response = http.client.HTTPResponse(sock, method=method)
        response.begin()
        with response:
            return Answer(response)


def post(url: str, target: str, headers: dict[str, str] | None = None) -> Answer:
    """Send a request without a body, as an admin's commands are."""
    given = {"Host": urlsplit(url).netloc, "Content-Length": "0"} | (headers or {})
    return get(url, target, given, "POST")


def wait_until(is_so: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Look until something is so; fails when it does not become so."""
    try:
        processes.wait_until(is_so, timeout_s, "it", 0.002)
    except TimeoutError as error:
        raise AssertionError(str(error)) from None
