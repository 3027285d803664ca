"""Events made by hand: MySQL's own, damaged ones, and those that must stop capture."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given, strategies as st
from pymysqlreplication.constants import BINLOG

from databus.relay.sources.mysql.binlog.packets import StreamBrokenError
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Definition, Dialect
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import TableDefined, TableEmptied, Transaction
from databus.schemas.event.metadata import Op
from databus.schemas.scn import BinlogPosition
from tests.relay.sources.mysql.binlog import events_made as made

INT, JSON = 3, 245
DIALECT = Dialect(is_mariadb=False, collations={45: "utf8mb4", 63: "binary"})
STATEMENT_END = BinlogPosition(0, 7, 1000).to_scn()


def tables_of(*columns: DefinedColumn) -> WatchedTables:
    """Return what knows `d.t (id INT, [v …])` from the beginning of the log."""
    history = History()
    definition = Definition((DefinedColumn("id", "int", False), *columns), ("id",))
    versions = {("d", "t"): TableVersion(definition, "utf8mb4")}
    history.begin(Record(0, versions, {"d": "utf8mb4"}, is_beginning=True))
    return WatchedTables(Names(["d.t"]), Rules(DIALECT), history, lambda _begin, _end: {})


def assembler(*columns: DefinedColumn, acknowledged: tuple[int, ...] = ()) -> Assembler:
    made_one = Assembler(tables_of(*columns), DIALECT, acknowledged=acknowledged)
    for data in (made.rotate(offset=500), made.format_description()):
        assert made_one.receive(data) is None
    return made_one


def feed(target: Assembler, *stream: bytes) -> list[Transaction]:
    found = [target.receive(there(target, data)) for data in stream]
    return [t for t in found if t is not None]


def there(target: Assembler, data: bytes) -> bytes:
    """Return an event with the place that it has there, if it says one inside a transaction."""
    if target._group is None or data[4] == BINLOG.ROTATE_EVENT or not any(data[13:17]):
        return data
    return made.placed(data, start=int(target.position.rpartition(":")[2]))[0]


def image(number: int, rest: bytes = b"") -> bytes:
    return b"\0" + struct.pack("<i", number) + rest


INSERT = made.rows_v2(BINLOG.WRITE_ROWS_EVENT_V2, 1, image(7))


def test_a_transaction_of_mysql_8_has_its_gtid_and_microseconds() -> None:
    target = assembler()
    (found,) = feed(
        target,
        made.mysql_gtid(),
        made.query("BEGIN"),
        made.table_map(bytes([INT])),
        INSERT,
        made.rows_v2(BINLOG.UPDATE_ROWS_EVENT_V2, 1, image(7) + image(8)),
        made.rows_v2(BINLOG.DELETE_ROWS_EVENT_V2, 1, image(8)),
        made.xid(),
    )
    assert BinlogPosition(0, 7, 500).to_scn() < found.scn
    assert target.position == f"binlog.000007:{found.scn & 0xFFFFFFFF}"
    assert found.timestamp_ns == 1_700_000_000_123_456_000
    assert found.origin.gtid == "3e11fa47-71ca-11e1-9e33-c80aa9429562:23"
    assert [(c.op, c.row["id"]) for c in found.changes] == [
        (Op.INSERT, 7),
        (Op.DELETE, 7),
        (Op.INSERT, 8),
        (Op.DELETE, 8),
    ]


def test_a_transaction_without_gtids_begins_with_its_begin() -> None:
    (found,) = feed(
        assembler(), made.query("BEGIN"), made.table_map(bytes([INT])), INSERT, made.xid()
    )
    assert (found.origin.gtid, found.origin.offset) == (None, 1000 - len(made.query("BEGIN")))


def test_a_group_that_a_crash_cut_off_is_dropped_at_the_next_file() -> None:
    target = assembler()
    feed(target, made.query("BEGIN"), made.table_map(bytes([INT])), INSERT)
    feed(target, made.rotate("binlog.000008"), made.format_description())
    (found,) = feed(target, made.query("BEGIN"), made.xid())
    assert found.changes == ()


@pytest.mark.parametrize(
    ("type_code", "says"),
    [
        (26, "lost from its log"),
        (20, "unknown event"),
        (99, "unknown event"),
        (0, "unknown event"),
    ],
)
def test_events_that_cannot_be_passed_stop_with_their_place(type_code: int, says: str) -> None:
    with pytest.raises(AssemblyStopped, match=says) as caught:
        assembler().receive(made.event(type_code))
    assert caught.value.scn == STATEMENT_END
    assert caught.value.position.startswith("binlog.000007:1000, event ")
    assert f"({type_code})" in caught.value.position


def test_an_acknowledged_place_is_passed() -> None:
    target = assembler(acknowledged=(STATEMENT_END,))
    assert feed(target, made.event(26)) == []


@pytest.mark.parametrize("acknowledged", [(), (STATEMENT_END,)])
def test_a_full_disk_under_the_tables_history_is_no_fault_of_the_statement(
    acknowledged: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise ValueError("the history cannot be written") from OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(WatchedTables, "apply", full)
    with pytest.raises(ValueError, match="cannot be written"):
        assembler(acknowledged=acknowledged).receive(made.query("ALTER TABLE t ADD v INT"))


@pytest.mark.parametrize("type_code", [3, 5, 13, 14, 27, 28, 35, 36, 37, 41, 161, 163, 164])
def test_harmless_events_are_passed(type_code: int) -> None:
    assert feed(assembler(), made.event(type_code, end_offset=0)) == []


@pytest.mark.parametrize("type_code", [20, 99, 200])
def test_an_event_that_is_not_known_is_passed_only_when_it_says_so(type_code: int) -> None:
    assert feed(assembler(), made.event(type_code, flags=0x80)) == []
    with pytest.raises(AssemblyStopped, match="not marked as ignorable"):
        assembler().receive(made.event(type_code, flags=0x7F & ~0x20))


def test_a_wrong_checksum_stops() -> None:
    target = assembler()
    target.receive(made.format_description(checksum=True))
    good = made.event(BINLOG.XID_EVENT, bytes(8), checksum=True)
    assert target.receive(good) is not None
    with pytest.raises(AssemblyStopped, match="checksum"):
        target.receive(good[:-1] + bytes([good[-1] ^ 1]))


def test_rows_of_a_table_that_was_not_announced_stop() -> None:
    target = assembler()
    feed(target, made.query("BEGIN"))
    with pytest.raises(AssemblyStopped, match="no TABLE_MAP has announced"):
        target.receive(INSERT)


def test_an_image_that_lacks_a_column_stops_naming_it() -> None:
    target = assembler(DefinedColumn("v", "int", True))
    feed(target, made.query("BEGIN"), made.table_map(bytes([INT, INT]), nullable=2))
    with pytest.raises(AssemblyStopped, match=r"lacks v: .*binlog_row_image=FULL"):
        target.receive(made.rows_v2(BINLOG.WRITE_ROWS_EVENT_V2, 2, image(7), present=1))


@pytest.mark.parametrize(
    ("types", "lengths", "says"),
    [
        (bytes([INT]), b"", "log has 1 columns and the database 2"),
        (bytes([INT, 8]), b"", "column 'v': logged as type 8, and defined as int"),
        (bytes([INT, 200]), b"", "column type 200 is not known"),
    ],
)
def test_a_table_that_differs_from_its_definition_stops(
    types: bytes, lengths: bytes, says: str
) -> None:
    target = assembler(DefinedColumn("v", "int", False))
    with pytest.raises(AssemblyStopped, match=says):
        feed(target, made.query("BEGIN"), made.table_map(types, lengths))


def test_a_rolled_back_group_is_empty() -> None:
    target = assembler()
    feed(target, made.query("BEGIN"), made.table_map(bytes([INT])), INSERT)
    (found,) = feed(target, made.query("ROLLBACK", end_offset=2000))
    assert found.changes == ()


def test_a_savepoint_that_was_never_set_stops() -> None:
    target = assembler()
    feed(target, made.query("BEGIN"), made.table_map(bytes([INT])), INSERT)
    with pytest.raises(AssemblyStopped, match="savepoint that was not set"):
        feed(target, made.query("ROLLBACK TO `s`"))


def test_a_statement_is_followed_and_handed_on_in_its_place() -> None:
    tables = tables_of()
    target = Assembler(tables, DIALECT)
    feed(target, made.rotate(), made.format_description())
    (altered,) = feed(target, made.query("ALTER TABLE t ADD COLUMN b INT"))
    assert altered.changes == (TableDefined(("d.t",), "d", "ALTER TABLE t ADD COLUMN b INT"),)
    assert [c.name for c in tables.tables()[0].columns] == ["id", "b"]
    feed(target, made.query("ALTER TABLE other ADD COLUMN b INT", end_offset=2000))
    assert [c.name for c in tables.tables()[0].columns] == ["id", "b"]


def test_sql_mode_and_charset_of_a_statement_are_heeded() -> None:
    status = b"\0" + bytes(4) + b"\x01" + (4).to_bytes(8, "little") + b"\x06\x03std"
    status += b"\x04" + struct.pack("<HHH", 45, 45, 45)
    (emptied,) = feed(assembler(), made.query('TRUNCATE "t"', status=status))
    (gone, defined) = emptied.changes
    assert isinstance(gone, TableEmptied)
    assert gone.table.source == "d.t"
    assert defined == TableDefined(("d.t",), "d", 'TRUNCATE "t"')


def test_a_mysql_json_column_is_delivered_as_text() -> None:
    target = assembler(DefinedColumn("j", "json", True))
    document = bytes.fromhex("00 01000c00 0b000100 050700 61".replace(" ", ""))
    packed = struct.pack("<I", len(document)) + document
    (found,) = feed(
        target,
        made.query("BEGIN"),
        made.table_map(bytes([INT, JSON]), b"\x04", nullable=2),
        made.rows_v2(BINLOG.WRITE_ROWS_EVENT_V2, 2, image(7, packed), present=3),
        made.xid(),
    )
    assert found.changes[0].row == {"id": 7, "j": '{"a": 7}'}


def problem_of(target: Assembler, data: bytes) -> str | None:
    """Return why an event stops capture or breaks the stream, or None; any other error fails."""
    try:
        target.receive(data)
    except AssemblyStopped as stopped:
        return stopped.problem
    except StreamBrokenError as broken:
        return str(broken)
    return None


KINDS = [2, 4, 15, 16, 19, 27, 30, 31, 33, 38, 39, 40, 41, 42, 160, 162, *range(165, 172)]


@given(st.binary(max_size=120), st.sampled_from(KINDS))
def test_damaged_events_stop_and_raise_nothing_else(body: bytes, type_code: int) -> None:
    target = assembler()
    feed(target, made.query("BEGIN"), made.table_map(bytes([INT])))
    assert problem_of(target, made.event(type_code, body)) != ""


@given(st.binary(max_size=60))
def test_bytes_that_are_no_event_stop(data: bytes) -> None:
    with pytest.raises(AssemblyStopped):
        assembler().receive(data)


@given(st.data())
def test_cut_rows_and_table_maps_stop(data: st.DataObject) -> None:
    target = assembler()
    feed(target, made.query("BEGIN"))
    whole = data.draw(st.sampled_from([made.table_map(bytes([INT])), INSERT]))
    if whole is INSERT:
        feed(target, made.table_map(bytes([INT])))
    body = whole[19 : data.draw(st.integers(19, len(whole) - 1))]
    # Nothing but whole rows may be missing unnoticed: the size in the header guards those.
    assert problem_of(target, made.event(whole[4], body)) is not None or len(body) >= 15
