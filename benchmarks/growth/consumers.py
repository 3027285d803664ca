"""How a commit's cost grows with the consumers that hold requests meanwhile.

A relay in a process of its own has two physical sources. Its writer commits one row of one
table whenever it is asked to, and consumers hold a request each, as the client does: for
that table, for another one of the same database, or for one of another database. The next
commit comes when the one before has reached all whom it concerns. Those whom it does not concern
get their new position once a second: that work is in the cost, shared by a second's commits.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from os import getpid
from pathlib import Path
from urllib.parse import quote, urlsplit

from benchmarks.growth.curve import FLAT, Curve, least
from benchmarks.growth.processes import allow_open_files, cpu_seconds
from benchmarks.serve import child, run_service
from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.demo.processes import free_port
from databus.relay.relay import Relay
from databus.relay.sources.source import (
    Captured,
    Newest,
    Origin,
    RowChange,
    Source,
    Transaction,
)
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.metadata import Op
from databus.schemas.table import Column, Table

_COLUMNS = (
    Column("id", "bigint", 0, nullable=False, key_position=0),
    Column("text", "varchar(100)", 1),
)
TABLES = [Table(name, _COLUMNS) for name in ("near.rows", "near.others", "far.rows")]
CONCERNED, SAME_DATABASE, OTHER_DATABASE = 1, 2, 3  # ids of their sources
WAIT_MS = 600_000
COMMITS = 300
_FEWEST = 30  # commits that many consumers are told of
_OPEN_FILES = 10_000
_TIMEOUT_S = 60.0


class AskedSource(Source):
    """A source that commits a row of its first table for each datagram that it receives."""

    def __init__(self, name: str, asked_by: socket.socket) -> None:
        self.name = name
        self._tables = [table for table in TABLES if table.source.startswith(name)]
        self._asked_by = asked_by
        self._scn = 0

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Begin with a row of each table."""
        self._writer = WindowWriter(self.name, self._encoder, newest)
        self._scn = after_scn or 0

    def tables(self) -> Sequence[Table]:
        """Return its tables."""
        return self._tables

    def read(self) -> Sequence[Captured]:
        """Return the row that was asked for."""
        return self._writer.write_from(self._asked)

    def close(self) -> None:
        """Do nothing."""

    def _asked(self) -> Sequence[Transaction]:
        if self._scn:
            try:
                self._asked_by.recv(1)
            except TimeoutError:
                return ()
        self._scn += 1
        wanted = self._tables[: 1 if self._scn > 1 else None]
        rows = [
            RowChange(one, Op.INSERT, {"id": self._scn, "text": f"{self._scn:0100d}"})
            for one in wanted
        ]
        return [Transaction(self._scn, time.time_ns(), rows, Origin())]


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked_by:
        asked_by.bind(("127.0.0.1", port))
        asked_by.settimeout(1.0)
        yield asked_by


def run_relay(place: tuple[str, int], ready: Connection) -> None:
    """Serve until SIGTERM; the writer is asked through a port of UDP."""
    folder, port = Path(place[0]), place[1]
    (folder / "pid").write_text(str(getpid()))
    allow_open_files(_OPEN_FILES)
    names = ("near", "far")
    ids = {table.source: number for number, table in enumerate(TABLES, CONCERNED)}
    physical = [
        {
            "name": name,
            "uri": "generator:",
            "sources": [{"name": s, "id": n} for s, n in ids.items() if s.startswith(name)],
            "ring_bytes": 16 << 20,
        }
        for name in names
    ]
    limits = {"max_connections": _OPEN_FILES, "max_connections_per_client": _OPEN_FILES}
    http = {"port": 0, "max_wait_ms": WAIT_MS, **limits}
    values = {"data_dir": str(folder / "data"), "http": http, "physical_sources": physical}
    with ExitStack() as stack:
        sockets = {
            name: stack.enter_context(_listening(port))
            for name, port in zip(names, (port, 0), strict=True)
        }

        def open_source(settings: PhysicalSourceSettings) -> AskedSource:
            return AskedSource(settings.name, sockets[settings.name])

        run_service(Relay(build_settings(values, RelaySettings), open_source), ready)


class Held:
    """A request that the relay holds, over a connection of its own."""

    def __init__(self, url: str, src_id: int, scn: int) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((str(parts.hostname), parts.port or 80))
        self._socket.settimeout(_TIMEOUT_S)
        position = quote(Checkpoint.at(scn).to_json())
        self._socket.sendall(
            f"GET /stream?sources={src_id}&size=8000000&maxev=2&wait={WAIT_MS}&follow=true"
            f"&checkPoint={position} HTTP/1.1\r\nHost: growth\r\n\r\n".encode()
        )

    def receive(self) -> None:
        """Wait for news; raises ConnectionError, TimeoutError."""
        if not self._socket.recv(1 << 20):
            raise ConnectionError("the relay closed a held request")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@dataclass(slots=True)
class Stage:
    """The relay, as seen from here: its URL, its process, and the row that is asked for next."""

    url: str
    pid: int
    port: int
    scn: int = 1

    def commit_cpu(self, concerned: Sequence[Held]) -> float:
        """Return the relay's CPU seconds for one commit that all these are told of."""
        commits = max(_FEWEST, COMMITS // len(concerned))
        began_s = cpu_seconds(self.pid)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for _ in range(commits):
                asking.sendto(b"1", ("127.0.0.1", self.port))
                for one in concerned:
                    one.receive()
        self.scn += commits
        return (cpu_seconds(self.pid) - began_s) / commits

    def with_waiting(self, src_id: int, count: int) -> float:
        """Return the cost of a commit while so many hold a request, and one is concerned."""
        is_far = src_id == OTHER_DATABASE
        with ExitStack() as stack:
            waiting = [self._held(stack, src_id, 1 if is_far else self.scn) for _ in range(count)]
            told = waiting if src_id == CONCERNED else [self._held(stack, CONCERNED, self.scn)]
            time.sleep(0.2 + count / 500)  # until all requests are held
            return self.commit_cpu(told)

    def _held(self, stack: ExitStack, src_id: int, scn: int) -> Held:
        return stack.enter_context(closing(Held(self.url, src_id, scn)))


def consumers(short: bool) -> list[Curve]:
    """Measure a commit by the number of held requests, whom it concerns or not."""
    allow_open_files(_OPEN_FILES)
    sizes = (1, 10, 100) if short else (1, 10, 100, 1000)
    with stage() as relay:
        relay.with_waiting(CONCERNED, 1)  # warms it up
        told, same, other = least(
            sizes,
            1 if short else 3,
            lambda size: [
                relay.with_waiting(src_id, size)
                for src_id in (CONCERNED, SAME_DATABASE, OTHER_DATABASE)
            ],
        )
    return [
        Curve("consumers: a commit, all told of it", "consumers", told),
        Curve("consumers: a commit, others wait for another table", "waiting", same, FLAT),
        Curve("consumers: a commit, others wait for another database", "waiting", other, FLAT),
    ]


@contextmanager
def stage() -> Iterator[Stage]:
    """Run the relay."""
    with tempfile.TemporaryDirectory(prefix="databus-growth-") as folder:
        port = free_port()
        with child(run_relay, (folder, port)) as url:
            yield Stage(url, int((Path(folder) / "pid").read_text()), port)
