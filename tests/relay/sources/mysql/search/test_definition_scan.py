"""The search for statements finds the same in compiled code and in Python.

What real servers write is compared, damaged too, by `benchmarks.capture_fuzz`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, strategies as st
from pymysqlreplication.constants import BINLOG

from databus.relay.sources.mysql.binlog.packets import PacketReader, StreamBrokenError, StreamEnded
from databus.relay.sources.mysql.rows.layout import Dialect
from databus.relay.sources.mysql.search.definition_scan import (
    DefinitionScan,
    read_chunks,
    read_events,
)
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.names import Names
from databus.schemas.scn import BinlogPosition
from tests.relay.sources.mysql.binlog import events_made as made
from tests.relay.sources.mysql.replication.test_decoder import packets

DIALECT = Dialect(True, {45: "utf8mb4"}, {"utf8mb4": 4})
FILE = 7
END = BinlogPosition(0, FILE, 1 << 30).to_scn()


def mariadb_gtid(*, more: bytes = b"", flags: int = 0) -> bytes:
    return made.event(BINLOG.MARIADB_GTID_EVENT, struct.pack("<QIB", 5, 0, flags) + more)


def rows(size: int = 60) -> bytes:
    return made.rows_v2(BINLOG.WRITE_ROWS_EVENT_V2, 1, bytes(size))


TABLE_MAP = made.table_map(b"\x03")
ROWS = [made.mysql_gtid(), made.query("BEGIN"), TABLE_MAP, rows(), made.xid()]
ALTER_T, ALTER_OTHER = made.query("ALTER TABLE t ADD b INT"), made.query("CREATE TABLE o (a INT)")


def stream(*events: bytes, checksum: bool = True, start: int = 500) -> list[bytes]:
    placed = made.placed(*(with_checksum(e) if checksum else e for e in events), start=start)
    return [
        made.rotate(offset=start),
        made.format_description(checksum=checksum),
        *(summed(event) if checksum else event for event in placed),
    ]


def with_checksum(event: bytes) -> bytes:
    return event[:9] + struct.pack("<I", len(event) + 4) + event[13:] + bytes(4)


def summed(event: bytes) -> bytes:
    return event[:-4] + struct.pack("<I", crc32(event[:-4]))


def new_scan(end: int = END) -> DefinitionScan:
    return DefinitionScan(Names(["d.t"]), Rules(DIALECT), 0, end)


def in_python(scan: DefinitionScan, chunks: Sequence[bytes]) -> None:
    def events() -> Iterable[bytes]:
        reader = PacketReader()
        for chunk in chunks:
            yield from reader.receive(chunk)

    read_events(scan, events())


def compiled(scan: DefinitionScan, chunks: Sequence[bytes]) -> None:
    read_chunks(scan, ((chunk, len(chunk)) for chunk in chunks))


Way = Callable[[DefinitionScan, Sequence[bytes]], None]


def outcome(way: Way, chunks: Sequence[bytes], end: int = END) -> tuple[Any, ...]:
    scan, problem = new_scan(end), ""
    try:
        way(scan, chunks)
    except (StreamEnded, StreamBrokenError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    cursor = scan.placer.cursor
    return scan.found, scan.is_over, cursor.file, cursor.offset, problem


def cut(data: bytes, seed: int) -> list[bytes]:
    draw, found = random.Random(seed), []
    while data:
        size = draw.choice([1, 3, 17, 40, 1000, 1 << 20])
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("way", [in_python, compiled])
@pytest.mark.parametrize("checksum", [True, False])
def test_it_finds_the_last_statement_of_each_table(way: Way, checksum: bool) -> None:
    events = stream(*ROWS, ALTER_T, *ROWS, ALTER_OTHER, ALTER_T, *ROWS, checksum=checksum)
    found, is_over, file, offset, problem = outcome(way, [packets(events)])
    lengths = [len(event) for event in events[2:]]
    scn = BinlogPosition(0, FILE, 500 + sum(lengths[:13])).to_scn()
    assert found == {("d", "t"): scn, ("d", "o"): scn - lengths[12]}
    assert (is_over, file, offset, problem) == (False, made.FILE, 500 + sum(lengths), "")


@pytest.mark.parametrize("way", [in_python, compiled])
def test_it_ends_at_its_scn(way: Way) -> None:
    events = stream(*ROWS, ALTER_T, *ROWS, ALTER_T)
    end = 500 + sum(len(event) for event in events[2:9])
    found, is_over, _, offset, _ = outcome(
        way, [packets(events)], BinlogPosition(0, FILE, end).to_scn()
    )
    assert is_over
    assert end < offset <= end + len(events[9])
    assert found == {("d", "t"): BinlogPosition(0, FILE, end - len(events[8])).to_scn()}


@pytest.mark.parametrize("way", [in_python, compiled])
def test_a_half_of_an_alter_counts_for_nothing(way: Way) -> None:
    begun = [mariadb_gtid(more=bytes([2])), made.query("START ALTER TABLE t ADD b INT"), ALTER_T]
    events = stream(*begun, mariadb_gtid(), made.query("BEGIN"), TABLE_MAP, rows(), made.xid())
    assert outcome(way, [packets(events)])[0] == {}
    assert outcome(way, [packets(stream(*begun, mariadb_gtid(), ALTER_T))])[0] != {}


def test_an_event_of_many_packets_is_skipped() -> None:
    events = stream(made.mysql_gtid(), rows(40 << 20), ALTER_T)
    data = packets(events)
    chunks = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
    assert outcome(compiled, chunks) == outcome(in_python, chunks)
    assert outcome(compiled, chunks)[0]


def test_the_end_of_the_stream_is_said_alike() -> None:
    for last in (b"\xfe\x00\x00\x02\x00", b"\xff\xd4\x04#HY000the log is gone", b""):
        events = packets(stream(*ROWS, ALTER_T))
        number = len(stream(*ROWS, ALTER_T)) + 1
        data = events + len(last).to_bytes(3, "little") + bytes([number]) + last
        assert outcome(compiled, [data]) == outcome(in_python, [data])
        assert "StreamEnded" in str(outcome(compiled, [data])[-1])


@given(seed=st.integers(0, 1 << 32))
def test_a_damaged_log_ends_both_with_the_same_words(seed: int) -> None:
    draw = random.Random(seed)
    choices = [
        *ROWS, ALTER_T, ALTER_OTHER, mariadb_gtid(), mariadb_gtid(more=b"\x02"),
        mariadb_gtid(flags=2), mariadb_gtid(flags=0x40), made.payload(ALTER_T, rows(), made.xid()),
        made.event(BINLOG.QUERY_EVENT, b"short"), made.query("COMMIT"),
    ]  # fmt: skip
    events = stream(*draw.choices(choices, k=12), checksum=draw.random() < 0.5)
    data = bytearray(packets(events))
    for _ in range(draw.randrange(3)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    chunks = cut(bytes(data), seed)
    end = draw.choice([END, BinlogPosition(0, FILE, 900).to_scn()])
    assert outcome(compiled, chunks, end) == outcome(in_python, chunks, end)
