"""Serving readers against a bare tornado handler: `python -m benchmarks.serve [--short]`.

Each server runs in its own process. The same client reads both in turns: raw
sockets in this process, each a keep-alive connection with one request at a time.
The relay serves whole windows from a full ring; each request continues where the
last one ended. Several readers are at the same place: they all ask before the first
answer is read. The bare handler writes bytes from memory, as many as the relay's
responses have. It makes no ETag, which would hash every body.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from benchmarks.shared.report import Figure, at_least, command, seconds
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
MB = 1e6
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


class BareHandler(RequestHandler):
    """Writes bytes from memory."""

    def initialize(self, bodies: dict[int, bytes]) -> None:
        self._bodies = bodies

    def compute_etag(self) -> None:
        return None

    def get(self) -> None:
        self.set_header("Content-Type", "application/octet-stream")
        self.write(self._bodies[int(self.get_argument("size"))])


def run_bare(bodies: dict[int, bytes], ready: Connection) -> None:
    """Serve the bodies until SIGTERM."""
    asyncio.run(_run_bare(bodies, ready))


async def _run_bare(bodies: dict[int, bytes], ready: Connection) -> None:
    server = HTTPServer(Application([("/stream", BareHandler, {"bodies": bodies})]))
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


@contextmanager
def child(target: Callable[..., None], argument: object) -> Iterator[str]:
    """Run a server in a process of its own; yield its URL."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(argument, there))
    process.start()
    there.close()
    try:
        yield here.recv()
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

    def ask(self, target: str) -> None:
        """Send one request."""
        head = f"GET {target} HTTP/1.1\r\nHost: bench\r\n{self._client}\r\n\r\n"
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


def read_ring(readers: Sequence[Reader], size_bytes: int) -> list[int]:
    """Read the ring from its oldest window to its end; return one reader's responses' lengths."""
    position = b"-1"  # flexible: from the oldest window
    lengths: list[int] = []
    while True:
        head, length = get_all(readers, TARGET_TEXT % (size_bytes, position.decode()))
        if not length:
            return lengths
        lengths.append(length)
        resume = _RESUME.search(head)
        assert resume is not None, head
        position = resume[1]


def read_bare(readers: Sequence[Reader], size_bytes: int, count: int) -> None:
    """Read a number of responses."""
    for _ in range(count):
        get_all(readers, f"/stream?size={size_bytes}")


def figures(short: bool = False) -> list[Figure]:
    """Measure each size of response with one reader, and the usual size with several."""
    repeats = 15 if short else 60
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-") as folder,
        child(run_relay, str(Path(folder))) as relay_url,
    ):
        with connected(relay_url, 1) as relay:
            lengths = {size: read_ring(relay, size) for size in SIZES_BYTES}
        bodies = {size: bytes(found[0]) for size, found in lengths.items()}
        runs = [(size, 1) for size in SIZES_BYTES]
        runs += [(DEFAULT_FETCH_BYTES, count) for count in READERS]
        with child(run_bare, bodies) as bare_url:
            found = []
            for size, count in runs:
                with connected(relay_url, count) as relay, connected(bare_url, count) as bare:
                    rounds = max(3, repeats // count)
                    found += _measure(relay, bare, size, lengths[size], rounds)
    return found


@contextmanager
def connected(url: str, count: int) -> Iterator[list[Reader]]:
    """Yield readers with a connection each; close them at the end."""
    readers = [Reader(url) for _ in range(count)]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.close()


def _measure(
    relay: Sequence[Reader], bare: Sequence[Reader], size: int, lengths: list[int], repeats: int
) -> list[Figure]:
    relay_rates, bare_rates = [], []
    for _ in range(repeats):
        relay_bytes = sum(lengths) * len(relay)
        relay_rates.append(relay_bytes / seconds(lambda: read_ring(relay, size)))
        bare_bytes = lengths[0] * len(lengths) * len(bare)
        bare_rates.append(bare_bytes / seconds(lambda: read_bare(bare, size, len(lengths))))
    ratio = statistics.median(r / b for r, b in zip(relay_rates, bare_rates, strict=True))
    readers = "one reader" if len(relay) == 1 else f"{len(relay)} readers"
    case = f"{readers}, {size >> 10} KiB responses"
    target = TARGET if size == DEFAULT_FETCH_BYTES else None
    return [
        Figure(f"relay, {case}", statistics.median(relay_rates) / MB, "MB/s"),
        Figure(f"bare handler, {case}", statistics.median(bare_rates) / MB, "MB/s"),
        Figure(f"relay / bare handler, {case}", ratio, "x", target),
    ]


main = command("serve", figures)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.serve")
