"""The sink `sql`: values and names from hell, and errors that say which row is at fault."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from struct import pack, unpack
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sql.refusals import is_away, is_refusal
from databus.schemas.errors import SettingsError
from tests.client.sinks.ready.sql.targets import OPENING, Source, Target, write

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

WIDE = Decimal("1" * 35 + "." + "9" * 30)
MOMENT = datetime(2026, 2, 28, 23, 59, 59, 999999)
# By SQL type: values, and what the database gives back where that is another value.
VALUES: dict[str, list[Any]] = {
    "tinyint": [-128, 127],
    "bigint": [-(1 << 63), (1 << 63) - 1],
    "bigint unsigned": [Decimal((1 << 64) - 1)],
    "double": [1.5e300, -0.0, 5e-324],
    "float": [1.5],
    "decimal(65,30)": [WIDE, -WIDE, Decimal("0E-30")],
    "decimal(10,2)": [Decimal("-0.01")],
    "date": [date(1000, 1, 1), date(9999, 12, 31), None],
    "datetime(6)": [MOMENT, datetime(1000, 1, 1)],
    "timestamp(6)": [MOMENT.replace(tzinfo=UTC)],
    "time(6)": [
        timedelta(hours=838, minutes=59, seconds=59),
        -timedelta(seconds=1, microseconds=1),
    ],
    "varchar(99)": ["", " a ", "%s :x ? \\ ' \" `", "\U0001f600\U00020000", "\r\n\t\x01"],
    "longtext": ["x" * (1 << 20)],
    "json": ['{"a": 1}'],
    "enum('a','b')": ["a"],
    "bit(64)": [b"\xff" * 8, bytes(8)],
    "varbinary(99)": [b"", b"\0\xff'\\%"],
    "longblob": [bytes(range(256)) * 4096],
}


def stored(value: Any, dialect: str) -> Any:
    """Return what the driver gives back for a value."""
    if isinstance(value, datetime):
        value = value.replace(tzinfo=None)
    if dialect == "sqlite":
        if isinstance(value, datetime):
            return value.isoformat(" ", timespec="microseconds")
        if isinstance(value, Decimal):
            return f"{value:f}"
        if isinstance(value, timedelta):
            return "838:59:59" if value > timedelta() else "-00:00:01.000001"
        return value.isoformat() if isinstance(value, date) else value
    return value


@pytest.mark.parametrize("kind", VALUES)
def test_each_value_comes_back_unchanged(target: Target, kind: str) -> None:
    source = Source({"id": "int", "v": kind})
    values = [*VALUES[kind], None]
    write(target, [source.insert(at, value) for at, value in enumerate(values)])
    held = {row[0]: row[1] for row in target.table("t", "id", "v")}
    assert held == {at: stored(value, target.dialect) for at, value in enumerate(values)}


@pytest.mark.parametrize("kind", ["varchar(99)", "varbinary(99)", "decimal(30,10)", "datetime(6)"])
def test_a_key_of_any_type_names_its_row(target: Target, kind: str) -> None:
    keys: dict[str, list[Any]] = {
        "varchar(99)": ["a", "A", "a ", "\U0001f600", "%s", "ä", "a\\"],
        "varbinary(99)": [b"a", b"A", b"\0", b"%"],
        "decimal(30,10)": [Decimal("1.5"), Decimal("-3")],
        "datetime(6)": [MOMENT, datetime(2000, 1, 1)],
    }
    source = Source({"k": kind, "n": "int", "v": "int"}, keys=2)
    write(target, [source.insert(key, at, at) for at, key in enumerate(keys[kind])])
    write(target, [source.update(key, at, 7) for at, key in enumerate(keys[kind])])
    assert [row[0] for row in target.table("t", "v")] == [7] * len(keys[kind])
    write(target, [source.delete(key, at, 7) for at, key in list(enumerate(keys[kind]))[1:]])
    assert target.table("t", "n", "v") == [(0, 7)]


def test_a_float_has_the_digits_and_the_type_of_the_source(target: Target) -> None:
    source = Source({"k": "float", "f": "float", "d": "double"})
    values = [0.1, 16777216.0, 3.4e38, -0.5]
    write(target, [source.insert(one, one, one) for one in values])
    write(target, [source.update(0.1, 0.2, 0.2), source.delete(-0.5, 0, 0)])
    is_mysql = target.dialect in ("mariadb", "mysql")
    exact = "f + 0e0" if is_mysql else "f"  # it shows six digits only, here as at the source
    held = sorted(target.rows(f"SELECT k, {exact}, d FROM t"))
    kept = [unpack("f", pack("f", row[1]))[0] for row in held]
    assert kept == [unpack("f", pack("f", one))[0] for one in (0.2, *values[1:3])]
    assert [(row[0], row[2]) for row in held] == [(0.1, 0.2), *((one, one) for one in values[1:3])]
    with target.connection() as connection:
        types = {one["name"]: str(one["type"]) for one in sa.inspect(connection).get_columns("t")}
    assert types["f"] == {"postgresql": "REAL", "sqlite": "DOUBLE"}.get(target.dialect, "FLOAT")
    assert types["d"] != types["f"] or target.dialect == "sqlite"


NAMES = ["select", "a b", "a%b", "100%%", "x:y", "?", "ä", "'", "a.b", "Order", "n" * 60]


def test_names_from_hell_are_quoted(target: Target) -> None:
    columns = {"%s id": "int"} | dict.fromkeys(NAMES, "varchar(20)")
    source = Source(columns, "shop.t%s or:der")
    row = (1, *(f"value {at}" for at in range(len(NAMES))))
    write(target, [source.insert(*row), source.insert(2, *row[1:])])
    write(target, [source.update(1, "new"), source.delete(2, *row[1:])])
    assert target.table("t%s or:der", *columns) == [(1, "new", *row[2:])]


def test_a_name_that_the_database_would_cut_is_refused(target: Target) -> None:
    source = Source({"id": "int", "n" * 65: "int"})
    if target.dialect == "sqlite":
        write(target, [source.insert(1, 2)])
        return
    with pytest.raises(SettingsError, match="give the table another name, or leave the column out"):
        write(target, [source.insert(1, 2)])


def test_a_refused_row_is_named_if_it_is_alone(target: Target) -> None:
    target.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) NOT NULL)")
    source = Source({"id": "int", "v": "varchar(9)"})
    bad, good = source.insert(1, None), source.insert(2, "b")
    for changes, named in (([bad], bad), ([bad, good], None)):
        with pytest.raises(SinkRefusedError) as caught:
            write(target, changes)
        assert caught.value.change is named
    assert target.table("t") == []


def test_what_a_database_cannot_store_is_a_refusal(new_target: Any) -> None:
    text, number = Source({"id": "int", "v": "text"}), Source({"id": "int", "v": "double"})
    bad = text.insert(1, "a\0b")
    with pytest.raises(SinkRefusedError, match="NUL"):
        write(new_target("postgresql"), [bad])
    infinite = number.insert(2, float("inf"))
    for dialect in ("mariadb", "mysql"):
        with pytest.raises(
            SinkRefusedError, match="column v: MySQL and MariaDB cannot store inf"
        ) as caught:
            write(new_target(dialect), [number.insert(1, 1.5), infinite])
        assert caught.value.change is infinite
    with pytest.raises(SinkRefusedError, match="SQLite would store NaN as NULL"):
        write(new_target("sqlite"), [number.insert(1, float("nan"))])
    postgres = new_target("postgresql")
    write(postgres, [infinite, number.insert(3, float("nan"))])
    assert [repr(row[0]) for row in postgres.table("t", "v")] == ["inf", "nan"]


def test_a_key_with_a_nul_cannot_be_in_postgresql(new_target: Any) -> None:
    source, postgres = Source({"k": "varchar(9)", "v": "int"}), new_target("postgresql")
    write(postgres, [source.insert("a", 1), source.delete("a\0", 1)])
    assert postgres.table("t") == [("a", 1)]


def test_a_lock_that_is_not_got_is_waited_for(target: Target) -> None:
    source = Source({"id": "int", "v": "int"})
    write(target, [source.insert(1, 1)])
    with target.opened(timeout_s=1) as sink, target.connection() as other:
        other.exec_driver_sql("UPDATE t SET v = 2 WHERE id = 1")
        sink.write([source.update(1, 3)])
        with pytest.raises(SinkUnavailableError, match=r"(?i)lock"):
            sink.flush()


def test_a_password_may_have_any_characters(target: Target, tmp_path: Any) -> None:
    if target.dialect == "sqlite":
        return
    password = "pa#ss wörd ' x%40 💩"
    text = password.replace("'", "''").replace("%", "%%")
    host = "" if target.dialect == "postgresql" else "@'%%'"
    target.run(f"DROP USER IF EXISTS odd{host}")
    if target.dialect == "postgresql":
        target.run(f"CREATE USER odd SUPERUSER PASSWORD '{text}'")
    else:
        target.run(
            f"CREATE USER odd{host} IDENTIFIED BY '{text}'", f"GRANT ALL ON *.* TO odd{host}"
        )
    secret = tmp_path / "secret"
    secret.write_text(password + "\n")
    secret.chmod(0o600)
    url = make_url(target.options["url"]).set(username="odd", password=None)
    given = {"url": url.render_as_string(hide_password=False), "password_file": str(secret)}
    write(target, [Source({"id": "int"}).insert(1)], **given)
    assert target.table("t") == [(1,)]


def test_no_message_has_the_password(target: Target, tmp_path: Any) -> None:
    if target.dialect == "sqlite":
        return
    secret = tmp_path / "secret"
    secret.write_text("geheim\n")
    secret.chmod(0o600)
    sink = target.sink(password_file=str(secret))
    with pytest.raises(SinkUnavailableError) as caught:
        sink.open(OPENING)
    sink.close()
    assert "geheim" not in str(caught.value)
    with pytest.raises(SettingsError, match="put that into password_file") as refused:
        target.sink(url=f"{target.dialect}://a:geheim@127.0.0.1/x")
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "nowhere"}, "write DATABASE://USER@HOST/NAME"),
        ({"url": "postgresql://h"}, "it names no database"),
        ({"url": "mssql://h/x"}, "and not in mssql"),
        ({"table": "{id}"}, r"\{id\} is none of"),
        ({"mode": "scd3"}, "mode"),
        ({"ddl": {"narrow_column": "apply"}}, "narrow_column"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], problem: str, tmp_path: Any) -> None:
    with pytest.raises(SettingsError, match=problem):
        Target(f"sqlite:///{tmp_path}/copy.db", tmp_path).sink(**options)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(1213, "away"), (2006, "away"), (1114, "away"), (4025, "refused"), (1054, "other")],
)
def test_errors_of_mysql_are_told_apart_by_their_number(code: int, kind: str) -> None:
    error: DBAPIError = OperationalError("", {}, Exception(code, "text"))
    assert (is_away(error), is_refusal(error)) == (kind == "away", kind == "refused")


def test_a_row_without_the_columns_of_a_snapshot_is_written(target: Target) -> None:
    source = Source({"id": "int", "v": "int", "w": "int"})
    write(target, [source.made("snapshot", 1, 2)])
    assert target.table("t", "id", "v", "w") == [(1, 2, None)]


# By SQL type, as `TableChange.added` has them: a TIME is microseconds.
DEFAULTS: dict[str, list[Any]] = {
    **VALUES,
    "time(6)": [-1_000_001, 45_000_000_000],
    "float": [1.5, 0.1],
    "varchar(99)": ["", "é", "dé\"f'", "a\\b\\", "\r\n\t", "\U0001f600", "%s %% :x ?", "--", None],
    "bigint unsigned": [Decimal((1 << 64) - 1), None],
    "longtext": ["", "é\n" * 99],
    "longblob": [b"", bytes(range(256))],
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_rows_at_rest_get_the_default_of_a_new_column_as_new_rows_have_it(
    target: Target, kind: str
) -> None:
    table = Source({"id": "int"})
    changes = [table.insert(0, scn=1)]
    for at, default in enumerate(DEFAULTS[kind], 1):
        table = table.altered(table.columns | {f"c{at}": kind}, added={f"c{at}": default})
        is_time = kind == "time(6)" and default is not None
        value = timedelta(microseconds=default) if is_time else default
        changes.append(table.insert(at, *([None] * (at - 1)), value, scn=at + 1))
    write(target, changes)
    for at, default in enumerate(DEFAULTS[kind], 1):
        held = [row[1] for row in target.table("t", "id", f"c{at}")]
        assert held[:at] == [held[at]] * at, default
