"""The clients of `benchmarks.admin_load`: many connections in one process; each window is checked.

What the relay's writer puts into a window follows from its SCN (`keys_of`), so
that every client knows what it must get: every SCN once, in order, with those
rows. Nothing is decoded but the keys.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.row_event import KEY
from databus.schemas.stream.row_reader import RowReader, RowWindow

ROWS = 10  # of each window
_LENGTH = re.compile(rb"content-length: 0\r", re.IGNORECASE)  # only of an empty body
_RESUME = re.compile(rb"x-databus-resume: (\d+),-1", re.IGNORECASE)
_MAX_WINDOW_BYTES = 1 << 20
_BUFFER_BYTES = 2 << 20
_TIMEOUT_S = 60.0


class Job(NamedTuple):
    """The task of a process of clients; `wait_ms` is 0 for clients that read at full speed."""

    url: str
    ids: tuple[str, ...]
    wait_ms: int
    size_bytes: int


@dataclass(slots=True)
class Tally:
    """The counts of one client; `problem` is empty if everything was correct."""

    id: str
    requests: int = 0
    body_bytes: int = 0
    windows: int = 0
    rows: int = 0
    scn: int = 0  # of the last window
    problem: str = ""


def keys_of(scn: int) -> list[int]:
    """Return the keys of the rows of a window."""
    return [scn * ROWS + place for place in range(ROWS)]


def run_clients(job: Job, pipe: Connection) -> None:
    """Read until a message comes through the pipe, then send the tallies back."""
    pipe.send(asyncio.run(_run(job, pipe)))


async def _run(job: Job, pipe: Connection) -> list[Tally]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), stop.set)
    try:
        clients = [_Client(job, client_id) for client_id in job.ids]
        await asyncio.gather(*(client.run(stop) for client in clients))
    finally:
        loop.remove_reader(pipe.fileno())
    return [client.tally for client in clients]


@dataclass(slots=True)
class _Client:
    """One keep-alive connection."""

    job: Job
    id: str
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.id)

    async def run(self, stop: asyncio.Event) -> None:
        """Read until stopped; problems go into the tally."""
        try:
            await self._read_on(stop)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.tally.problem = f"{self.id}: {error!r}"

    async def _read_on(self, stop: asyncio.Event) -> None:
        parts = urlsplit(self.job.url)
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port, limit=_BUFFER_BYTES
        )
        try:
            rows = RowReader(_MAX_WINDOW_BYTES)
            scn: int | None = None
            body = b""
            # A long-polling client continues until it has read everything.
            while not stop.is_set() or (body and self.job.wait_ms):
                async with asyncio.timeout(_TIMEOUT_S):
                    head, body = await self._ask(reader, writer, scn)
                if not body:
                    # Everything is read: a full-speed client starts again at the oldest window.
                    scn = _resume(head) if self.job.wait_ms else None
                    rows.reset()
                for window in rows.receive(body):
                    assert isinstance(window, RowWindow)
                    self._check(window, scn)
                    scn = window.scn
        finally:
            writer.close()
            await writer.wait_closed()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, scn: int | None
    ) -> tuple[bytes, bytes]:
        checkpoint = Checkpoint.flexible() if scn is None else Checkpoint.at(scn)
        target = (
            f"/stream?sources=1&size={self.job.size_bytes}&maxev=2&wait={self.job.wait_ms}"
            f"&checkPoint={quote(checkpoint.to_json())}"
        )
        if scn is None and self.job.wait_ms:
            target += "&streamFromLatestScn=true"
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: benchmark\r\n"
            f"x-databus-client: {self.id}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise ValueError(f"answered {head.splitlines()[0]!r}")
        length = _LENGTH.search(head)
        body = b"" if length is not None else await _read_chunks(reader)
        self.tally.requests += 1
        self.tally.body_bytes += len(body)
        return head, body

    def _check(self, window: RowWindow, after: int | None) -> None:
        if after is not None and window.scn != after + 1:
            raise ValueError(f"window {window.scn} came after {after}")
        if [event[KEY] for event in window.events] != keys_of(window.scn):
            raise ValueError(f"window {window.scn} has other rows than were written")
        self.tally.windows += 1
        self.tally.rows += len(window.events)
        self.tally.scn = window.scn


def _resume(head: bytes) -> int:
    """Return the resume position of a response; raises ValueError."""
    found = _RESUME.search(head)
    if found is None:
        raise ValueError("an answer without x-databus-resume")
    return int(found[1])


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while size_bytes := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append(await reader.readexactly(size_bytes))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(chunks)
