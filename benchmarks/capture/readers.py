"""Three readers of one stretch of a binlog, each timed from its first byte to the last.

raw       the server's packets received into one buffer and forgotten
library   mysql-replication, row events only, each row decoded
capture   a relay: its source, ring and MaxSCN, as its settings make them

What is before the first byte (connecting, asking for tables) is left out of
all three.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from benchmarks.capture.log import Stretch
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.relay.capture.status import State
from databus.relay.log.reader import LogReader
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.ring.reader import RingReader
from databus.relay.sources.mysql.replication.dump import BinlogDump
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.start_position import Start
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import Newest
from databus.schemas.event.layout import V2, struct_of
from databus.schemas.scn import BinlogPosition

RAW_ID, LIBRARY_ID = 4241, 4242
PHYSICAL = "bench"
_BUFFER_BYTES = 4 << 20
_POLL_S = 0.002
_STALLED_S = 60.0
# The packet that ends a dump: length 5, sequence number, FE, warnings, status.
_END_BYTES = 9
_EVENT = struct_of(V2.length, V2.src_id, V2.long_key)
_READ_BYTES = 1 << 20


class WrongCountError(Exception):
    """A reader did not read what was written."""


@dataclass(frozen=True, slots=True)
class Passage:
    """The time that a reader took, and the amount that it read."""

    seconds: float
    rows: int
    transactions: int
    size_bytes: int


def settings_of(
    server: PrivateMariaDB, folder: Path, stretch: Stretch, ring_bytes: int
) -> RelaySettings:
    """Return the settings of a relay that starts at a stretch, with its files in a folder."""
    sources = (stretch.table.source,)
    return relay_settings(folder, server.uri, server.password, sources, stretch.begin, ring_bytes)


def relay_settings(
    folder: Path,
    uri: str,
    password: str,
    sources: tuple[str, ...],
    begin: BinlogPosition,
    ring_bytes: int,
) -> RelaySettings:
    """Return the settings of a relay of one server, with its files in a folder."""
    password_file = folder / "password"
    password_file.touch(0o600)
    password_file.write_text(password)
    physical = PhysicalSourceSettings(
        name=PHYSICAL,
        uri=uri,
        sources=sources,
        password_file=password_file,
        start=str(begin.to_scn()),
        ring_bytes=ring_bytes,
    )
    return RelaySettings(data_dir=folder / "data", physical_sources=(physical,))


def read_raw(settings: PhysicalSourceSettings, stretch: Stretch) -> Passage:
    """Receive and drop all bytes of a stretch at the end of the log."""
    start = Start(stretch.file, stretch.begin.offset)
    dump = BinlogDump(address_of(settings), start, RAW_ID, source=PHYSICAL, follows=False)
    try:
        socket = dump._connection._sock
        socket.settimeout(None)
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        receive = socket.recv_into
        tail = b""
        started = time.perf_counter()
        while not _is_end(tail):
            count = receive(buffer)
            if not count:
                raise WrongCountError("the server closed the raw stream before its end")
            tail = (tail + bytes(buffer[max(0, count - _END_BYTES) : count]))[-_END_BYTES:]
        seconds = time.perf_counter() - started
    finally:
        dump.close()
    return Passage(seconds, stretch.rows, stretch.transactions, stretch.size_bytes)


def _is_end(tail: bytes) -> bool:
    return tail[:3] == b"\x05\0\0" and tail[4:7] == b"\xfe\0\0"


def read_with_library(server: PrivateMariaDB, stretch: Stretch, rows: int) -> Passage:
    """Decode the first rows of a stretch with mysql-replication.

    The clock starts behind its first event, when it is connected.
    """
    reader = BinLogStreamReader(
        {"host": HOST, "port": server.port, "user": server.user, "password": server.password},
        server_id=LIBRARY_ID,
        log_file=stretch.file,
        log_pos=stretch.begin.offset,
        resume_stream=True,
        only_events=[WriteRowsEvent],
        enable_logging=False,
    )
    started, first, found = 0.0, 0, 0
    try:
        for event in reader:
            found += len(event.rows)
            if not started:
                started, first = time.perf_counter(), found
            elif found >= rows:
                break
        seconds = time.perf_counter() - started
    finally:
        reader.close()
    share = (found - first) / stretch.rows
    transactions = round(stretch.transactions * share)
    return Passage(seconds, found - first, transactions, round(stretch.size_bytes * share))


class TimedSource(MysqlSource):
    """The relay's source, which records when it begins to stream."""

    opened_at = 0.0

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Open, and record when that is done."""
        super().open(after_scn, newest)
        TimedSource.opened_at = time.perf_counter()


def read_with_capture(settings: RelaySettings, stretch: Stretch) -> Passage:
    """Capture a stretch into a ring; raises WrongCountError if something is missing."""
    relay = Relay(settings, TimedSource)
    try:
        source = relay.physical_sources[PHYSICAL]
        relay.start()
        ended = wait_for_scn(source, stretch.end.to_scn())
        check_counts(source, stretch)
        return Passage(
            ended - TimedSource.opened_at, stretch.rows, stretch.transactions, stretch.size_bytes
        )
    finally:
        relay.stop()


def wait_for_scn(source: PhysicalSource, scn: int) -> float:
    """Wait until the ring has an SCN; return that time. Raises WrongCountError."""
    reader, capture = source.reader, source.capture
    seen, since = 0, time.perf_counter()
    while reader.max_scn < scn:
        time.sleep(_POLL_S)
        status, now = capture.status, time.perf_counter()
        if status.problem or status.state is State.ERROR:
            raise WrongCountError(f"capture stopped: {status.problem}")
        if status.size_bytes != seen:
            seen, since = status.size_bytes, now
        elif now - since > _STALLED_S:
            raise WrongCountError(f"capture stands still at scn {status.scn}")
    return time.perf_counter()


def check_counts(source: PhysicalSource, stretch: Stretch) -> None:
    """Compare capture's counts and the ring's content with what was written."""
    status = source.capture.status
    counted, written = (status.events, status.windows), (stretch.rows, stretch.transactions)
    if counted != written:
        raise WrongCountError(
            f"{counted[0]} events in {counted[1]} windows were captured instead of "
            f"{written[0]} in {written[1]}"
        )
    keys = list(keys_held(source.reader))
    wanted = list(range(stretch.rows - len(keys) + 1, stretch.rows + 1))
    if not keys or keys != wanted:
        raise WrongCountError(f"the ring has not the last {len(keys)} rows in order")


def keys_held(reader: RingReader | LogReader) -> Iterator[int]:
    """Yield the keys of the row events that a ring or a log holds, whose keys are numbers."""
    position, tail = reader.head, reader.tail
    while position < tail:
        data = reader.read(position, _READ_BYTES)
        at = 0
        while at + _EVENT.size <= len(data):
            length, src_id, key = _EVENT.unpack_from(data, at)
            if src_id > 0:
                yield key
            at += length
        position += at


def peak_resident_bytes() -> int:
    """Return the largest resident size that this process ever had, mapped rings included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
