from __future__ import annotations

import errno
import json
from dataclasses import replace
from decimal import Decimal

import pytest

from databus.conf.source_names import NamedTable, SourceNames
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture import window_encoder
from databus.relay.capture.window_encoder import WindowEncoder, encode_empty
from databus.relay.sources.source import (
    Change,
    Origin,
    RowChange,
    TableAltered,
    TableDefined,
    TableEmptied,
    Transaction,
    UnfitRowError,
)
from databus.schemas.avro_rows import captured_table, row_codec, schema_id
from databus.schemas.errors import RowError, SchemaError, UnknownSourceError
from databus.schemas.event.control import LoggedStatement, end_of_period, statement_of
from databus.schemas.event.event import Event, Opcode
from databus.schemas.event.metadata import EventMetadata, Notes, Op, decode_metadata
from databus.schemas.event.v2 import encode, stamp
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table import Column, Table
from databus.schemas.table_change import UNSEEN, TableChange, change_of, shape_id
from databus.schemas.table_schema import avro_schema
from databus.schemas.windows import EmptyWindow
from tests.relay.fakes import ORDERS, PERSON, insert, transaction

WIDER = replace(PERSON, columns=(*PERSON.columns, Column("age", "integer", 2)))
KEYLESS = Table("shop.person", (Column("a", "text", 0),), dialect="sqlite")


@pytest.fixture
def registry() -> SchemaRegistry:
    made = SchemaRegistry(MemoryStore())
    made.add_source(PERSON.source, 1)
    made.add_source(ORDERS.source, 2)
    return made


def encoder(registry: SchemaRegistry, before_images: bool = True) -> WindowEncoder:
    return WindowEncoder(registry, {PERSON.source: 1, ORDERS.source: 2}, before_images)


def events(registry: SchemaRegistry, *transactions: Transaction) -> list[Event]:
    made = encoder(registry)
    return [event for t in transactions for event in walk(made.encode(t).data)]


def row_of(registry: SchemaRegistry, event: Event) -> dict[str, object]:
    return row_codec(registry.by_id(event.schema_id).text).decode(event.value)


def test_a_window_has_the_rows_in_order_and_ends_with_an_eop(registry: SchemaRegistry) -> None:
    window = encoder(registry).encode(transaction(7, insert(1, "Ann"), insert(2, "tea", ORDERS)))
    assert (window.scn, window.timestamp_ns) == (7, 7_000_000_000)
    first, second, end = walk(window.data)
    assert row_of(registry, first) == {"id": 1, "name": "Ann"}
    assert row_of(registry, second) == {"id": 2, "note": "tea"}
    assert [(e.scn, e.src_id, e.key) for e in (first, second)] == [(7, 1, 1), (7, 2, 2)]
    assert end.is_eop
    assert end.scn == 7


def test_an_empty_transaction_is_an_eop_alone(registry: SchemaRegistry) -> None:
    assert [e.is_eop for e in events(registry, transaction(7))] == [True]


def test_operations_become_opcodes_and_metadata(registry: SchemaRegistry) -> None:
    row = {"id": 1, "name": "Bob"}
    before = {"id": 1, "name": "Ann"}
    changes = (
        RowChange(PERSON, Op.UPDATE, row, before=before, comment="why"),
        RowChange(PERSON, Op.DELETE, row),
        RowChange(PERSON, Op.SNAPSHOT, row),
    )
    origin = Origin("0-1-5", 9, "binlog.000002", 400, 3)
    update, delete, snapshot, _ = events(registry, Transaction(7, 1, changes, origin))
    opcodes = [update.opcode, delete.opcode, snapshot.opcode]
    assert opcodes == [Opcode.UPSERT, Opcode.DELETE, Opcode.UPSERT]
    assert update.metadata is not None
    metadata = decode_metadata(update.metadata.data)
    assert metadata[:6] == (Op.UPDATE, "0-1-5", 9, "binlog.000002", 400, 3)
    assert (metadata.row_index, metadata.comment) == (0, "why")
    assert metadata.before is not None
    codec = row_codec(registry.by_id(update.schema_id).text)
    assert codec.decode(metadata.before) == before
    assert snapshot.metadata is not None
    assert decode_metadata(snapshot.metadata.data).row_index == 2


