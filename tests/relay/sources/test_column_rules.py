"""What is captured of a table: columns that are left out, and masks in place of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from databus.conf.column_settings import ColumnSettings
from databus.relay.sources.column_rules import ColumnRules, without_values
from databus.relay.sources.masks import MaskKey
from databus.relay.sources.source import RowChange, TableAltered, TableDefined, TableEmptied
from databus.relay.sources.table_view import TableView
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import SchemaError, SettingsError, SourceStoppedError
from databus.schemas.event.metadata import Notes, Op
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange
from databus.schemas.table_schema import avro_schema

KEY = MaskKey(b"a key of enough characters")
USERS = "shop.users"


def table_of(columns: Mapping[str, str], name: str = USERS, key: str = "id") -> Table:
    """Make a table; a type that ends with `!` is NOT NULL."""
    made = [
        Column(column, sql.rstrip("!"), at, not sql.endswith("!"), 0 if column == key else None)
        for at, (column, sql) in enumerate(columns.items())
    ]
    return Table(name, tuple(made))


TABLE = table_of(
    {
        "id": "int!",
        "email": "varchar(100)!",
        "phone": "varchar(40)",
        "born": "date!",
        "note": "text",
        "password": "varchar(100)!",
    }
)
ROW = {
    "id": 1,
    "email": "ann@example.com",
    "phone": "555",
    "born": date(1990, 2, 3),
    "note": "a long note",
    "password": "secret",
}


def rules(*entries: Mapping[str, Any], listed: tuple[str, ...] = (USERS,)) -> ColumnRules:
    settings = [ColumnSettings(**{"tables": (USERS,), **entry}) for entry in entries]
    return ColumnRules("shop", settings, KEY, listed)


def view(table: Table = TABLE, **entry: Any) -> TableView:
    found = rules(entry).view(table)
    assert found is not None
    return found


def test_a_row_has_the_columns_that_are_captured_and_what_stands_for_masked_values() -> None:
    mask = {"email": "hash", "phone": "redact", "note": "truncate:6"}
    shown = view(exclude=["password"], mask=mask)
    row = shown.row(ROW)
    assert row == {
        "id": 1,
        "email": KEY.hash("ann@example.com"),
        "phone": None,
        "born": date(1990, 2, 3),
        "note": "a long",
    }
    codec = row_codec(avro_schema(shown.table))
    assert codec.decode(codec.encode(row)) == row
    types = {column.name: (column.sql_type, column.mask) for column in shown.table.columns}
    assert types["email"] == ("varchar(64)", f"hash:{KEY.id}")
    assert types["note"] == ("varchar(6)", "truncate:6")
    assert types["phone"] == ("varchar(40)", "redact")
    assert [column.position for column in shown.table.columns] == [0, 1, 2, 3, 4]
    assert shown.table.left_out == ("password",)


def test_a_list_of_columns_takes_in_no_other() -> None:
    shown = view(include=["id", "phone"])
    assert shown.row(ROW) == {"id": 1, "phone": "555"}
    wider = replace(TABLE, columns=(*TABLE.columns, Column("new", "int", 6)))
    assert avro_schema(view(wider, include=["id", "phone"]).table) == avro_schema(shown.table)


def test_columns_are_named_in_any_case_and_by_patterns() -> None:
    assert view(exclude=["PASSword", "*mail"]).row(ROW).keys() == {"id", "phone", "born", "note"}
    assert view(exclude=["*", "!id"]).row(ROW) == {"id": 1}


@pytest.mark.parametrize("sql_type", ["enum('ill','well')", "SET('a','b')"])
@pytest.mark.parametrize("mask", ["redact", "hash"])
def test_the_labels_of_a_masked_column_are_in_no_schema(sql_type: str, mask: str) -> None:
    level = Column("level", sql_type, len(TABLE.columns))
    shown = view(replace(TABLE, columns=(*TABLE.columns, level)), mask={"level": mask})
    assert "ill" not in avro_schema(shown.table)
    assert "'a'" not in avro_schema(shown.table)


def test_what_is_redacted_is_null_or_a_text_where_a_column_cannot_be_null() -> None:
    shown = view(mask={"password": "redact", "born": "redact", "phone": "redact"})
    row = shown.row(ROW)
    # A date may be null in every schema: a server has dates that are none elsewhere.
    assert (row["password"], row["born"], row["phone"]) == ("redacted", None, None)
    codec = row_codec(avro_schema(shown.table))
    assert codec.decode(codec.encode(row)) == row


@pytest.mark.parametrize("dialect", ["sqlite", "other"])
def test_a_masked_column_is_a_text_in_every_dialect(dialect: str) -> None:
    number = Column("n", "real", 1, nullable=False, avro_type='"double"')
    key = Column("id", "integer", 0, nullable=False, key_position=0, avro_type='"long"')
    shown = view(Table(USERS, (key, number), dialect), mask={"n": "hash"})
    codec = row_codec(avro_schema(shown.table))
    row = shown.row({"id": 1, "n": 2.5})
    assert codec.decode(codec.encode(row)) == {"id": 1, "n": KEY.hash("2.5")}


def test_null_stays_null_when_it_is_hashed_or_truncated() -> None:
    shown = view(mask={"phone": "hash", "note": "truncate:3"})
    row = shown.row({**ROW, "phone": None, "note": None})
    assert (row["phone"], row["note"]) == (None, None)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (5, Decimal("5.00")),
        (5, 5.0),
        (5, "5"),
        (True, 1),
        (b"ab", "ab"),
        (Decimal("1E+2"), 100),
        (datetime(2020, 1, 2, tzinfo=UTC), "2020-01-02T00:00:00+00:00"),
    ],
)
def test_equal_values_have_equal_hashes_whatever_their_type(one: object, other: object) -> None:
    assert KEY.hash(one) == KEY.hash(other)


def test_hashes_depend_on_value_and_key_and_the_key_is_not_shown() -> None:
    other = MaskKey(b"another key of enough characters")
    assert len({KEY.hash("a"), KEY.hash("b"), other.hash("a")}) == 3
    assert "enough" not in repr(KEY)
    # A text that is not UTF-8, as SQLite may have one.
    assert len(KEY.hash("\udcff")) == 64


def test_a_key_is_the_first_line_of_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("a key of enough characters\nanother line\n")
    with pytest.raises(SettingsError, match="chmod 600"):
        MaskKey.read(file)
    file.chmod(0o600)
    assert MaskKey.read(file).hash(1) == KEY.hash(1)
    file.write_text("short")
    with pytest.raises(SettingsError, match=r"16 or more.*openssl rand") as refused:
        MaskKey.read(file)
    assert "short" not in str(refused.value).replace("shorter", "")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"exclude": ["id"]}, "column id cannot be left out: it is part of the key"),
        ({"include": ["phone"]}, "column id cannot be left out: it is part of the key"),
        ({"mask": {"id": "redact"}}, "column id cannot be masked by redact: .*mask it by `hash`"),
        ({"mask": {"born": "truncate:2"}}, "only texts can be truncated"),
        ({"mask": {"mail": "hash"}}, "has no column mail, .*it has id, email, phone"),
        ({"exclude": ["passwort"]}, "has no column passwort"),
        ({"include": ["id", "fone"]}, "has no column fone"),
        ({"mask": {"email": "hash", "e*": "redact"}}, "by hash and by redact: write one"),
    ],
)
def test_settings_that_do_not_fit_a_table_are_refused(entry: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        view(**entry)


def test_a_table_without_a_key_can_only_be_hashed() -> None:
    keyless = table_of({"a": "int!", "b": "varchar(9)"}, key="")
    with pytest.raises(SchemaError, match="no primary key, so that all its columns are its key"):
        view(keyless, exclude=["b"])
    with pytest.raises(SchemaError, match="cannot be masked by truncate:2"):
        view(keyless, mask={"b": "truncate:2"})
    assert view(keyless, mask={"b": "hash"}).hides_key


def test_a_column_that_some_tables_of_a_pattern_lack_is_wanted_in_one_of_them() -> None:
    chosen = rules({"tables": ["shop.*"], "mask": {"email": "hash"}})
    other = table_of({"id": "int!", "name": "text"}, "shop.other")
    chosen.check([TABLE, other], 5)
    with pytest.raises(SourceStoppedError, match=r"names email.*shop\.\* has that column") as found:
        chosen.check([other], 5)
    assert found.value.tables == ("shop.other",)


def test_entries_add_up() -> None:
    both = rules({"tables": ["shop.*"], "exclude": ["pass*"]}, {"mask": {"email": "redact"}})
    found = both.view(TABLE)
    assert found is not None
    assert found.row(ROW) == {k: v for k, v in ROW.items() if k != "password"} | {
        "email": "redacted"
    }


def test_a_table_whose_case_differs_is_not_captured_as_it_is() -> None:
    assert rules({"exclude": ["note"]}).view(table_of({"id": "int!", "note": "text"}, "Shop.Users"))


def test_what_looks_like_a_copy_of_a_table_is_refused_unless_it_is_listed() -> None:
    entry = {"exclude": ["password"], "mask": {"email": "hash"}}
    columns = {column.name: column.sql_type for column in TABLE.columns}
    ghost = table_of({**columns, "new": "int"}, "shop._users_gho")
    other = table_of({"id": "int!", "email": "text", "n": "int"}, "shop.other")
    chosen = rules(entry)
    chosen.check([TABLE, other], 1)
    with pytest.raises(
        SchemaError, match=r"_users_gho has the columns of shop\.users, of which em"
    ):
        chosen.view(ghost)
    listed = rules(entry, listed=(USERS, "shop._users_gho"))
    listed.check([TABLE, ghost], 1)


def test_notes_are_about_the_captured_columns_and_have_no_masked_text() -> None:
    shown = view(exclude=["email"], mask={"born": "hash"})
    notes = Notes((1, 4), (2,), {"born": "0000-00-00"}, {"born": "0000-00-00"})
    row = {k: v for k, v in ROW.items() if k not in ("email", "note")}
    change = RowChange(TABLE, Op.UPDATE, row, ROW, "because of ann", notes, 9)
    found = shown.row_change(change)
    assert found.notes == Notes((3,), (1,), {}, {})
    assert found.comment is None
    assert found.before is not None
    assert found.row.keys() == {"id", "phone", "born", "password"}
    assert (found.table, found.op, found.scn) == (shown.table, Op.UPDATE, 9)


def test_a_statement_about_such_a_table_is_only_said_to_be_one() -> None:
    text = (
        "ALTER TABLE users ADD c INT DEFAULT 'it''s a secret' /* of \"ann\" */ -- ann\n, ADD d INT"
    )
    assert without_values(text) == "ALTER TABLE …"
    assert without_values("/*!40000 'secret' */ ALTER") == "…"
    chosen = rules({"exclude": ["note"]})
    emptied = chosen.shown(TableEmptied(TABLE, "because of ann"))
    assert emptied == TableEmptied(TABLE, None)
    of_another = TableDefined(("shop.other",), "shop", text)
    assert chosen.shown(of_another) is of_another


def altered(before: Table, after: Table, change: TableChange, **entry: Any) -> TableAltered:
    defined = TableDefined((USERS,), "shop", "", (TableAltered(after, before, change),))
    found = rules(entry).shown(defined)
    assert isinstance(found, TableDefined)
    return found.altered[0]


def test_a_protected_column_cannot_come_out_under_another_name() -> None:
    columns = {"id": "int!", "email": "text", "note": "text"}
    after = table_of({"id": "int!", "mail": "text", "note": "text"})
    change = TableChange(-1, "", renamed={"mail": "email"})
    for entry in ({"exclude": ["email*"]}, {"mask": {"email*": "hash"}}):
        with pytest.raises(SchemaError, match=r"column email is protected.*called mail now.*mail"):
            altered(table_of(columns), after, change, **entry)
    with pytest.raises(SchemaError, match="has no column email"):
        altered(table_of(columns), after, change, exclude=["email"])
    found = altered(table_of(columns), after, change, exclude=["*mail"])
    assert [column.name for column in found.table.columns] == ["id", "note"]
    assert found.change == TableChange(-1, "")


def test_what_a_statement_did_to_rows_is_told_of_captured_columns_alone() -> None:
    before = table_of({"id": "int!", "a": "text", "b": "text", "c": "int"})
    columns = {"id": "int!", "aa": "text", "b": "text!", "c": "bigint", "d": "int", "token": "text"}
    after = table_of({**columns, "tag": "text"})
    change = TableChange(
        -1, "", {"aa": "a"}, {"d": 7, "token": "tok", "tag": "tag"}, {"b": "its default is 'x'"}
    )
    found = altered(
        before, after, change, exclude=["tok*"], mask={"b": "redact", "tag*": "hash", "c": "hash"}
    )
    assert found.change.renamed == {"aa": "a"}
    assert found.change.added == {"d": 7, "tag": KEY.hash("tag")}
    assert found.change.reload == {"b": "its values are masked, and were changed before"}
    wider = altered(before, table_of({"id": "int!", "a": "text", "b": "text!", "c": "int"}),
                    TableChange(-1, ""), mask={"b": "redact"})  # fmt: skip
    assert wider.change.reload == {"b": "it is masked in another way now"}


def test_a_table_that_is_not_known_from_before_must_be_read_again() -> None:
    found = altered(
        TABLE, table_of({"id": "int!", "e2": "text"}), TableChange(-1, ""), exclude=["e2"]
    )
    assert found.before is None
    assert found.change.why_reload


def test_what_is_not_protected_any_more_is_named() -> None:
    entry: dict[str, Any] = {
        "exclude": ["password"],
        "mask": {"email": "hash", "note": "truncate:3"},
    }
    text = avro_schema(view(**entry).table)
    assert rules(entry).weakened(TABLE, text) == []
    assert rules({"mask": {"email": "redact"}}).weakened(TABLE, text) == [
        "note (truncate:3)",
        "password (left out)",
    ]
    settings = ColumnSettings(tables=(USERS,), **entry)
    other_key = ColumnRules("shop", [settings], MaskKey(b"another key of enough characters"))
    assert other_key.weakened(TABLE, text) == ["email (hash with another key)"]
    listed = avro_schema(view(include=["id", "note"]).table)
    assert rules({"exclude": ["email"]}).weakened(TABLE, listed) == [
        "all columns that are not listed (left out)"
    ]
