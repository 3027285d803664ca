"""A target's table after each form of ALTER: every row is what the source has, at rest or not."""

from __future__ import annotations

import datetime as dt
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import sqlalchemy as sa

from databus.client.spark.arrow.row_types import WriterSchema
from databus.client.spark.consuming.apply_events import look_at
from databus.client.spark.targets import sql
from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.following import SchemaFollower, widen
from databus.client.spark.targets.reshaping import NewColumn, Reshaping
from databus.client.spark.targets.target import Target, open_target
from databus.demo.private_mariadb import HOST
from databus.schemas.errors import ReadAgainError, ReloadNeededError, SchemaError
from tests.client.spark.targets.altered_table import (
    SOURCE,
    AlteredTable,
    Row,
    bring,
    rows_in,
    rows_of,
)
from tests.client.spark.targets.target_rows import table_of
from tests.mariadb_server import Database
from tools.repository import ROOT

pytest_plugins = ["tests.mariadb", "tests.postgres"]

Open = Callable[..., Target]
START = {"id": "int!", "city": "varchar(20)", "n": "int", "a": "int", "b": "int"}
PLAIN = "varchar(30)!"


def first(key: int) -> Row:
    return {"id": key, "city": f"city {key}", "n": -key, "a": key, "b": 100 + key}


class Form(NamedTuple):
    """One form of ALTER: the columns after it, what it makes of a row, and its words."""

    columns: dict[str, str]
    become: Callable[[Row], Row]
    change: dict[str, Any]
    key: str | None = None


def renamed(row: Row, **names: str) -> Row:
    return {names.get(name, name): value for name, value in row.items()}


def without(*names: str) -> dict[str, str]:
    return {name: kind for name, kind in START.items() if name not in names}


FORMS = {
    "rename": Form(
        {"id": "int!", "town": "varchar(20)", "n": "int", "a": "int", "b": "int"},
        lambda row: renamed(row, city="town"),
        {"renamed": {"town": "city"}},
    ),
    "default": Form(
        {**START, "vip": "int!", "word": PLAIN},
        lambda row: {**row, "vip": 7, "word": "it's 100% \\ naïve"},
        {"added": {"vip": 7, "word": "it's 100% \\ naïve"}},
    ),
    "defaults of all kinds": Form(
        {**START, "p": "decimal(10,2)!", "d": "date!", "t": "datetime(6)!", "x": "varbinary(4)!"},
        lambda row: {
            **row,
            "p": Decimal("-7.50"),
            "d": dt.date(2020, 2, 29),
            "t": dt.datetime(2020, 1, 2, 3, 4, 5, 600),
            "x": b"\x00'\xff",
        },
        {
            "added": {
                "p": Decimal("-7.50"),
                "d": dt.date(2020, 2, 29),
                "t": dt.datetime(2020, 1, 2, 3, 4, 5, 600),
                "x": b"\x00'\xff",
            }
        },
    ),
    "null": Form(
        {**START, "vip": "int"}, lambda row: {**row, "vip": None}, {"added": {"vip": None}}
    ),
    "wider": Form({**START, "n": "bigint", "id": "bigint!"}, lambda row: row, {}),
    "decimal": Form(
        {**START, "n": "decimal(12,2)"}, lambda row: {**row, "n": Decimal(row["n"])}, {}
    ),
    "double": Form({**START, "n": "double"}, lambda row: {**row, "n": float(row["n"])}, {}),
    "rename the key": Form(
        {"nr": "int!", **without("id")},
        lambda row: renamed(row, id="nr"),
        {"renamed": {"nr": "id"}},
        "nr",
    ),
    "change names with each other": Form(
        START, lambda row: renamed(row, a="b", b="a"), {"renamed": {"a": "b", "b": "a"}}
    ),
    "rename and wider and default": Form(
        {"id": "int!", "town": "varchar(20)", "m": "bigint", "a": "int", "b": "int", "v": "int!"},
        lambda row: {**renamed(row, city="town", n="m"), "v": 1},
        {"renamed": {"town": "city", "m": "n"}, "added": {"v": 1}},
    ),
    "drop": Form(without("city"), lambda row: {n: v for n, v in row.items() if n != "city"}, {}),
    "drop, and another takes its name": Form(
        {"id": "int!", "n": "int", "city": "int", "b": "int"},
        lambda row: {"id": row["id"], "n": row["n"], "city": row["a"], "b": row["b"]},
        {"renamed": {"city": "a"}},
    ),
    "empty": Form({**START, "vip": "int"}, lambda row: row, {"is_emptied": True}),
}


