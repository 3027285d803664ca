"""Events that no server at hand writes, made by hand: MySQL's own, and offsets beyond 4 GiB."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, strategies as st
from pymysqlreplication.constants import BINLOG

from databus.relay.sources.mysql.binlog import compressed
from databus.relay.sources.mysql.binlog.compressed import inflate
from databus.relay.sources.mysql.binlog.packets import StreamBrokenError
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.rows.json_diff import apply_differences
from databus.relay.sources.mysql.rows.layout import DefinedColumn
from databus.relay.sources.mysql.server.start_position import (
    LogFile,
    SearchedPlace,
    Start,
    start_at_setting,
)
from databus.schemas.event.metadata import Op
from databus.schemas.scn import MAX_OFFSET, BinlogPosition
from tests.relay.sources.mysql.binlog import events_made as made
from tests.relay.sources.mysql.replication.test_assembler import (
    DIALECT,
    INSERT,
    INT,
    JSON,
    assembler,
    feed,
    image,
    problem_of,
    tables_of,
)

TABLE_MAP = made.table_map(bytes([INT]))
BEGIN = made.query("BEGIN")
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize("compression", [0, 255])
def test_a_payload_is_one_transaction_at_its_own_end(compression: int) -> None:
    payload = made.payload(BEGIN, TABLE_MAP, INSERT, made.xid(), compression=compression)
    (found,) = feed(assembler(), made.mysql_gtid(), payload)
    assert [(c.op, c.row) for c in found.changes] == [(Op.INSERT, {"id": 7})]
    assert found.scn == BinlogPosition(0, 7, 900 + len(payload)).to_scn()
    assert found.origin.gtid == f"{UUID}:23"
    assert found.timestamp_ns == 1_700_000_000_123_456_000


def test_rows_behind_a_payload_are_read_as_before() -> None:
    target = assembler()
    payload = made.payload(BEGIN, TABLE_MAP, INSERT, made.xid())
    stream = [payload, BEGIN, TABLE_MAP, INSERT, made.xid()]
    found = feed(target, made.mysql_gtid(), *made.placed(*stream, start=900))
    assert [t.changes[0].row["id"] for t in found] == [7, 7]


def test_a_payload_of_many_events_is_unpacked_event_by_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    insert = made.rows_v2(
        BINLOG.WRITE_ROWS_EVENT_V2, 1, b"".join(image(number) for number in range(10_000))
    )
    monkeypatch.setattr(compressed, "LARGEST_EVENT_BYTES", len(insert))
    payload = made.payload(BEGIN, TABLE_MAP, *[insert] * 20, made.xid())
    assert len(payload) < len(insert)
    (found,) = feed(assembler(), made.mysql_gtid(), payload)
    assert len(found.changes) == 200_000


@pytest.mark.parametrize(
    ("inside", "options", "says"),
    [
        ([BEGIN, TABLE_MAP, INSERT], {}, "without its end"),
        ([], {}, "without its end"),
        ([BEGIN, made.xid(), BEGIN], {}, "behind the end"),
        ([BEGIN, made.mysql_gtid()], {}, "inside a transaction's payload"),
        ([made.rotate()], {}, "inside a transaction's payload"),
        ([made.payload()], {}, "inside a transaction's payload"),
        ([BEGIN, made.xid()], {"compression": 7}, "compression 7"),
        ([BEGIN, made.xid()], {"size": 40}, "inside"),
        ([BEGIN, made.xid()], {"size": 1 << 40}, "ends too early"),
        ([BEGIN, made.xid()], {"size": len(BEGIN)}, "more than it says"),
    ],
)
def test_a_payload_that_is_not_one_transaction_stops(
    inside: list[bytes], options: dict[str, int], says: str
) -> None:
    target = assembler()
    feed(target, made.mysql_gtid())
    with pytest.raises(AssemblyStopped, match=says):
        target.receive(made.payload(*inside, **options))


def test_a_tagged_gtid_names_its_transaction() -> None:
    body = [made.tagged_gtid("nightly", 1 << 40), BEGIN, TABLE_MAP, INSERT, made.xid()]
    (found,) = feed(assembler(), *made.placed(*body, start=500))
    assert found.origin.gtid == f"{UUID}:nightly:{1 << 40}"
    assert found.timestamp_ns == 1_700_000_000_123_456_000
    assert found.origin.offset == 500


def test_a_gtid_event_of_the_new_kind_may_have_no_tag() -> None:
    body = [made.tagged_gtid("", 5), BEGIN, made.xid()]
    (found,) = feed(assembler(), *made.placed(*body, start=500))
    assert found.origin.gtid == f"{UUID}:5"


def test_a_tagged_gtid_with_a_field_that_must_be_known_stops() -> None:
    with pytest.raises(AssemblyStopped, match="field 30"):
        assembler().receive(made.event(42, made.varint(1) + made.varint(3) + made.varint(30)))


def test_an_anonymous_gtid_begins_a_transaction_without_a_name() -> None:
    anonymous = made.mysql_gtid()[:4] + bytes([34]) + made.mysql_gtid()[5:]
    (found,) = feed(assembler(), anonymous, made.query("BEGIN"), made.xid())
    assert (found.origin.gtid, found.origin.offset) == (None, 900 - len(anonymous))


# Differences of MySQL's PARTIAL_JSON, from its description: operation, path, value.
def difference(operation: int, path: str, value: str = "") -> bytes:
    data = bytes.fromhex(value.replace(" ", ""))
    found = bytes([operation, len(path.encode())]) + path.encode()
    return found + (made.packed(len(data)) + data if operation < 2 else b"")


STRING_B, NUMBER_5, TRUE, DOUBLE_1 = "0c 01 62", "05 0500", "04 01", "0b 000000000000f03f"
OBJECT_A_7 = "00 01000c00 0b000100 050700 61"


@pytest.mark.parametrize(
    ("before", "differences", "after"),
    [
        ('{"a": 1}', difference(0, "$.a", NUMBER_5), '{"a": 5}'),
        ('{"a": 1}', difference(1, "$.b", STRING_B), '{"a": 1, "b": "b"}'),
        ('{"bb": 1, "c": 2}', difference(1, '$."a b"', TRUE), '{"c": 2, "bb": 1, "a b": true}'),
        ('{"a": 1, "b": 2}', difference(2, "$.a"), '{"b": 2}'),
        ('{"a": [1, [2]]}', difference(0, "$.a[1][0]", DOUBLE_1), '{"a": [1, [1.0]]}'),
        ("[1, 2]", difference(1, "$[1]", NUMBER_5), "[1, 5, 2]"),
        ("[1, 2]", difference(1, "$[2]", NUMBER_5), "[1, 2, 5]"),
        ("[1, 2]", difference(2, "$[0]"), "[2]"),
        ("[1]", difference(0, "$", OBJECT_A_7), '{"a": 7}'),
        ('{"x": {"y": 1}}', difference(0, "$.x", OBJECT_A_7), '{"x": {"a": 7}}'),
        (
            '{"n": 1.10, "big": 18446744073709551615, "s": "é\\""}',
            difference(1, "$.z", NUMBER_5) + difference(2, "$.s"),
            '{"n": 1.10, "z": 5, "big": 18446744073709551615}',
        ),
        ('{"q\\"": 1}', difference(2, '$."q\\""'), "{}"),
        ('{"é": 1}', difference(0, '$."é"', TRUE), '{"é": true}'),
        ('{"a": 1}', b"", '{"a": 1}'),
    ],
)
def test_differences_make_the_json_that_the_server_has(
    before: str, differences: bytes, after: str
) -> None:
    assert apply_differences(before, differences) == after


@pytest.mark.parametrize(
    ("before", "differences"),
    [
        ('{"a": 1}', difference(0, "$.b", NUMBER_5)),
        ('{"a": 1}', difference(1, "$.a", NUMBER_5)),
        ('{"a": 1}', difference(2, "$.b")),
        ('{"a": 1}', difference(1, "$.b.c", NUMBER_5)),
        ("[1]", difference(0, "$[1]", NUMBER_5)),
        ("[1]", difference(1, "$.a", NUMBER_5)),
        ("1", difference(1, "$[0]", NUMBER_5)),
        ("[1]", difference(2, "$")),
        ("[1]", difference(3, "$[0]")),
        ("[1]", difference(2, "[0]")),
        ("[1]", difference(2, "$[*]")),
        ("[1]", difference(0, "$[0]", "63 00")),
        ("[1]", b"\x00\x09$"),
    ],
)
def test_differences_that_do_not_fit_are_refused(before: str, differences: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        apply_differences(before, differences)


JSON_MAP = made.table_map(bytes([INT, JSON, JSON]), b"\x04\x04", nullable=6)


def json_field(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def partial_update(options: bytes, after: bytes, *, present: int = 7) -> bytes:
    before = b"\0" + struct.pack("<i", 1) + json_field(bytes.fromhex(OBJECT_A_7.replace(" ", "")))
    before += json_field(bytes.fromhex("020000 0400".replace(" ", "")))
    extra = struct.pack("<IHHH", 5, 0, 1, 2)
    body = extra + b"\x03" + bytes([present]) * 2 + before + options + after
    return made.event(39, body, end_offset=0)


def json_assembler() -> Assembler:
    target = assembler(DefinedColumn("j", "json", True), DefinedColumn("k", "json", True))
    feed(target, BEGIN, JSON_MAP)
    return target


def test_a_partial_update_of_json_gives_the_whole_row() -> None:
    parts = json_field(difference(0, "$.a", NUMBER_5))
    whole = json_field(bytes.fromhex(OBJECT_A_7.replace(" ", "")))
    row = b"\0" + struct.pack("<i", 1)
    target = json_assembler()
    (found,) = feed(
        target,
        partial_update(b"\x01\x01", row + parts + whole),
        partial_update(b"\x00", row + whole + whole),
        made.xid(end_offset=2000),
    )
    first, second = found.changes
    assert first.op is Op.UPDATE
    assert first.before == {"id": 1, "j": '{"a": 7}', "k": "[]"}
    assert first.row == {"id": 1, "j": '{"a": 5}', "k": '{"a": 7}'}
    assert second.row == {"id": 1, "j": '{"a": 7}', "k": '{"a": 7}'}


def test_a_partial_update_without_the_value_before_stops() -> None:
    parts = json_field(difference(0, "$.a", NUMBER_5))
    row = b"\0" + struct.pack("<i", 1)
    with pytest.raises(AssemblyStopped, match=r"row image lacks j, k.*binlog_row_image=FULL"):
        json_assembler().receive(partial_update(b"\x01\x01", row + parts, present=1))
    null_before = b"\x02" + struct.pack("<i", 1) + json_field(b"") + b"\x01\x01" + row + parts * 2
    body = struct.pack("<IHHH", 5, 0, 1, 2) + b"\x03\x07\x07" + null_before
    with pytest.raises(AssemblyStopped, match=r"column .j.*no value before"):
        json_assembler().receive(made.event(39, body, end_offset=0))


def compressed_insert() -> bytes:
    plain = INSERT[19:]
    start = len(plain) - len(image(7))
    return made.event(169, plain[:start] + made.deflated(plain[start:]), end_offset=0)


def test_compressed_rows_of_version_2_are_read() -> None:
    (found,) = feed(assembler(), BEGIN, TABLE_MAP, compressed_insert(), made.xid())
    assert found.changes[0].row == {"id": 7}


def test_what_is_compressed_may_not_be_other_than_it_says() -> None:
    good = made.deflated(b"x" * 1000)
    assert inflate(good) == b"x" * 1000
    for bad in (
        good[:-5],
        b"\x82\x03\xe7" + good[3:],
        b"\x82\x03\xe9" + good[3:],
        b"\x92" + good[1:],
        b"\x84\xff\xff\xff\xff" + good[3:],
        b"",
    ):
        with pytest.raises(ValueError, match=r"."):
            inflate(bad)


def test_offsets_that_are_not_said_are_counted() -> None:
    # MariaDB ≥ 11.4: only what begins a transaction and what ends it has one.
    stream = [made.query("BEGIN", end_offset=1000), TABLE_MAP, INSERT, made.xid(end_offset=0)]
    (found,) = feed(assembler(), *stream)
    assert found.scn & MAX_OFFSET == 1000 + sum(map(len, stream[1:]))


def test_an_event_that_says_another_place_than_it_has_breaks_the_stream() -> None:
    target = assembler()
    feed(target, BEGIN)
    with pytest.raises(StreamBrokenError, match="ends at 1027, but its header has the end 400"):
        target.receive(made.xid(end_offset=400))


def test_transactions_beyond_4_gib_are_one_at_the_next_file() -> None:
    target = Assembler(tables_of(), DIALECT)
    start = (1 << 32) - 100
    feed(target, made.rotate(offset=start), made.format_description())
    stream = [BEGIN, TABLE_MAP, INSERT, made.xid()] * 2
    assert feed(target, *made.placed(*stream, start=start)) == []
    assert target.position.endswith(f":{start + sum(map(len, stream))}")
    (found,) = feed(target, made.rotate("binlog.000008"))
    assert found.scn == BinlogPosition(0, 8, 4).to_scn()
    assert [c.row["id"] for c in found.changes] == [7, 7]
    assert found.origin.offset == start
    # What the new file begins with comes behind it.
    feed(target, made.format_description(end_offset=4 + len(made.format_description())))
    later = target.take_held()
    assert later is not None
    assert later.scn > found.scn


def test_a_stop_beyond_4_gib_says_where() -> None:
    target = Assembler(tables_of(), DIALECT)
    feed(target, made.rotate(offset=(1 << 32) - 4), made.format_description())
    with pytest.raises(AssemblyStopped, match="lost") as caught:
        feed(target, *made.placed(made.event(26), start=(1 << 32) - 4))
    assert caught.value.position.startswith(f"binlog.000007:{(1 << 32) + 15}")
    assert caught.value.scn == BinlogPosition(0, 7, MAX_OFFSET).to_scn()


def no_search(place: SearchedPlace) -> Start:
    raise AssertionError(place)


def test_the_end_of_a_file_beyond_4_gib_is_no_place_to_begin() -> None:
    files = [LogFile("binlog.000007", 1 << 32)]
    with pytest.raises(ValueError, match="FLUSH BINARY LOGS"):
        start_at_setting("latest", 0, files, no_search, is_mariadb=True)


@pytest.mark.parametrize("beat", [made.heartbeat, made.heartbeat_v2])
def test_a_heartbeat_that_is_repeated_moves_the_scn(beat: object) -> None:
    target = assembler()
    assert callable(beat)
    feed(target, made.query("BEGIN"), made.xid())
    end = 1000 + len(made.xid())
    assert feed(target, beat(made.FILE, end), beat(made.FILE, end)) == []
    assert target.take_held() is None
    # Events that the server leaves out: the place is believed when it is said twice.
    assert feed(target, beat(made.FILE, 9000)) == []
    assert target.take_held() is None
    feed(target, beat(made.FILE, 9000))
    held = target.take_held()
    assert held is not None
    assert held.scn == BinlogPosition(0, 7, 9000).to_scn()
    assert held.timestamp_ns == 1_700_000_000 * 10**9
    feed(target, beat(made.FILE, 9000))
    assert target.take_held() is None


def test_a_log_that_ends_with_harmless_events_is_read_to_its_end() -> None:
    target = Assembler(tables_of(), DIALECT)
    checkpoint = made.event(BINLOG.MARIADB_BINLOG_CHECKPOINT_EVENT)
    stream = made.placed(made.query("BEGIN"), made.xid(), checkpoint, start=4)
    beat = made.heartbeat(made.FILE, 4 + sum(map(len, stream)))
    feed(target, made.rotate(), made.format_description(), *stream, beat)
    assert target.take_held() is None
    feed(target, beat)
    held = target.take_held()
    assert held is not None
    assert (held.scn & MAX_OFFSET, held.changes) == (4 + sum(map(len, stream)), ())
    feed(target, beat, beat)
    assert target.take_held() is None


def test_a_heartbeat_inside_a_transaction_or_of_another_file_moves_nothing() -> None:
    target = assembler()
    feed(target, *[made.heartbeat("binlog.000009", 9000)] * 2)
    feed(target, made.query("BEGIN"), *[made.heartbeat(made.FILE, 9000)] * 2)
    assert target.take_held() is None
    (found,) = feed(target, made.xid())
    assert found.scn == BinlogPosition(0, 7, 1000 + len(made.xid())).to_scn()


WHOLE = [
    [made.mysql_gtid(), made.payload(BEGIN, TABLE_MAP, INSERT, made.xid())],
    [made.tagged_gtid("t", 9), BEGIN, TABLE_MAP, compressed_insert(), made.xid(end_offset=0)],
    [BEGIN, JSON_MAP, partial_update(b"\x01\x01", b"\0" + bytes(4) + json_field(b"") * 2)],
]


@given(st.sampled_from(WHOLE), st.data())
def test_flipped_and_cut_bytes_end_in_a_stop_or_in_rows(
    stream: list[bytes], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(stream) - 1))
    body = bytearray(stream[which][19:])
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    del body[data.draw(st.integers(1, len(body))) :]
    target = assembler()
    for index, event in enumerate(stream):
        damaged = made.event(event[4], bytes(body), end_offset=0) if index == which else event
        if problem_of(target, damaged) is not None:
            break
