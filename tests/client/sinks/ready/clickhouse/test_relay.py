"""Rows of MariaDB, through a relay, end up in ClickHouse as they are at their source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from databus.demo.databases import Session
from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage
from tests import PATIENCE_S
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.clickhouse.targets import columns

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]
pytestmark = pytest.mark.mariadb

# By type: what is inserted, and what ClickHouse shows of it.
TYPES: dict[str, tuple[str, str, str]] = {
    "TINYINT": ("-128", "toString({})", "-128"),
    "SMALLINT UNSIGNED": ("65535", "toString({})", "65535"),
    "MEDIUMINT": ("-8388608", "toString({})", "-8388608"),
    "INT UNSIGNED": ("4294967295", "toString({})", "4294967295"),
    "BIGINT": ("-9223372036854775808", "toString({})", "-9223372036854775808"),
    "BIGINT UNSIGNED": ("18446744073709551615", "toString({})", "18446744073709551615"),
    "DECIMAL(65,30)": ("-1234567890123456789012345678901234.5", "toString({})",
                       "-1234567890123456789012345678901234.5"),
    "FLOAT": ("0.5", "toString({})", "0.5"),
    "DOUBLE": ("1.7976931348623157e308", "toString({})", "1.7976931348623157e308"),
    "DATE": ("'1900-01-01'", "toString({})", "1900-01-01"),
    "DATETIME(6)": ("'2299-12-31 23:59:59.999999'", "toString({})", "2299-12-31 23:59:59.999999"),
    "TIMESTAMP(6)": ("'2026-02-28 01:02:03.000004'", "toString({})", "2026-02-28 01:02:03.000004"),
    "TIME(6)": ("'-838:59:59'", "{}", "-838:59:59"),
    "YEAR": ("2155", "toString({})", "2155"),
    "CHAR(9)": ("'\U0001f600'", "{}", "\U0001f600"),
    "VARCHAR(99)": ("'\\0\\t\\\\\\''", "{}", "\0\t\\'"),
    "LONGTEXT": ("REPEAT('x', 70000)", "toString(length({}))", "70000"),
    "JSON": ("'{\"a\": null}'", "{}", '{"a": null}'),
    "ENUM('a','b')": ("'b'", "{}", "b"),
    "SET('a','b')": ("'a,b'", "{}", "a,b"),
    "BIT(9)": ("b'100000001'", "hex({})", "0101"),
    "VARBINARY(9)": ("x'FF00270A'", "hex({})", "FF00270A"),
    "LONGBLOB": ("x'FFFE'", "hex({})", "FFFE"),
}  # fmt: skip
COLUMNS = {f"c{at}": kind for at, kind in enumerate(TYPES)}
WANTED = [shown for _, _, shown in TYPES.values()]
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "copy"
kind = "clickhouse"
sources = ["shop.*"]
options = {{ url = "{target}", database = "shop", ddl = {{ drop_column = "apply" }} }}
flush = {{ seconds = 0.1 }}
"""


@pytest.fixture
def session(clickhouse: PrivateClickHouse) -> Iterator[Session]:
    """Yield a session with MariaDB, whose tables a relay and a sink follow."""
    listed = ", ".join(f"{name} {kind} NULL" for name, kind in COLUMNS.items())
    table = f"CREATE TABLE t (id INT PRIMARY KEY, {listed})"
    with Stage("mysql", [table], ["shop.t"]) as made:
        made.start_relay()
        settings = made.folder / "sink.toml"
        settings.write_text(SINKS.format(url=made.url, target=clickhouse.url))
        made.child(
            "sinks", python_module("databus.cli.main", "sink", "run", "-c", settings)
        ).start()
        with closing(made.database.connect()) as session:
            yield session


def commit(session: Session, *statements: str) -> None:
    session.begin()
    for statement in statements:
        session.execute(statement)
    session.commit()


def expect(server: PrivateClickHouse, query: str, wanted: list[tuple[Any, ...]]) -> None:
    seen: list[Any] = []

    def is_there() -> bool:
        try:
            seen[:] = server.rows(query)
        except AssertionError as error:  # the table, or a column, is not there yet
            seen[:] = [error]
        return seen == wanted

    try:
        wait_until(is_there, PATIENCE_S, query)
    finally:
        assert seen == wanted


def test_all_types_and_all_changes_arrive(clickhouse: PrivateClickHouse, session: Session) -> None:
    values = ", ".join(value for value, _, _ in TYPES.values())
    nulls = ", ".join("NULL" for _ in TYPES)
    commit(session, f"INSERT INTO t VALUES (1, {values}), (2, {nulls})")
    shown = (how.format(name) for name, (_, how, _) in zip(COLUMNS, TYPES.values(), strict=True))
    query = f"SELECT id, {', '.join(shown)} FROM shop.t FINAL ORDER BY id"
    expect(clickhouse, query, [(1, *WANTED), (2, *[None] * len(WANTED))])
    made = columns(clickhouse)
    assert made["id"] == "Int32"
    assert all(kind.startswith("Nullable(") for name, kind in made.items() if name != "id")

    short = "SELECT id, c0 FROM shop.t FINAL ORDER BY id"
    commit(
        session,
        "UPDATE t SET c0 = 5 WHERE id = 1",
        "UPDATE t SET c0 = 6 WHERE id = 1",  # twice in one transaction
        "UPDATE t SET id = 3 WHERE id = 2",
        "INSERT INTO t (id, c0) VALUES (4, 4)",
        "DELETE FROM t WHERE id = 4",
    )
    expect(clickhouse, short, [(1, 6), (3, None)])
    session.execute("ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT 7, MODIFY c0 BIGINT")
    session.execute("ALTER TABLE t CHANGE c1 z BIGINT UNSIGNED, DROP COLUMN c2")
    commit(session, "UPDATE t SET c0 = 1099511627776, n = 8 WHERE id = 3")
    wide = "SELECT id, toString(c0), n, toString(z) FROM shop.t FINAL ORDER BY id"
    expect(clickhouse, wide, [(1, "6", 7, "65535"), (3, "1099511627776", 8, None)])
    assert "c2" not in columns(clickhouse)
    session.execute("TRUNCATE TABLE t")
    commit(session, "INSERT INTO t (id, n) VALUES (1, 1)")
    expect(clickhouse, "SELECT id, n FROM shop.t FINAL", [(1, 1)])
