"""Serving readers against a bare tornado handler: `python -m benchmarks.serve [--short]`.

Each server runs in its own process. The same client reads both in turns, with the
same requests: raw sockets in this process, each a keep-alive connection with one
request at a time. The relay serves whole windows from a full ring; each request
continues where the last one ended. Several readers are at the same place: they all ask
before the first answer is read. The bare handler has the relay's responses in memory,
headers and bodies, and looks up the one that is asked for. It makes no ETag, which
would hash every body.

The client takes a good part of the time, the same with both servers, and a busy machine
another part. A server's own cost is its CPU time per byte, of all its threads.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import re
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from benchmarks.growth.processes import cpu_seconds
from benchmarks.shared.report import Figure, at_least, command
from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.daemon.service import serve, settle
from databus.relay.relay import Relay
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.relay.service import make_service
from databus.relay.sources.source import Captured, Newest, Source
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
from databus.schemas.protocol import Header
from databus.schemas.table import Table

CAPACITY_BYTES = 64 << 20
EVENTS_PER_WINDOW = 10
PAYLOAD_BYTES = 85  # of events of 160 bytes
SIZES_BYTES = (64 << 10, 1 << 20, 8 << 20)
DEFAULT_FETCH_BYTES = 1 << 20  # what a client asks for unless told otherwise
READERS = (8, 50)  # at the same place, beside the one that reads every size
MB, GB = 1e6, 1e9
TARGET = at_least(0.80)
TARGET_TEXT = (
    "/stream?sources=1&size=%d&maxev=2&checkPoint="
    '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":%s,"windowOffset":-1}'
)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"transfer-encoding: chunked", re.IGNORECASE)
_NUMBERS = itertools.count()
_RESUME = re.compile(rb"x-databus-resume: (\d+),-1", re.IGNORECASE)


class IdleSource(Source):
    """A source without windows: the ring was filled beforehand."""

    name = "bench"

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Do nothing."""

    def tables(self) -> Sequence[Table]:
        """Return none."""
        return ()

    def read(self) -> Sequence[Captured]:
        """Wait a while, as a source does."""
        threading.Event().wait(0.5)
        return ()

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the relay."""

    resume: str
    body: bytes


class BareHandler(RequestHandler):
    """Writes responses from memory, each for its own request."""

    def initialize(self, answers: dict[str, Answer]) -> None:
        self._answers = answers

    def compute_etag(self) -> None:
        return None

    def get(self) -> None:
        answer = self._answers[str(self.request.uri)]
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header(Header.RESUME, answer.resume)
        self.write(answer.body)


def run_bare(relay_url: str, ready: Connection) -> None:
    """Serve what a relay has answered until SIGTERM."""
    asyncio.run(_run_bare(fetch_answers(relay_url), ready))


def fetch_answers(relay_url: str) -> dict[str, Answer]:
    """Return a relay's responses by their requests' targets: the whole ring in each size."""
    answers: dict[str, Answer] = {}
    with closing(HTTPConnection(urlsplit(relay_url).netloc)) as connection:
        for size_bytes in SIZES_BYTES:
            scn, is_over = "-1", False
            while not is_over:
                target = TARGET_TEXT % (size_bytes, scn)
                connection.request("GET", target)
                response = connection.getresponse()
                answer = Answer(str(response.headers[Header.RESUME]), response.read())
                answers[target] = answer
                scn, is_over = answer.resume.partition(",")[0], not answer.body
    return answers


async def _run_bare(answers: dict[str, Answer], ready: Connection) -> None:
    server = HTTPServer(Application([("/stream", BareHandler, {"answers": answers})]))
    server.listen(0, "127.0.0.1")
    (sock,) = server._sockets.values()
    ready.send(f"http://127.0.0.1:{sock.getsockname()[1]}")
    await _sigterm().wait()
    server.stop()


def run_relay(folder: str, ready: Connection) -> None:
    """Serve a full ring until SIGTERM."""
    settings = build_settings(
        {
            "data_dir": folder,
            "http": {"port": 0},
            "physical_sources": [
                {
                    "name": "bench",
                    "uri": "generator:",
                    "sources": ["a.b"],
                    "ring_bytes": CAPACITY_BYTES,
                }
            ],
        },
        RelaySettings,
    )
    relay = Relay(settings, open_source=_open_source)
    fill(relay.physical_sources["bench"].ring)
    run_service(relay, ready)


def run_service(relay: Relay, ready: Connection) -> None:
    """Serve a relay on any port until SIGTERM; its URL goes to `ready`."""
    asyncio.run(_run_relay(relay, ready))


def fill(ring: Ring) -> None:
    """Fill a ring with windows of 10 events of 160 bytes."""
    payload = Part(random.Random(1).randbytes(PAYLOAD_BYTES), bytes(16), 1)
    scn = 0
    while ring.tail < CAPACITY_BYTES - (1 << 20):
        scn += 1
        row = encode(Event(scn, scn, 1, 0, scn, Opcode.UPSERT, payload, None))
        data = row * EVENTS_PER_WINDOW + encode(end_of_period(scn, scn))
        ring.append([EncodedWindow(scn, data, scn)])


def _open_source(_settings: PhysicalSourceSettings) -> IdleSource:
    return IdleSource()


async def _run_relay(relay: Relay, ready: Connection) -> None:
    def listening(url: str, _server: HTTPServer) -> None:
        settle()  # as a relay of its own does
        ready.send(url)

    await serve(make_service(relay), _sigterm(), listening)


def _sigterm() -> asyncio.Event:
    event = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, event.set)
    return event


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a process of its own."""

    url: str
    pid: int


