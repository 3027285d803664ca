"""Tables that are altered, in each mode: what is there follows, and nothing that was is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from databus.client.spark.modes.target import ModeTarget
from databus.client.sql.modes import WriteMode
from databus.schemas.errors import IncompatibleSchemaError
from tests.client.spark.changing_source import batch_of, change
from tests.client.spark.modes.memory_target import MemoryTarget
from tests.client.spark.targets.altered_table import AlteredTable, bring, rows_in
from tests.client.spark.targets.test_following import FORMS, START, Form, alter, first, write_after

KEYED = [WriteMode.SCD2, WriteMode.SOFT_DELETE]


def made(mode: WriteMode) -> tuple[MemoryTarget, ModeTarget]:
    inner = MemoryTarget()
    return inner, ModeTarget(inner, None, source_column=False, mode=mode)


def is_live(row: dict[str, Any]) -> bool:
    return row.get("_databus_to_scn") is None and not row.get("_databus_deleted")


def live(inner: MemoryTarget, table: AlteredTable) -> list[dict[str, Any]]:
    """Return the rows that the source has, in its columns, by key."""
    found = [{name: row[name] for name in table.columns} for row in inner.read() if is_live(row)]
    return sorted(found, key=lambda row: row[table.key])


@pytest.fixture(params=list(FORMS.values()), ids=list(FORMS))
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


@pytest.mark.parametrize("mode", KEYED)
def test_rows_of_now_are_those_of_the_source_after_each_form_of_alter(
    mode: WriteMode, form: Form
) -> None:
    inner, target = made(mode)
    table = AlteredTable(START)
    table.write(*map(first, range(1, 6)))
    bring(target, table, 0)
    if form is not FORMS["drop, and another takes its name"]:
        table.write({**first(2), "city": "just before"})
    alter(table, form)
    write_after(table, 3, 77)
    bring(target, table, 1)
    assert live(inner, table) == rows_in(table)
    write_after(table, 4)
    bring(target, table, 2)
    assert live(inner, table) == rows_in(table)


def test_columns_that_a_batch_does_not_have_keep_their_values_beside_deleted_rows() -> None:
    """As in a mirror: the source has dropped them, or a load has brought them alone."""
    mirror = MemoryTarget()
    beside, target = made(WriteMode.SOFT_DELETE)
    whole = [change("insert", 5, {"id": key, "name": f"kept {key}"}) for key in range(1, 5)]
    narrow = [
        change("update", 6, {"id": 1}),
        change("delete", 6, {"id": 2}),
        change("delete", 6, {"id": 3}),
        change("insert", 7, {"id": 5}),
    ]
    again = [change("snapshot", 6, {"id": 4}, as_of=7), change("insert", 8, {"id": 3})]
    for number, changes in enumerate([whole, narrow, again]):
        batch = batch_of(changes).drop_columns(["name"] if number else [])
        for one in (mirror, target):
            one.apply("app", number, one.changes_of(batch, ["id"]))
    told = [
        sorted((row["id"], row["name"]) for row in inner.read() if is_live(row))
        for inner in (mirror, beside)
    ]
    assert told == [[(1, "kept 1"), (3, None), (4, "kept 4"), (5, None)]] * 2
    assert {row["name"] for row in beside.read() if not is_live(row)} == {"kept 2"}


def test_a_statement_that_empties_a_table_ends_versions_and_removes_none() -> None:
    inner, target = made(WriteMode.SCD2)
    table = AlteredTable(START)
    table.write(*map(first, range(1, 3)))
    bring(target, table, 0)
    table.write(first(9))  # in the same batch as the statement
    alter(table, FORMS["empty"])
    emptied = table.scn
    write_after(table, 1)
    bring(target, table, 1)
    found = sorted((r["id"], r["_databus_scn"], r["_databus_to_scn"]) for r in inner.read()
                   if r["_databus_to_scn"] is not None)  # fmt: skip
    assert found == [(1, 1, emptied), (2, 2, emptied), (9, 3, emptied)]
    assert live(inner, table) == rows_in(table)


def test_a_history_keeps_the_changes_from_before_a_statement_that_empties_the_table() -> None:
    inner, target = made(WriteMode.APPEND_HISTORY)
    table = AlteredTable(START)
    table.write(first(1))
    bring(target, table, 0)
    table.write(first(9))
    alter(table, FORMS["empty"])
    write_after(table, 1)
    bring(target, table, 1)
    ops = sorted((row["_databus_scn"], row["_databus_op"], row["id"]) for row in inner.read())
    assert ops == [(1, "insert", 1), (2, "insert", 9), (3, "truncate", None), (4, "insert", 1)]


def check_refused(
    mode: WriteMode, match: str, alter_and_write: Callable[[AlteredTable], None]
) -> None:
    """Check that a batch after an ALTER is refused, and that the table stays as it was."""
    inner, target = made(mode)
    table = AlteredTable(START)
    table.write(first(1))
    bring(target, table, 0)
    before = inner.read()
    alter_and_write(table)
    with pytest.raises(IncompatibleSchemaError, match=match):
        bring(target, table, 1)
    assert inner.read() == before


@pytest.mark.parametrize("mode", [*KEYED, WriteMode.APPEND_HISTORY])
def test_an_alter_that_nobody_can_follow_ends_with_the_columns_and_what_to_do(
    mode: WriteMode,
) -> None:
    def alter_and_write(table: AlteredTable) -> None:
        table.alter({**START, "n": "bigint"}, lambda row: row, reload={"n": "an expression"})
        table.write(first(2))

    check_refused(mode, rf"'n': .*of mode {mode}.*new checkpoint", alter_and_write)


@pytest.mark.parametrize("mode", [*KEYED, WriteMode.APPEND_HISTORY])
def test_a_column_of_a_type_that_does_not_hold_what_was_ends_with_what_to_do(
    mode: WriteMode,
) -> None:
    def alter_and_write(table: AlteredTable) -> None:
        table.alter({**START, "n": "date"}, lambda row: {**row, "n": None})
        table.write({**first(2), "n": None})

    check_refused(mode, r"'n': .* holds both: go on with a new", alter_and_write)