# Each of them is carried out in another way.
SOME_FORMS = (
    *("rename", "defaults of all kinds", "rename the key", "change names with each other"),
    *("rename and wider and default", "drop, and another takes its name", "empty"),
)


@pytest.fixture(params=list(FORMS.values()), ids=list(FORMS))
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


@pytest.fixture(params=[FORMS[name] for name in SOME_FORMS], ids=SOME_FORMS)
def some_form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


def filled(target: Target) -> AlteredTable:
    table = AlteredTable(START)
    table.write(*map(first, range(1, 6)))
    bring(target, table, 0)
    return table


def alter(table: AlteredTable, form: Form) -> None:
    table.alter(form.columns, form.become, form.key, **form.change)


def write_after(table: AlteredTable, *keys: int) -> None:
    """Write rows as the table is now: a value of each column's kind."""
    kinds: dict[str, Any] = {"varchar(20)": "w", "varchar(30)": "w", "date": dt.date(2021, 1, 1)}
    kinds |= {"datetime(6)": dt.datetime(2021, 1, 1), "varbinary(4)": b"w", "double": 1.5}
    kinds |= {"decimal(10,2)": Decimal("1.25"), "decimal(12,2)": Decimal("1.25")}
    for key in keys:
        row = {name: kinds.get(kind.rstrip("!"), 9) for name, kind in table.columns.items()}
        table.write({**row, table.key: key})


def test_rows_at_rest_and_rows_written_since_are_those_of_the_source(
    opened: Open, form: Form
) -> None:
    target = opened(None)
    table = filled(target)
    if form is not FORMS["drop, and another takes its name"]:
        # There nothing holds the values of both columns: they would have to be read again.
        table.write({**first(2), "city": "just before"})
    alter(table, form)
    write_after(table, 3, 77)
    assert bring(target, table, 1).upserts
    assert rows_of(target, table, table_of) == rows_in(table)
    write_after(table, 4)
    bring(opened(None), table, 2)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


def look(target: Target, table: AlteredTable, scn: int | None = None) -> None:
    """Look at the schemas, as a job does from time to time; it has read up to `scn`."""
    versions = [WriterSchema(SOURCE, 1, *one) for one in table.texts.items()]
    look_at(target, SOURCE, versions, "shop", table.scn if scn is None else scn)


def test_a_table_without_a_row_since_the_alter_gets_its_columns_and_values(
    opened: Open, some_form: Form
) -> None:
    target = opened(None)
    table = filled(target)
    before = table.scn
    alter(table, some_form)
    look(target, table, before)
    assert table_of(target).column_names[: len(START)] == list(START), "it is behind the ALTER"
    look(target, table)
    is_emptied = some_form is FORMS["empty"]
    if not is_emptied:
        assert rows_of(target, table, table_of) == rows_in(table)
    assert target.positions() == {"shop": before}
    held, version = target.schema(), target.version()
    look(opened(None), table)
    assert (target.schema(), target.version()) == (held, version), "once is enough"
    write_after(table, 3, 77)
    bring(opened(None), table, 1)
    assert rows_of(target, table, table_of) == rows_in(table)


def test_an_alter_that_renames_and_adds_a_column_of_nulls_is_followed_without_a_row(
    opened: Open,
) -> None:
    target = opened(None)
    table = filled(target)
    table.alter(
        {**FORMS["rename"].columns, "city": "int", "vip": "int"},
        lambda row: {**renamed(row, city="town"), "city": None, "vip": None},
        renamed={"town": "city"},
        added={"vip": None, "city": None},
    )
    look(target, table)
    assert rows_of(target, table, table_of) == rows_in(table)
    bring(target, table, 1, table.batch())
    write_after(table, 3)
    bring(target, table, 2)
    assert rows_of(target, table, table_of) == rows_in(table)