@contextmanager
def child(target: Callable[..., None], argument: object) -> Iterator[str]:
    """Run a server in a process of its own; yield its URL."""
    with started(target, argument) as server:
        yield server.url


@contextmanager
def started(target: Callable[..., None], argument: object) -> Iterator[Server]:
    """Run a server in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(argument, there))
    process.start()
    there.close()
    try:
        url = here.recv()
        assert process.pid is not None
        yield Server(url, process.pid)
    finally:
        process.terminate()
        process.join(10)
        here.close()


class Reader:
    """One keep-alive connection; the body goes into one buffer, which is reused."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._sock = socket.create_connection((str(parts.hostname), parts.port or 80), timeout=30)
        self._buffer = bytearray(max(SIZES_BYTES) + (64 << 10))
        # As every client of this project does: readers with one name would seem to repeat
        # each other's requests, which are answered with another check of the windows.
        self._client = f"{Header.CLIENT_ID}: reader-{next(_NUMBERS)}"

    def close(self) -> None:
        self._sock.close()

    def ask(self, target: str, header: str = "X-Bench: 1") -> None:
        """Send one request, with one more header."""
        head = f"GET {target} HTTP/1.1\r\nHost: bench\r\n{self._client}\r\n{header}\r\n\r\n"
        self._sock.sendall(head.encode())

    def get(self) -> tuple[bytes, int]:
        """Read one response; returns its head and how many bytes its body had."""
        got = 0
        view = memoryview(self._buffer)
        while (end := self._buffer.find(b"\r\n\r\n", 0, got)) < 0:
            got += self._receive(view[got:])
        head = bytes(view[:end])
        length = _LENGTH.search(head)
        if length is None:
            assert _CHUNKED.search(head), head
            return head, self._read_chunks(view, end + 4, got)
        self._skip(view, int(length[1]) - (got - end - 4))
        return head, int(length[1])

    def _read_chunks(self, view: memoryview, at: int, got: int) -> int:
        """Read the chunks of a body, some bytes of which are in the buffer; return its size."""
        size_bytes = 0
        while True:
            while (end := self._buffer.find(b"\r\n", at, got)) < 0:
                got += self._receive(view[got:])
            chunk_bytes = int(self._buffer[at:end], 16)
            size_bytes += chunk_bytes
            at = end + 2 + chunk_bytes + 2
            if at >= got:
                self._skip(view, at - got)
                at = got = 0
            if not chunk_bytes:
                return size_bytes

    def _skip(self, view: memoryview, left: int) -> None:
        while left > 0:
            left -= self._receive(view[: min(left, len(view))])

    def _receive(self, into: memoryview) -> int:
        count = self._sock.recv_into(into)
        if not count:
            raise ConnectionError("the server closed the connection")
        return count