def test_before_images_can_be_left_out(registry: SchemaRegistry) -> None:
    change = RowChange(PERSON, Op.UPDATE, {"id": 1, "name": "B"}, before={"id": 1, "name": "A"})
    window = encoder(registry, before_images=False).encode(transaction(7, change))
    update = next(walk(window.data))
    assert update.metadata is not None
    assert decode_metadata(update.metadata.data).before is None


def test_a_changed_table_makes_a_version_at_its_scn(registry: SchemaRegistry) -> None:
    change = RowChange(WIDER, Op.INSERT, {"id": 2, "name": "B", "age": 3})
    old, _, new, _ = events(registry, transaction(5, insert(1)), transaction(9, change))
    assert [v.start_scn for v in registry.versions(PERSON.source)] == [5, 9]
    assert old.payload is not None
    assert new.payload is not None
    assert old.payload.digest != new.payload.digest
    # The number is this relay's own count: another relay of the source may count otherwise.
    assert (old.payload.schema_version, new.payload.schema_version) == (0, 0)
    assert row_of(registry, new) == {"id": 2, "name": "B", "age": 3}


def test_a_table_that_changes_in_any_way_is_captured(registry: SchemaRegistry) -> None:
    change = RowChange(KEYLESS, Op.INSERT, {"a": "only"})
    *_, new, _ = events(registry, transaction(5, insert(1)), transaction(9, change))
    assert row_of(registry, new) == {"a": "only"}
    assert isinstance(new.key, bytes)


def test_reading_the_log_again_makes_no_new_version(registry: SchemaRegistry) -> None:
    change = RowChange(WIDER, Op.INSERT, {"id": 2, "name": "B", "age": 3})
    log = (transaction(5, insert(1)), transaction(9, change))
    first = events(registry, *log)
    again = events(registry, *log)
    assert first == again
    assert len(registry.versions(PERSON.source)) == 2


def test_a_table_is_published_before_its_first_row(registry: SchemaRegistry) -> None:
    made = encoder(registry)
    made.publish_first([PERSON])
    made.publish_first([WIDER])
    assert [v.version for v in registry.versions(PERSON.source)] == [1]


def test_a_row_that_does_not_fit_is_an_error_with_its_column(registry: SchemaRegistry) -> None:
    bad = RowChange(PERSON, Op.INSERT, {"id": Decimal("1.5"), "name": "x"})
    with pytest.raises(UnfitRowError, match=r"row 1 of the transaction at scn 5 .* 'id'") as caught:
        encoder(registry).encode(transaction(5, insert(1), bad))
    assert isinstance(caught.value.__cause__, RowError)


def test_a_row_that_does_not_fit_is_left_out_of_a_transaction_that_was_acknowledged(
    registry: SchemaRegistry,
) -> None:
    bad = RowChange(PERSON, Op.INSERT, {"id": Decimal("1.5"), "name": "x"})
    made = WindowEncoder(registry, {PERSON.source: 1}, acknowledged_scns=(5,))
    window = made.encode(transaction(5, insert(1), bad, insert(2)))
    assert [event.key for event in walk(window.data)] == [1, 2, 0]
    with pytest.raises(UnfitRowError):
        made.encode(transaction(6, bad))


