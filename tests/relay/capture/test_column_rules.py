"""What an encoder writes of tables of which columns are left out or masked."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from databus.conf.column_settings import ColumnSettings
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.masks import MaskKey
from databus.relay.sources.source import (
    Origin,
    RowChange,
    TableAltered,
    TableDefined,
    TableEmptied,
    UnfitRowError,
)
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import SourceStoppedError
from databus.schemas.event.control import LoggedStatement, statement_of
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import Op, metadata_of
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, change_of
from tests.relay.fakes import ORDERS, PERSON, insert, transaction

KEY = MaskKey(b"a key of enough characters")
SECRET = b"s3cret"
USERS = replace(
    PERSON,
    columns=(*PERSON.columns, Column("email", "text", 2), Column("password", "text", 3)),
)
ROW = {"id": 1, "name": "Ann", "email": "s3cret@x", "password": "s3cret"}
ENTRY = {"exclude": ["password*"], "mask": {"email*": "hash"}}


@pytest.fixture
def registry() -> SchemaRegistry:
    made = SchemaRegistry(MemoryStore())
    made.add_source(PERSON.source, 1)
    made.add_source(ORDERS.source, 2)
    return made


def encoder(registry: SchemaRegistry, key: MaskKey = KEY, **entry: Any) -> WindowEncoder:
    settings = ColumnSettings(tables=(PERSON.source,), **(entry or ENTRY))
    rules = ColumnRules("shop", [settings], key, [PERSON.source, ORDERS.source])
    return WindowEncoder(registry, {PERSON.source: 1, ORDERS.source: 2}, columns=rules)


def rows_of(registry: SchemaRegistry, data: bytes) -> list[dict[str, Any]]:
    events = [event for event in walk(data) if not event.is_eop]
    return [row_codec(registry.by_id(e.schema_id).text).decode(e.value) for e in events]


def renamed(*names: str) -> Table:
    columns = [replace(c, name=n) for c, n in zip(USERS.columns, names, strict=True)]
    return replace(USERS, columns=tuple(columns))


def test_no_byte_of_a_window_has_a_protected_value(registry: SchemaRegistry) -> None:
    changes = (
        RowChange(USERS, Op.INSERT, ROW, comment="why: s3cret"),
        RowChange(USERS, Op.UPDATE, {**ROW, "name": "Bob"}, before=ROW),
        TableEmptied(USERS, "s3cret"),
        TableDefined((USERS.source,), "shop", "ALTER TABLE person COMMENT 's3cret'"),
        insert(5, "tea", ORDERS),
    )
    data = encoder(registry).encode(transaction(7, *changes)).data
    assert SECRET not in data
    events: list[Event] = list(walk(data))
    found = {"id": 1, "name": "Ann", "email": KEY.hash("s3cret@x")}
    codec = row_codec(registry.by_id(events[0].schema_id).text)
    assert codec.decode(events[0].value) == found
    metadata = metadata_of(events[1])
    assert metadata is not None
    assert metadata.before is not None
    assert codec.decode(metadata.before) == found
    statement = statement_of(events[3])
    assert isinstance(statement, LoggedStatement)
    assert statement.statement == "ALTER TABLE …"


def test_only_python_writes_the_rows_of_such_a_table(registry: SchemaRegistry) -> None:
    made = encoder(registry)
    made.publish_first([USERS, ORDERS])
    assert made.known_table(USERS, Origin(), 5) is None
    assert made.known_table(ORDERS, Origin(), 5) is not None
    assert b"password" not in registry.versions(PERSON.source)[0].text.encode().split(b"leftOut")[0]


def test_capture_stops_at_a_table_that_the_settings_do_not_fit(registry: SchemaRegistry) -> None:
    made = encoder(registry, mask={"mail": "hash"})
    with pytest.raises(SourceStoppedError, match=r"no column mail.*id, name, email") as found:
        made.publish_first([USERS], 5)
    assert (found.value.tables, found.value.scn) == ((PERSON.source,), 5)
    with pytest.raises(UnfitRowError, match="no column mail"):
        made.encode(transaction(7, RowChange(USERS, Op.INSERT, ROW)))
    made.leave_out([PERSON.source])
    made.publish_first([USERS], 5)


@pytest.mark.parametrize("is_started_again", [False, True])
@pytest.mark.parametrize(
    "names", [("id", "name", "mail", "password"), ("id", "name", "email", "pass")]
)
def test_a_column_is_not_shown_under_a_name_of_which_no_statement_was_seen(
    registry: SchemaRegistry, names: tuple[str, ...], is_started_again: bool
) -> None:
    made = encoder(registry)
    made.encode(transaction(5, RowChange(USERS, Op.INSERT, ROW)))
    if is_started_again:
        made = encoder(registry)
    table = renamed(*names)
    row = dict(zip(names, ROW.values(), strict=True))
    with pytest.raises(UnfitRowError, match=rf"is protected.*called {names[2]}|called {names[3]}"):
        made.encode(transaction(9, RowChange(table, Op.INSERT, row)))
    reload = TableChange.unknown(-1, "")
    statement = TableDefined((table.source,), "shop", "?", (TableAltered(table, USERS, reload),))
    with pytest.raises(UnfitRowError, match="is protected"):
        made.encode(transaction(9, statement))


def test_a_column_that_is_dropped_or_added_does_not_stop_capture(registry: SchemaRegistry) -> None:
    made = encoder(registry)
    made.encode(transaction(5, RowChange(USERS, Op.INSERT, ROW)))
    columns = (*PERSON.columns, Column("email", "text", 2), Column("plan", "text", 3))
    other = replace(PERSON, columns=columns)
    change = TableChange(-1, "", added={"plan": "free"})
    statement = TableDefined((PERSON.source,), "shop", "…", (TableAltered(other, USERS, change),))
    data = made.encode(transaction(9, statement)).data
    del data
    text = registry.versions(PERSON.source)[-1].text
    found = change_of(text)
    assert found is not None
    assert (found.added, found.why_reload) == ({"plan": "free"}, "")


def test_other_settings_make_a_version_from_the_next_row_on(registry: SchemaRegistry) -> None:
    change = RowChange(USERS, Op.INSERT, ROW)
    before = encoder(registry, exclude=["password*"])
    first = before.encode(transaction(5, change)).data
    second = encoder(registry).encode(transaction(9, change)).data
    assert [row["email"] for row in rows_of(registry, first + second)] == [
        "s3cret@x",
        KEY.hash("s3cret@x"),
    ]
    assert [version.start_scn for version in registry.versions(PERSON.source)] == [5, 9]
    found = change_of(registry.versions(PERSON.source)[-1].text)
    assert found is not None
    assert found.why_reload, "consumers must read the rows from before again"


def test_what_is_not_protected_any_more_and_another_key_are_warned_of(
    registry: SchemaRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    encoder(registry).publish_first([USERS])
    with caplog.at_level(logging.WARNING):
        encoder(registry).publish_first([USERS])
        assert caplog.messages == []
        encoder(registry, MaskKey(b"another key, long enough")).publish_first([USERS])
        encoder(registry, exclude=["password"]).publish_first([USERS])
    begin = "shop.person: not protected any more, or otherwise, from the next row on: email "
    assert [one.removeprefix(begin) for one in caplog.messages] == [
        "(hash with another key)",
        f"(hash:{KEY.id})",
    ]