def get_all(readers: Sequence[Reader], target: str) -> tuple[bytes, int]:
    """Read the same response with all readers; return its head, and the bytes of one body."""
    for reader in readers:
        reader.ask(target)
    found = {length: head for head, length in [reader.get() for reader in readers]}
    ((length, head),) = found.items()
    return head, length


def read_ring(readers: Sequence[Reader], size_bytes: int) -> int:
    """Read the ring from its oldest window to its end; return how many bytes each reader got."""
    position = b"-1"  # flexible: from the oldest window
    total = 0
    while True:
        head, length = get_all(readers, TARGET_TEXT % (size_bytes, position.decode()))
        if not length:
            return total
        total += length
        resume = _RESUME.search(head)
        assert resume is not None, head
        position = resume[1]


def figures(short: bool = False) -> list[Figure]:
    """Measure each size of response with one reader, and the usual size with several."""
    repeats = 15 if short else 60
    runs = [(size, 1) for size in SIZES_BYTES]
    runs += [(DEFAULT_FETCH_BYTES, count) for count in READERS]
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-") as folder,
        started(run_relay, str(Path(folder))) as relay,
        started(run_bare, relay.url) as bare,
    ):
        found = []
        for size, count in runs:
            found += _measure(relay, bare, size, count, max(3, repeats // count))
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """How fast a server was read: bytes/s by the clock, and its CPU seconds per byte."""

    rate: float
    cost: float


@contextmanager
def connected(server: Server, count: int) -> Iterator[list[Reader]]:
    """Yield readers with a connection each; close them at the end."""
    readers = [Reader(server.url) for _ in range(count)]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.close()


def _measure(relay: Server, bare: Server, size: int, count: int, repeats: int) -> list[Figure]:
    ours: list[Reading] = []
    theirs: list[Reading] = []
    with connected(relay, count) as of_relay, connected(bare, count) as of_bare:
        for _ in range(repeats):
            ours.append(_read(relay, of_relay, size))
            theirs.append(_read(bare, of_bare, size))
    readers = "one reader" if count == 1 else f"{count} readers"
    case = f"{readers}, {size >> 10} KiB responses"
    pairs = zip(ours, theirs, strict=True)
    ratio = statistics.median(one.rate / other.rate for one, other in pairs)
    target = TARGET if size == DEFAULT_FETCH_BYTES else None
    found = []
    for name, readings in (("relay", ours), ("bare handler", theirs)):
        rate = statistics.median(one.rate for one in readings) / MB
        cost = statistics.median(one.cost for one in readings) * GB
        found.append(Figure(f"{name}, {case}", rate, "MB/s"))
        found.append(Figure(f"{name}, {case}, CPU", cost, "s/GB"))
    return [*found, Figure(f"relay / bare handler, {case}", ratio, "x", target)]


def _read(server: Server, readers: Sequence[Reader], size: int) -> Reading:
    began, cpu_s = time.perf_counter(), cpu_seconds(server.pid)
    size_bytes = read_ring(readers, size) * len(readers)
    took_s, spent_s = time.perf_counter() - began, cpu_seconds(server.pid) - cpu_s
    return Reading(size_bytes / took_s, spent_s / size_bytes)


main = command("serve", figures)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.serve")