@pytest.mark.parametrize("acknowledged", [(), (5,)])
def test_a_full_disk_under_the_registry_is_no_fault_of_the_row(
    registry: SchemaRegistry, acknowledged: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise SchemaError("the schema cannot be saved") from OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(MemoryStore, "save_versions", full)
    ids = {PERSON.source: 1}
    with pytest.raises(SchemaError, match="cannot be saved"):
        WindowEncoder(registry, ids, acknowledged_scns=acknowledged).encode(
            transaction(5, insert(1, "Ann"))
        )


def test_a_table_that_is_no_source_is_an_error(registry: SchemaRegistry) -> None:
    other = replace(PERSON, source="shop.other")
    with pytest.raises(UnknownSourceError, match=r"shop\.other"):
        encoder(registry).encode(transaction(5, insert(1, table=other)))


def metadata_of(event: Event) -> EventMetadata:
    assert event.metadata is not None
    return decode_metadata(event.metadata.data, event.metadata.digest)


def test_an_absent_column_has_a_filler_and_is_named_in_the_notes(registry: SchemaRegistry) -> None:
    notes = Notes(absent=(1,), before_absent=(0,), raw={"note": "0000-00-00"})
    change = RowChange(PERSON, Op.UPDATE, {"id": 1}, before={"name": "A"}, notes=notes)
    update, _ = events(registry, transaction(7, change))
    assert row_of(registry, update) == {"id": 1, "name": None}
    metadata = metadata_of(update)
    assert metadata.notes == notes
    assert metadata.before is not None
    codec = row_codec(registry.by_id(update.schema_id).text)
    assert codec.decode(metadata.before) == {"id": 0, "name": "A"}
    assert codec.decode(metadata.before, metadata.notes.before_absent) == {"name": "A"}


def test_without_before_images_there_are_no_notes_on_them(registry: SchemaRegistry) -> None:
    row = {"id": 1, "name": "B"}
    made = encoder(registry, before_images=False)
    of_both = Notes(raw={"name": "x"}, before_absent=(1,), before_raw={"name": "y"})
    changes = [
        RowChange(PERSON, Op.UPDATE, row, {"id": 1}, notes=notes)
        for notes in (of_both, Notes(before_absent=(1,)))
    ]
    first, second, _ = walk(made.encode(transaction(7, *changes)).data)
    assert metadata_of(first).notes == Notes(raw={"name": "x"})
    assert metadata_of(second).notes is None


def test_a_column_that_is_missing_without_a_word_is_an_error(registry: SchemaRegistry) -> None:
    bad = RowChange(PERSON, Op.INSERT, {"id": 1}, notes=Notes(raw={"name": "x"}))
    with pytest.raises(UnfitRowError, match="'name': is not in the row"):
        encoder(registry).encode(transaction(7, bad))


@pytest.mark.parametrize("table", [PERSON, KEYLESS])
def test_a_key_column_that_is_absent_is_an_error(registry: SchemaRegistry, table: Table) -> None:
    row = {"name": "A"} if table is PERSON else {}
    bad = RowChange(table, Op.DELETE, row, notes=Notes(absent=(0,)))
    with pytest.raises(UnfitRowError, match="is part of the key and is not in the row"):
        encoder(registry).encode(transaction(7, bad))


EMPTIED = TableEmptied(PERSON, "why")
DEFINED = TableDefined((PERSON.source,), "shop", "ALTER TABLE person ADD age INT")


def test_an_emptied_table_is_a_delete_without_row_and_key(registry: SchemaRegistry) -> None:
    origin = Origin("0-1-5", 9, "binlog.000002", 400, 3)
    emptied, _ = events(registry, Transaction(7, 8, (EMPTIED,), origin))
    fields = (emptied.scn, emptied.timestamp_ns, emptied.src_id, emptied.key, emptied.opcode)
    assert fields == (7, 8, 1, b"", Opcode.DELETE)
    assert emptied.payload is None
    assert metadata_of(emptied) == EventMetadata(
        Op.TRUNCATE, "0-1-5", 9, "binlog.000002", 400, 3, comment="why"
    )


def test_an_emptied_table_needs_no_schema_and_must_be_a_source(registry: SchemaRegistry) -> None:
    columnless = Table(PERSON.source, (), dialect="sqlite")
    emptied, _ = events(registry, transaction(7, TableEmptied(columnless)))
    assert emptied.src_id == 1
    assert not registry.versions(PERSON.source)
    with pytest.raises(UnknownSourceError):
        events(registry, transaction(7, TableEmptied(replace(PERSON, source="shop.other"))))


def test_a_ddl_statement_stands_among_the_rows_and_is_not_counted(
    registry: SchemaRegistry,
) -> None:
    changes = (insert(1), DEFINED, EMPTIED, insert(2))
    first, defined, emptied, last, end = events(registry, transaction(7, *changes))
    indexes = [metadata_of(event).row_index for event in (first, emptied, last)]
    assert indexes == [0, 1, 2]
    assert statement_of(defined) == LoggedStatement((PERSON.source,), "shop", DEFINED.statement)
    assert {event.scn for event in (first, defined, emptied, last, end)} == {7}
    assert {event.timestamp_ns for event in (first, defined, emptied, last)} == {end.timestamp_ns}


def test_events_made_one_by_one_and_stamped_are_the_window(registry: SchemaRegistry) -> None:
    notes = Notes(absent=(1,))
    changes: tuple[Change, ...] = (
        insert(1),
        DEFINED,
        RowChange(PERSON, Op.INSERT, {"id": 2}, notes=notes),
        RowChange(KEYLESS, Op.INSERT, {"a": "x"}),
        EMPTIED,
        insert(3, table=ORDERS),
    )
    made = encoder(registry)
    whole = Transaction(7, 8, changes, Origin(file="log", offset=5))
    pieces = [
        made.encode_change(change, whole.origin, index, 7)
        for change, index in zip(changes, (0, 1, 1, 2, 3, 4), strict=True)
    ]
    end = encode(end_of_period(7, 8))
    for piece in pieces:
        assert (piece[9:13], piece[23:31], piece[37:45]) == (bytes(4), bytes(8), bytes(8))
    assert stamp(b"".join(pieces), 7, 8) + end == made.encode(whole).data


def test_a_change_that_is_left_out_as_told_is_no_event(registry: SchemaRegistry) -> None:
    bad = RowChange(PERSON, Op.INSERT, {"id": Decimal("1.5"), "name": "x"})
    made = WindowEncoder(registry, {PERSON.source: 1}, acknowledged_scns=(5,))
    assert made.encode_change(bad, Origin(), 0, 5) == b""
    with pytest.raises(UnfitRowError, match="row 3 of the transaction at scn 6"):
        made.encode_change(bad, Origin(), 3, 6)


def test_a_row_is_named_and_acknowledged_by_its_own_position(registry: SchemaRegistry) -> None:
    bad = RowChange(PERSON, Op.INSERT, {"id": Decimal("1.5"), "name": "x"}, scn=4)
    told = transaction(5, insert(1), bad)
    with pytest.raises(UnfitRowError, match="row 1 of the transaction at scn 4") as caught:
        encoder(registry).encode(told)
    assert caught.value.remedy.endswith("acknowledged_scns = [4]")
    # Its window's SCN was named before, and stands in settings.
    for scn in (4, 5):
        made = WindowEncoder(registry, {PERSON.source: 1}, acknowledged_scns=(scn,))
        rows = [e for e in walk(made.encode(told).data) if not e.is_control]
        assert [event.key for event in rows] == [1]


def test_how_a_tables_rows_are_written_can_be_asked_for(registry: SchemaRegistry) -> None:
    made = encoder(registry)
    assert made.known_table(PERSON, Origin(), 7) is None
    made.encode(transaction(7, insert(1)))
    found = made.known_table(PERSON, Origin(), 7)
    assert found is not None
    assert (found.table, found.src_id) == (PERSON, 1)
    assert found.digest == schema_id(avro_schema(PERSON))
    assert found.key_of({"id": 4}) == 4
    assert made.known_table(replace(PERSON), Origin(), 9) is found
    assert made.known_table(WIDER, Origin(), 9) is None
    assert [v.start_scn for v in registry.versions(PERSON.source)] == [7]


def test_only_a_table_with_another_version_than_before_changes_how_rows_are_written(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.publish_first([PERSON, ORDERS])
    assert made.known_table(PERSON, Origin(), 5)
    assert made.known_table(ORDERS, Origin(), 5)
    assert made.revision == 0
    made.encode(transaction(6, RowChange(WIDER, Op.INSERT, {"id": 1, "name": "a", "age": 2})))
    assert made.revision > 0


def test_a_version_that_only_rows_show_begins_with_the_first_scn_of_their_window(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.encode(transaction(5, insert(1)))
    origin = Origin(first_scn=6)
    piece = made.encode_change(OLDER, origin, 0, 8)  # its end is not known yet
    assert len(registry.versions(PERSON.source)) == 1  # nobody can read it
    made.settle()
    first, second = registry.versions(PERSON.source)
    change = change_of(second.text)
    assert change is not None
    assert (second.start_scn, change.scn) == (6, 6)
    whole = encoder(registry).encode(Transaction(9, 8, (insert(1), OLDER), origin))
    assert [event.schema_id for event in walk(whole.data)][:2] == [
        first.schema_id,
        second.schema_id,
    ]
    assert second.schema_id in piece
    assert registry.versions(PERSON.source) == (first, second)


def test_windows_that_are_only_looked_at_make_no_version_for_others(
    registry: SchemaRegistry,
) -> None:
    encoder(registry).encode(transaction(1, insert(1)))
    looking = encoder(registry)
    looking.registers_versions = False
    row = RowChange(WIDER, Op.INSERT, {"id": 2, "name": "Bob", "age": 7})
    for scn in (5, 7):
        looking.encode(altered(scn, PERSON, WIDER, GROWN))
        looking.encode(transaction(scn + 1, row))
    assert len(registry.versions(PERSON.source)) == 1


def test_a_second_reading_makes_no_version_from_before_the_first(
    registry: SchemaRegistry,
) -> None:
    encoder(registry).publish_first([WIDER])
    again = encoder(registry)
    again.first_scn = 10
    again.encode(altered(6, PERSON, WIDER, GROWN))
    with pytest.raises(UnfitRowError, match="from before this relay's first start, at scn 10"):
        again.encode(transaction(7, insert(3)))
    row = RowChange(WIDER, Op.INSERT, {"id": 2, "name": "Bob", "age": 7})
    again.encode(transaction(11, row))
    assert len(registry.versions(PERSON.source)) == 1


def test_what_is_taken_back_has_made_no_version(registry: SchemaRegistry) -> None:
    made = encoder(registry)
    made.encode(transaction(5, insert(1)))
    origin, before = Origin(first_scn=6), made.revision
    made.encode_change(OLDER, origin, 0, 7)
    assert made.mark() == 1
    assert made.revision != before
    made.take_back(0)
    window = made.encode(Transaction(9, 8, (insert(2),), origin))
    made.encode_change(OLDER, origin, 0, 9)
    made.encode(transaction(10))  # of the one before nothing came
    (only,) = registry.versions(PERSON.source)
    assert next(iter(walk(window.data))).schema_id == only.schema_id


def test_an_empty_window_leaves_the_versions_of_the_window_under_way_alone(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.encode(transaction(5, insert(1)))
    piece = made.encode_change(OLDER, Origin(first_scn=7), 0, 8)
    assert encode_empty(EmptyWindow(6, 6)).data == encode(end_of_period(6, 6))
    made.settle()
    assert registry.versions(PERSON.source)[-1].schema_id in piece


def altered(scn: int, before: Table | None, after: Table, change: TableChange) -> Transaction:
    made = (TableAltered(after, before, change),)
    return transaction(scn, TableDefined((PERSON.source,), "shop", "ALTER", made))


GROWN = TableChange(-1, "", added={"age": 7})
OLDER = RowChange(WIDER, Op.INSERT, {"id": 1, "name": "x", "age": 3})


def test_a_statement_makes_a_version_at_once_that_says_what_rows_at_rest_are(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.encode(transaction(5, insert(1)))
    window = made.encode(altered(7, PERSON, WIDER, GROWN))
    first, second = registry.versions(PERSON.source)
    assert change_of(second.text) == replace(GROWN, scn=7, before=shape_id(first.text))
    told = statement_of(next(iter(walk(window.data))))
    assert told.schemas == {PERSON.source: second.schema_id.hex()}
    made.encode(transaction(8, OLDER))
    assert registry.versions(PERSON.source) == (first, second)
    # Read again, by whoever begins with what the registry has.
    again = encoder(registry)
    again.encode(transaction(5, insert(1)))
    again.encode(altered(7, PERSON, WIDER, GROWN))
    again.encode(transaction(8, OLDER))
    assert registry.versions(PERSON.source) == (first, second)


def test_a_table_that_changed_without_a_statement_must_be_read_again(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.encode(transaction(5, insert(1)))
    made.encode(transaction(8, OLDER))
    _, second = registry.versions(PERSON.source)
    change = change_of(second.text)
    assert change is not None
    assert (change.scn, change.why_reload) == (8, UNSEEN)


def moody(member: str) -> Table:
    columns = (Column("id", "int", 0, nullable=False, key_position=0),)
    return Table(PERSON.source, (*columns, Column("mood", f"enum('{member}')", 1)))


def test_a_character_that_only_the_log_has_needs_no_reading_again(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.publish_first([moody("\ufffd")])
    logged = insert(1, "😊", moody("😊"))
    made.encode(transaction(8, logged))
    made.encode(altered(9, moody("\ufffd"), moody("x"), TableChange(-1, "")))
    first, second, third = registry.versions(PERSON.source)
    assert change_of(second.text) == TableChange(8, shape_id(first.text))
    assert change_of(third.text) == TableChange(9, shape_id(second.text))


def test_a_statement_on_a_table_that_is_not_the_last_one_known_must_be_read_again(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.encode(transaction(5, insert(1)))
    other = replace(PERSON, columns=(*PERSON.columns, Column("nick", "text", 2)))
    made.encode(altered(7, other, WIDER, GROWN))
    change = change_of(registry.latest(PERSON.source).text)
    assert change is not None
    assert change.why_reload == UNSEEN


def test_columns_that_are_as_they_were_may_have_other_rows_all_the_same(
    registry: SchemaRegistry,
) -> None:
    made = encoder(registry)
    made.encode(transaction(5, insert(1)))
    made.encode(altered(6, PERSON, PERSON, TableChange(-1, "")))  # nothing
    assert len(registry.versions(PERSON.source)) == 1
    made.encode(altered(7, PERSON, PERSON, TableChange(-1, "", reload={"name": "charset"})))
    second = registry.latest(PERSON.source)
    assert second.version == 2
    event = next(iter(walk(made.encode(transaction(8, insert(1))).data)))
    assert event.schema_id == second.schema_id


# Sources with names of their own


OWN = "com.example.shop.Person"


def named_encoder() -> tuple[SchemaRegistry, WindowEncoder]:
    registry = SchemaRegistry(MemoryStore())
    registry.add_source(OWN, 1)
    registry.add_source(ORDERS.source, 2)
    names = SourceNames([NamedTable(OWN, PERSON.source), NamedTable(ORDERS.source, ORDERS.source)])
    return registry, WindowEncoder(registry, {OWN: 1, ORDERS.source: 2}, names=names)


def test_rows_of_a_table_are_those_of_the_source_with_its_own_name() -> None:
    registry, made = named_encoder()
    made.publish_first([PERSON])
    first, second, _ = walk(
        made.encode(transaction(7, insert(1, "Ann"), insert(2, "tea", ORDERS))).data
    )
    assert [first.src_id, second.src_id] == [1, 2]
    assert row_of(registry, first) == {"id": 1, "name": "Ann"}
    (version,) = registry.versions(OWN)
    definition = json.loads(version.text)
    assert (definition["namespace"], definition["name"]) == ("com.example.shop", "Person")
    assert captured_table(version.text) == PERSON.source
    assert captured_table(registry.latest(ORDERS.source).text) == ORDERS.source


def test_an_alter_of_a_table_makes_a_version_of_the_source_with_its_own_name() -> None:
    registry, made = named_encoder()
    made.publish_first([PERSON])
    made.encode(transaction(7, insert(1, "Ann")))
    altered = TableAltered(WIDER, PERSON, TableChange(-1, ""))
    statement = TableDefined((PERSON.source,), "shop", "ALTER TABLE person ADD age int", (altered,))
    (ddl, _) = walk(made.encode(transaction(8, statement)).data)
    told = statement_of(ddl)
    assert told is not None
    first, second = registry.versions(OWN)
    assert told.sources == (OWN,)
    assert told.schemas == {OWN: second.schema_id.hex()}
    change = change_of(second.text)
    assert change is not None
    assert (change.scn, change.before, change.reload) == (8, shape_id(first.text), {})


def test_a_version_that_is_taken_back_is_made_again_under_the_own_name() -> None:
    registry, made = named_encoder()
    with pytest.raises(UnfitRowError):
        made.encode(transaction(7, insert(1, "Ann"), RowChange(PERSON, Op.INSERT, {})))
    assert list(registry.versions(OWN)) == []
    first, _ = walk(made.encode(transaction(8, insert(1, "Ann"))).data)
    assert registry.by_id(first.schema_id).source == OWN


def test_an_emptied_table_is_the_source_with_its_own_name() -> None:
    _, made = named_encoder()
    event, _ = walk(made.encode(transaction(7, TableEmptied(PERSON))).data)
    assert event.src_id == 1


def test_a_statement_looks_at_the_versions_of_its_scn_only(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = encoder(registry)
    looked: list[str] = []

    def counted(text: str) -> TableChange | None:
        looked.append(text)
        return change_of(text)

    monkeypatch.setattr(window_encoder, "change_of", counted)
    for scn in range(1, 41):
        tables = (PERSON, WIDER) if scn % 2 else (WIDER, PERSON)
        made.encode(altered(scn, *tables, TableChange(-1, "")))
    assert len(registry.versions(PERSON.source)) > 20
    assert len(looked) <= 40
