"""A relay with a history, and a bare tornado handler that sends files with sendfile."""

from __future__ import annotations

import asyncio
import os
import re
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from benchmarks.growth.processes import cpu_seconds
from benchmarks.history_speed.history import PHYSICAL, RING_BYTES, SEGMENT_BYTES, SOURCE
from benchmarks.serve import IdleSource, Reader, Server, _sigterm, run_service
from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.relay.log.directory import find_segments
from databus.relay.log.reader import LogReader, SegmentTuple
from databus.relay.relay import Relay

SIZE_BYTES = 8 << 20  # of a response, decoded
_TARGET = (
    "/stream?sources=1&size=%d&maxev=2&ddl=true&truncate=true&checkPoint="
    '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":%d,"windowOffset":-1}'
)
_RESUME = re.compile(rb"x-databus-resume: (\d+),-1", re.IGNORECASE)
_ZSTD = re.compile(rb"content-encoding: zstd", re.IGNORECASE)


def begin_relay(folder: Path) -> None:
    """Make a relay's files: it notes then that its source is captured from the ring's begin on."""
    Relay(_settings(str(folder)), open_source=_open_source).stop()


def run_relay(folder: str, ready: Connection) -> None:
    """Serve the history of a folder until SIGTERM."""
    run_service(Relay(_settings(folder), open_source=_open_source), ready)


def _settings(folder: str) -> RelaySettings:
    source = {
        "name": PHYSICAL,
        "uri": "generator:",
        "sources": [SOURCE],
        "ring_bytes": RING_BYTES,
        "log": {"segment_bytes": SEGMENT_BYTES},
    }
    return build_settings(
        {"data_dir": folder, "http": {"port": 0}, "physical_sources": [source]}, RelaySettings
    )


def _open_source(_settings: PhysicalSourceSettings) -> IdleSource:
    return IdleSource()


class Part(NamedTuple):
    """Bytes of a file, and the SCN of the last window in them."""

    path: str
    offset: int
    size_bytes: int
    scn: int


def parts_of(folder: Path) -> list[Part]:
    """Return what a relay sends of a log as it lies on disk, answer by answer."""
    reader = LogReader(SegmentTuple(find_segments(folder).log))
    found, position = [], reader.head
    try:
        while (stored := reader.stored_windows(position, SIZE_BYTES)) is not None:
            path = str(Path(f"/proc/self/fd/{stored.file.file.fd}").readlink())
            found.append(Part(path, stored.file.offset, stored.file.size_bytes, stored.scn))
            position = stored.end
    finally:
        reader.close()
    return found


class SendfileHandler(RequestHandler):
    """Answers with a part of a file, by sendfile and nothing else."""

    def initialize(self, parts: Sequence[Part], files: dict[str, int]) -> None:
        self._parts, self._files = parts, files

    async def get(self, number: str) -> None:
        part = self._parts[int(number)]
        connection: Any = self.request.connection
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Length", part.size_bytes)
        await self.flush()
        fd = connection.stream.socket.fileno()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _send, fd, self._files[part.path], part)
        connection._expected_content_remaining = 0  # tornado has not seen the bytes
        self.finish()


def _send(to: int, source: int, part: Part) -> None:
    writable = select.poll()
    writable.register(to, select.POLLOUT)
    at, end = part.offset, part.offset + part.size_bytes
    while at < end:
        try:
            at += os.sendfile(to, source, at, end - at)
        except BlockingIOError:
            writable.poll()


def run_bare(folder: str, ready: Connection) -> None:
    """Serve the files of a log with sendfile until SIGTERM."""
    parts = parts_of(Path(folder))
    files = {path: os.open(path, os.O_RDONLY) for path in {part.path for part in parts}}
    asyncio.run(_run_bare(parts, files, ready))


async def _run_bare(parts: Sequence[Part], files: dict[str, int], ready: Connection) -> None:
    arguments = {"parts": parts, "files": files}
    server = HTTPServer(Application([(r"/(\d+)", SendfileHandler, arguments)]))
    server.listen(0, "127.0.0.1")
    (sock,) = server._sockets.values()
    ready.send(f"http://127.0.0.1:{sock.getsockname()[1]}")
    await _sigterm().wait()
    server.stop()


@dataclass(frozen=True, slots=True)
class Reading:
    """How much was read of a server, in which time, and its CPU seconds for it."""

    size_bytes: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """MB/s."""
        return self.size_bytes / self.seconds / 1e6

    @property
    def cost(self) -> float:
        """CPU seconds per GB."""
        return self.cpu_s / self.size_bytes * 1e9


class HistoryClient:
    """Reads a server with one connection; answers are dropped."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._reader = Reader(server.url)

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()

    def read_parts(self, count: int) -> Reading:
        """Read all parts of the bare handler."""
        return self._timed(sum, (self._get(f"/{number}")[1] for number in range(count)))

    def read_history(self, after: int, until: int, *, is_zstd: bool) -> Reading:
        """Read the windows after an SCN up to another one, whole answers."""
        return self._timed(sum, self._answers(after, until, is_zstd=is_zstd))

    def _answers(self, scn: int, until: int, *, is_zstd: bool) -> Any:
        headers = f"Accept-Encoding: {'zstd' if is_zstd else 'identity'}"
        while scn < until:
            head, size_bytes = self._get(_TARGET % (SIZE_BYTES, scn), headers)
            resume = _RESUME.search(head)
            assert resume is not None, head
            assert bool(_ZSTD.search(head)) is is_zstd, head
            scn = int(resume[1])
            yield size_bytes

    def _get(self, target: str, header: str = "Accept: */*") -> tuple[bytes, int]:
        self._reader.ask(target, header)
        return self._reader.get()

    def _timed(self, work: Any, argument: Any) -> Reading:
        began, cpu_s = time.perf_counter(), cpu_seconds(self._server.pid)
        size_bytes = work(argument)
        return Reading(
            size_bytes, time.perf_counter() - began, cpu_seconds(self._server.pid) - cpu_s
        )
