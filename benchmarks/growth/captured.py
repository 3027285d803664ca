"""The CPU that a relay takes to capture a log that is written, or is being written.

The clock is that of the capturing process, all threads: from the moment its stream is open,
to the moment when the ring has an SCN. What a relay does before, it does once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from benchmarks.capture.log import log_end
from benchmarks.capture.readers import PHYSICAL, relay_settings, wait_for_scn
from benchmarks.growth.processes import apart
from databus.daemon.service import settle
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import wait_until
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import Newest
from databus.schemas.scn import BinlogPosition

RING_BYTES = 64 << 20
_OPEN_TIMEOUT_S = 120.0
_QUIET_S = 0.2  # what a start leaves to do is done by then


@dataclass(frozen=True, slots=True)
class Log:
    """A log of a server from a position on, and the tables whose rows are captured."""

    uri: str
    password: str
    sources: tuple[str, ...]
    begin: BinlogPosition
    ring_bytes: int = RING_BYTES


class MarkedSource(MysqlSource):
    """The relay's source, which records the CPU time when its stream is open."""

    opened_cpu_s = 0.0

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Open, and record the CPU time."""
        super().open(after_scn, newest)
        MarkedSource.opened_cpu_s = time.process_time()


def log_from(
    server: PrivateMariaDB, cursor: Cursor, sources: Sequence[str], ring_bytes: int = RING_BYTES
) -> Log:
    """Begin a new file of the log; return the log from there."""
    cursor.execute("FLUSH BINARY LOGS")
    begin = log_end(cursor)[1]
    return Log(server.uri, server.password, tuple(sources), begin, ring_bytes)


def end_scn(cursor: Cursor) -> int:
    """Return the SCN of the last transaction that was written."""
    return log_end(cursor)[1].to_scn()


def capture_cpu(log: Log, scn: int) -> float:
    """Return the CPU seconds after which a new relay's ring had an SCN."""
    with tempfile.TemporaryDirectory(prefix="databus-growth-") as folder:
        return apart(_capture, log, scn, Path(folder))


def phases_cpu(log: Log, statements: Sequence[str], folder: Path) -> list[float]:
    """Return the CPU seconds for what each of these statements writes, one after another.

    The relay, whose files are in the folder, has captured all that was written before. Each
    statement is one block that runs on the server, so that sending it costs next to nothing.
    """
    return apart(_capture_phases, log, statements, folder)


def start_cpu(log: Log, folder: Path) -> float:
    """Return the CPU seconds of a relay that starts again, with its files in the folder.

    From settings to an open stream; imports are not counted.
    """
    return apart(_start, log, folder)


@contextmanager
def _capturing(log: Log, folder: Path) -> Iterator[PhysicalSource]:
    settings = relay_settings(folder, log.uri, log.password, log.sources, log.begin, log.ring_bytes)
    relay = Relay(settings, MarkedSource)
    try:
        relay.start()
        settle()  # as in the daemon
        yield relay.physical_sources[PHYSICAL]
    finally:
        relay.stop()


def _capture(log: Log, scn: int, folder: Path) -> float:
    with _capturing(log, folder) as source:
        wait_for_scn(source, scn)
        return time.process_time() - MarkedSource.opened_cpu_s


def _capture_phases(log: Log, statements: Sequence[str], folder: Path) -> list[float]:
    with _capturing(log, folder) as source, _session(log) as cursor:
        _wait_until_open(source)
        costs = []
        for statement in statements:
            time.sleep(_QUIET_S)
            began_s = time.process_time()
            cursor.execute(statement)
            wait_for_scn(source, end_scn(cursor))
            costs.append(time.process_time() - began_s)
        return costs


def _start(log: Log, folder: Path) -> float:
    began_s = time.process_time()
    with _capturing(log, folder) as source:
        _wait_until_open(source)
        return MarkedSource.opened_cpu_s - began_s


def _wait_until_open(source: PhysicalSource) -> None:
    wait_until(lambda: source.capture.status.was_opened, _OPEN_TIMEOUT_S, "the stream")


@contextmanager
def _session(log: Log) -> Iterator[Cursor]:
    place = urlsplit(log.uri)
    connection: Connection[Cursor] = pymysql.connect(
        host=place.hostname,
        port=place.port or 0,
        user=place.username,
        password=log.password,
        autocommit=True,
    )
    with closing(connection), connection.cursor() as cursor:
        yield cursor