def test_what_only_rows_can_tell_is_left_to_them(opened: Open) -> None:
    target = opened(None)
    table = filled(target)
    table.alter({**START, "n": "varchar(9)!"}, lambda row: row, reload={"n": "int → varchar(9)"})
    held = target.schema()
    with pytest.raises(ReloadNeededError, match="must be read again"):
        look(target, table)
    assert target.schema() == held


class EndedError(Exception):
    """The process ends here."""


def test_an_end_between_the_alter_and_the_batch_changes_nothing_in_the_end(
    opened: Open, some_form: Form
) -> None:
    target = opened(None)
    table = filled(target)
    alter(table, some_form)
    write_after(table, 3, 77)
    batch = table.batch()

    def end() -> None:
        raise EndedError

    for _ in range(2):
        with pytest.raises(EndedError):
            bring(opened(None), table, 1, batch, end)
    bring(opened(None), table, 1, batch)
    assert bring(opened(None), table, 1, batch).is_skipped
    assert rows_of(target, table, table_of) == rows_in(table)


def test_an_end_between_the_note_of_an_alter_and_the_batch_keeps_the_position(
    opened: Open,
) -> None:
    """Else a new checkpoint, which began at that position, would not know its target again."""
    table = filled(opened(None))
    before = opened(None).positions()
    alter(table, FORMS["null"])
    write_after(table, 3)
    batch = table.batch()

    def end() -> None:
        raise EndedError

    with pytest.raises(EndedError):
        bring(opened(None), table, 1, batch, end)
    assert opened(None).positions() == before == {"shop": 5}
    bring(opened(None), table, 1, batch)
    assert opened(None).positions() == {"shop": table.scn}
    assert rows_of(opened(None), table, table_of) == rows_in(table)


@pytest.mark.parametrize("name", ["change names with each other", "rename the key"])
def test_a_kill_between_the_alter_and_its_note_is_seen_by_the_next_one(
    target_uri: str, opened: Open, name: str
) -> None:
    """SIGKILL, where the kind of target has its last moment before the commit or the note."""
    table = filled(opened(None))
    alter(table, FORMS[name])
    write_after(table, 3, 77)
    batch = table.batch()
    with tempfile.NamedTemporaryFile() as file:
        file.write(pickle.dumps((target_uri, table, batch)))
        file.flush()
        command = [sys.executable, "-m", "tests.client.spark.targets.killed_alter", file.name]
        done = subprocess.run(command, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    bring(opened(None), table, 1, batch)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


@pytest.mark.parametrize("name", ["change names with each other", "rename the key", "empty"])
def test_an_alter_that_was_not_noted_is_not_done_twice_though_the_log_went_on_since(
    opened: Open, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In MySQL an ALTER commits before its note. Other targets do both or nothing."""
    table = filled(opened(None))
    alter(table, FORMS[name])

    def end(*_given: Any) -> None:
        raise EndedError

    with monkeypatch.context() as patch, suppress(EndedError):
        patch.setattr(sql.SqlTarget, "_write", end)
        bring(opened(None), table, 1) if name == "empty" else look(opened(None), table)
    now = {**table.columns, "more": "int!"}
    table.alter(now, lambda row: {**row, "more": 7}, added={"more": 7})
    write_after(table, 3)
    bring(opened(None), table, 2)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


def test_an_alter_that_the_server_is_doing_is_waited_for_and_recorded_once(
    database: Database,
) -> None:
    """The process that asked for it may have died, or not."""
    server = database.server
    login = f"{server.user}:{server.password}@{HOST}:{server.port}"
    uri = f"mysql+pymysql://{login}/{database.name}?charset=utf8mb4#person"
    target = open_target(uri)
    table = filled(target)
    alter(table, FORMS["change names with each other"])
    engine = sa.create_engine(uri.partition("#")[0])
    with ThreadPoolExecutor() as pool, engine.connect() as connection:
        connection.execute(sa.text("SELECT * FROM person"))  # the ALTER waits for its end
        looking = pool.submit(look, target, table)
        while not is_altering(engine):
            assert not looking.done()
        restart = pool.submit(open_target, uri)
        with pytest.raises(TimeoutError):
            restart.result(1.5)
        connection.rollback()
        looking.result()
        restarted = restart.result()
    assert restarted.commit_log().entries == target.commit_log().entries
    write_after(table, 3)
    bring(restarted, table, 1)
    assert rows_of(restarted, table, table_of) == rows_in(table)
    restarted.close()
    target.close()
    engine.dispose()


def is_altering(engine: sa.Engine) -> bool:
    with engine.connect() as connection:
        found = connection.execute(sa.text("SHOW FULL PROCESSLIST")).mappings().all()
    return any("ALTER TABLE" in str(one["Info"]) for one in found)


def test_a_row_takes_every_step_that_came_after_it_in_one_batch(opened: Open) -> None:
    target = opened(None)
    table = filled(target)
    table.write({**first(2), "city": "before both"})
    alter(table, FORMS["rename"])
    write_after(table, 3)
    now = {**table.columns, "vip": "int!"}
    table.alter(now, lambda row: {**row, "vip": 7}, added={"vip": 7})
    table.alter({**now, "n": "bigint"}, lambda row: row)
    write_after(table, 4)
    bring(target, table, 1)
    assert rows_of(target, table, table_of) == rows_in(table)


def test_a_default_is_in_rows_at_rest_also_where_its_column_is_altered_in_the_same_batch(
    opened: Open,
) -> None:
    target = opened(None)
    table = filled(target)
    now = {**START, "x": "int!", "gone": "int!", "p": "decimal(10,2)!"}
    added = {"x": 7, "gone": 8, "p": Decimal("1.50")}
    table.alter(now, lambda row: {**row, **added}, added=added)
    now = {**START, "x": "bigint!", "p": "decimal(12,4)!"}
    table.alter(now, lambda row: {n: v for n, v in row.items() if n != "gone"})
    now = {**START, "y": "bigint!", "price": "decimal(12,4)!"}
    names = {"y": "x", "price": "p"}
    table.alter(now, lambda row: renamed(row, x="y", p="price"), renamed=names)
    table.write({**first(3), "y": 1 << 40, "price": Decimal("0.0001")})
    bring(target, table, 1)
    assert rows_of(target, table, table_of) == rows_in(table)
    assert "gone" not in table_of(target).column_names


def test_rows_of_a_version_that_the_query_does_not_know_ask_for_its_restart(tmp_path: Path) -> None:
    """A version that only gave columns other names has no new column that a reader would see."""
    target = open_target(f"delta:{tmp_path}/people")
    table = filled(target)
    known = dict(table.texts)
    alter(table, FORMS["change names with each other"])
    write_after(table, 3)
    batch = table.batch()
    with pytest.raises(SchemaError, match=r"shop\.people: schema version 2 .*restart the query"):
        SchemaFollower(SOURCE, known, batch).lead(target, None)
    bring(target, table, 1, batch)
    assert rows_of(target, table, table_of) == rows_in(table)


def test_a_default_has_the_type_of_the_name_that_its_column_has_in_the_end(opened: Open) -> None:
    target = opened(None)
    table = filled(target)
    table.write({**first(2), "city": "before both"})
    alter(table, Form({**START, "t": "datetime(6)"}, lambda row: {**row, "t": None}, {}))
    added = {"e": 0.25}
    table.alter({**table.columns, "e": "double!"}, lambda row: {**row, **added}, added=added)
    table.alter(
        {**START, "e": "datetime(6)", "m": "double!"},
        lambda row: renamed(row, t="e", e="m"),
        renamed={"e": "t", "m": "e"},
    )
    write_after(table, 3)
    bring(target, table, 1)
    assert rows_of(target, table, table_of) == rows_in(table)


@pytest.mark.parametrize("op", ["truncate", "snapshot_end"])
def test_a_mark_that_is_past_an_alter_unknown_to_the_query_takes_none_of_its_steps_away(
    tmp_path: Path, form: Form, op: str
) -> None:
    target = open_target(f"delta:{tmp_path}/people")
    table = filled(target)
    known = dict(table.texts)
    alter(table, form)
    table.empty(op)
    rows, key = SchemaFollower(SOURCE, known, table.batch(known)).lead(target, None)
    target.apply("app", 1, changes_of(rows, key))
    assert target.positions() == {"shop": table.scn}
    write_after(table, 3, 4)
    bring(target, table, 2)
    assert rows_of(target, table, table_of) == rows_in(table)
    gone = {"city"} - set(table.columns) if "renamed" in form.change else set()
    assert not gone & set(table_of(target).column_names)


@pytest.mark.parametrize("op", ["truncate", "snapshot_end"])
def test_a_mark_from_before_an_alter_that_gave_a_name_to_another_type_is_taken(
    opened: Open, op: str
) -> None:
    target, table = opened(None), AlteredTable(START)
    table.write(*map(first, range(1, 4)))
    bring(target, table, 0)
    if op == "truncate":
        table.empty(op)
    else:
        # Of a snapshot that began before these rows.
        table.pending.append((1, op, None, None))
    mark = table.pending.pop()
    alter(table, FORMS["drop, and another takes its name"])
    table.pending.append(mark)
    bring(target, table, 1)
    assert table_of(opened(None)).num_rows == len(table.rows)
    write_after(table, 3, 4)
    bring(target, table, 2)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


def test_a_mark_fits_a_table_whose_key_s_name_another_type_has_since(tmp_path: Path) -> None:
    target = open_target(f"delta:{tmp_path}/people")
    filled(target)
    told = pa.struct({"op": pa.string(), "scn": pa.int64(), "index": pa.int32()})
    told = pa.struct(
        [
            *told,
            *((name, pa.string()) for name in ("source", "physical_source")),
            *(("as_of", pa.int64()), ("schema_version", pa.int32())),
            ("before", pa.struct({"id": pa.string(), "city": pa.string()})),
        ]
    )
    mark = {"op": "snapshot_end", "scn": 2, "as_of": 2, "source": SOURCE, "physical_source": "shop"}
    schema = pa.schema([("id", pa.string()), ("city", pa.string()), ("_databus", told)])
    texts = AlteredTable(START).texts
    batch = pa.Table.from_pylist([{"_databus": mark}], schema)
    rows, keys = SchemaFollower(SOURCE, texts, batch).lead(target, None)
    target.apply("app", 1, changes_of(rows, keys))
    assert [row["id"] for row in table_of(target).to_pylist()] == [2, 3, 4, 5]


def test_a_name_that_comes_back_in_another_case_is_that_of_each_version(opened: Open) -> None:
    # A query knows all versions and is still behind them.
    target, table = opened(None), AlteredTable(START)
    table.write(first(1), first(2))
    bring(target, table, 0)
    table.write({**first(1), "a": 11}, first(3))
    before = table.pending
    columns = {name: kind for name, kind in START.items() if name != "a"}
    for name, was in (("q", "a"), ("A", "q")):
        table.alter(
            {**columns, name: "int"},
            lambda row, n=name, w=was: renamed(row, **{w: n}),  # type: ignore[misc]
            renamed={name: was},
        )
    table.pending = before
    bring(target, table, 1)
    assert "A" not in table_of(opened(None)).column_names
    table.write({"id": 4, "city": "x", "n": 4, "b": 4, "A": 4})
    bring(target, table, 2)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


def test_a_key_with_more_decimal_places_is_the_key_that_it_was(opened: Open) -> None:
    target = opened(None)
    table = AlteredTable({"id": "decimal(10,0)!", "part": "decimal(6,2)", "city": "varchar(20)"})
    row = {"part": Decimal("1.20"), "city": "old"}
    table.write(*({**row, "id": Decimal(key)} for key in (-7, 0, 100, 1234567890)))
    table.write({"id": Decimal(5), "part": None, "city": "old"})
    bring(target, table, 0)
    now = {"id": "decimal(14,3)!", "part": "decimal(8,4)", "city": "varchar(20)"}
    table.alter(now, lambda row: {**row, "id": row["id"].quantize(Decimal("0.001"))})
    row = {"part": Decimal("0.0001"), "city": "new"}
    table.write(*({**row, "id": Decimal(key)} for key in ("-7.000", "100.000", "100.001")))
    bring(target, table, 1)
    assert rows_of(target, table, table_of) == rows_in(table)


def test_steps_that_change_no_row_at_rest_are_not_taken_twice(opened: Open) -> None:
    target = opened(None)
    table = filled(target)
    alter(table, FORMS["null"])
    write_after(table, 3)
    bring(target, table, 1)
    columns = {name: kind for name, kind in table.columns.items() if name != "city"}
    table.alter(
        {**columns, "town": "varchar(20)"},
        lambda row: renamed(row, city="town"),
        renamed={"town": "city"},
    )
    write_after(table, 4)
    bring(target, table, 2)
    assert rows_of(target, table, table_of) == rows_in(table)
    assert [row["vip"] for row in rows_in(table)] == [None, None, 9, 9, None]


def test_rows_of_a_snapshot_are_in_the_version_of_now_however_old_they_are(tmp_path: Path) -> None:
    target = open_target(f"delta:{tmp_path}/people")
    table = AlteredTable(START)
    for name in ("rename", "rename and wider and default"):
        alter(table, FORMS[name]._replace(change={"reload": {"": "nobody knows"}}))
    table.scn, table.as_of = -1, table.scn
    write_after(table, 1, 2)
    bring(target, table, 0)
    assert rows_of(target, table, table_of) == rows_in(table)


def test_a_snapshot_whose_rows_are_read_after_an_alter_that_came_after_its_begin_loses_no_value(
    opened: Open,
) -> None:
    target, table = opened(None), AlteredTable(START)
    table.write(first(1), first(2))
    table.pending.clear()
    table.write({**first(1), "city": "of later"})
    change = table.pending.pop()
    alter(table, FORMS["rename"])
    # As of SCN 2, before the change and the ALTER, and in the columns of now.
    table.as_of = 2
    table.pending = [(key, "snapshot", 2, renamed(first(key), city="town")) for key in (1, 2)]
    bring(target, table, 0)
    table.pending, table.as_of = [change], 0
    bring(target, table, 1)
    assert rows_of(opened(None), table, table_of) == rows_in(table)
    write_after(table, 3, 77)
    bring(target, table, 2)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


def test_rows_that_come_in_a_newer_version_than_the_table_was_led_to_are_refused(
    tmp_path: Path,
) -> None:
    # A part of a batch that was read again after an executor was lost.
    target, table = open_target(f"delta:{tmp_path}/people"), AlteredTable(START)
    table.write(first(1))
    alter(table, FORMS["rename"])
    told = table.batch()
    follower = SchemaFollower(SOURCE, table.texts, told)
    follower.lead(target, None)
    assert follower.converted(told)["city"].to_pylist() == ["city 1"]
    table.pending = [(1, "insert", 2, renamed(first(1), city="town"))]
    with pytest.raises(ReadAgainError, match=r"read again in part.*schema version 2"):
        follower.converted(table.batch())


def test_what_cannot_be_told_is_refused_with_both_types_and_the_command(opened: Open) -> None:
    target = opened(None)
    table = filled(target)
    now = {**START, "n": "smallint"}
    table.alter(now, lambda row: row, reload={"n": "int → smallint may lose"})
    write_after(table, 3)
    with pytest.raises(
        ReloadNeededError,
        match=r"(?s)shop\.people.*column n: int → smallint.*may lose.*spark load .* --again",
    ):
        bring(target, table, 1)
    assert target.positions() == {"shop": 5}


@pytest.mark.parametrize("more", [{}, {"z": "int"}], ids=["at once", "before another ALTER"])
def test_the_first_rows_of_a_table_are_refused_when_nobody_can_tell_what_became_of_them(
    opened: Open, more: dict[str, str]
) -> None:
    target = opened(None)
    table = AlteredTable(START)
    table.write(first(1))
    now = {**START, "e": "int"}
    table.alter(now, lambda row: {**row, "e": 8}, reload={"e": "its default is '7.6'"})
    if more:
        table.alter({**now, **more}, lambda row: {**row, "z": None}, added={"z": None})
    write_after(table, 2)
    batch = table.batch()
    for _ in range(2):
        with pytest.raises(
            ReloadNeededError, match=r"its default is '7\.6'.*spark load .* --again"
        ):
            bring(target, table, 0, batch)
        assert (target.schema(), target.positions()) == (None, {})


def test_the_first_rows_of_a_table_are_those_since_it_was_emptied_or_altered(opened: Open) -> None:
    target = opened(None)
    table = AlteredTable(START)
    table.write(first(1))
    now = {**START, "e": "int"}
    table.alter(now, lambda row: {**row, "e": 8}, reload={"e": "its default is '7.6'"})
    table.alter({**now, "z": "int"}, lambda row: row, is_emptied=True)
    write_after(table, 2)
    bring(target, table, 0)
    assert rows_of(target, table, table_of) == rows_in(table)
    assert len(rows_in(table)) == 1


def test_rows_read_again_are_put_in_place_of_all_at_once_and_noted(
    target_uri: str, opened: Open
) -> None:
    target, beside = opened(None), open_target(f"{target_uri}__databus_reload")
    table = filled(target)
    kept = table_of(target)
    table.alter({**START, "n": "smallint"}, lambda row: {**row, "n": 1}, reload={"n": "may lose"})
    fresh = AlteredTable(table.columns)
    fresh.write(*table.rows.values())
    bring(beside, fresh, 0)
    beside.close()
    assert table_of(target).equals(kept)
    for _ in range(2):
        target.take_over(f"{target_uri}__databus_reload", "reload:shop.people", 90, {"shop": 90})
        assert rows_of(opened(None), table, table_of) == rows_in(table)
    assert (target.applied("reload:shop.people"), target.positions()) == (90, {"shop": 90})
    table.scn = 90
    write_after(table, 3, 77)
    bring(target, table, 1)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


def test_rows_read_again_as_of_an_scn_before_an_alter_take_it_with_the_next_row(
    target_uri: str, opened: Open
) -> None:
    """A bootstrap server may be behind the job, which has altered the idle table already."""
    target, uri = opened(None), f"{target_uri}__databus_reload"
    table = filled(target)
    older = AlteredTable(START)
    older.write(*table.rows.values())
    alter(table, FORMS["rename"])
    look(target, table)
    beside = open_target(uri)
    bring(beside, older, 0)
    beside.close()
    target.take_over(uri, "reload:shop.people", older.scn, {"shop": table.scn})
    write_after(table, 3)
    bring(opened(None), table, 1)
    assert rows_of(opened(None), table, table_of) == rows_in(table)


def test_rows_read_again_as_of_the_same_scn_are_put_in_place_once_more(
    target_uri: str, opened: Open
) -> None:
    target, uri = opened(None), f"{target_uri}__databus_reload"
    table = filled(target)
    for _ in range(2):
        fresh, beside = AlteredTable(table.columns), open_target(uri)
        fresh.write(*table.rows.values())
        bring(beside, fresh, 0)
        beside.close()
        target.take_over(uri, "reload:shop.people", 90, {"shop": 90})
        assert rows_of(opened(None), table, table_of) == rows_in(table)
        # Somebody damages it.
        key = pa.table({"id": pa.array([min(table.rows)], pa.int32())})
        assert target.put(deletes=key, physical_source="shop", scn=90).deleted == 1
    assert rows_of(opened(None), table, table_of) != rows_in(table)


def test_a_target_that_is_removed_begins_anew(opened: Open) -> None:
    target = opened(None)
    table = filled(target)
    target.remove()
    assert (target.schema(), target.positions(), target.applied("app")) == (None, {}, None)
    target.remove()
    fresh = AlteredTable(table.columns)
    fresh.write(first(8))
    bring(target, fresh, 0)
    assert rows_of(opened(None), fresh, table_of) == rows_in(fresh)


def test_a_wider_type_is_taken_without_any_schema(opened: Open) -> None:
    target = opened(None)
    table = filled(target)
    wider = AlteredTable({**START, "n": "bigint"})
    wider.scn = 10
    wider.write({**first(3), "n": 1 << 40})
    batch = wider.batch()
    widen(target, batch, ["id"])
    target.apply("app", 1, changes_of(batch, ["id"]))
    table.rows[3] = wider.rows[3]
    assert rows_of(target, table, table_of) == rows_in(table)


def test_a_plan_says_what_is_done_to_the_columns_and_nothing_of_the_others() -> None:
    held = pa.schema([("id", pa.int32()), ("city", pa.string()), ("old", pa.string())])
    plan = Reshaping(
        (
            NewColumn("id", pa.int64(), "id"),
            NewColumn("town", pa.string(), "city"),
            NewColumn("vip", pa.int32(), None, 7),
        ),
        ("id",),
    )
    assert plan.in_words(held) == (
        "id int32 becomes int64; city is renamed to town; vip int32 is added, 7 in all rows; "
        "old is replaced"
    )
    same = Reshaping((NewColumn("id", pa.int32(), "id"),), ("id",), is_emptied=True)
    assert same.in_words(held.remove(2).remove(1)) == "all rows are removed"
