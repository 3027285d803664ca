"""Values go to a driver, and come back from it, unchanged."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa

from databus.client.sql import column_types
from databus.client.sql.statements import Statements
from databus.client.sql.values import to_driver

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

# By kind of type: values of which none is NULL.
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "integer": [-(1 << 63), (1 << 63) - 1],
    "double": [0.1, -1.5e300],
    "decimal": [Decimal("12345678901234567890.123456"), Decimal("-0.000001")],
    "date": [date(1000, 1, 1), date(9999, 12, 31)],
    "moment": [datetime(2026, 3, 29, 2, 30, 0, 999999), datetime(1000, 1, 1)],
    "data": [b"\0\xff'\\%", b""],
    "text": ["%s ? \\ ' \" \U0001f600 ", ""],
}


def types(dialect: sa.Dialect) -> dict[str, Any]:
    return {
        "boolean": sa.Boolean(),
        "integer": sa.BigInteger(),
        "double": sa.Double(),
        "decimal": column_types.decimal(dialect, 26, 6),
        "date": sa.Date(),
        "moment": column_types.moment(),
        "data": column_types.key_data(20),
        "text": column_types.key_text(dialect, 20),
    }


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_was_written_is_found_and_read_again(
    connection: sa.Connection, name: str
) -> None:
    dialect = connection.dialect
    kind = types(dialect)[name]
    key = sa.Column("k", kind, primary_key=True, autoincrement=False)
    table = sa.Table("t", sa.MetaData(), key, sa.Column("v", kind))
    table.create(connection)
    statements, convert = Statements(connection, table), to_driver(kind, dialect)
    given = [value if convert is None else convert(value) for value in VALUES[name]]
    lines = [(value, other) for value, other in zip(given, [given[0], None], strict=True)]
    statements.insert(["k", "v"], lines)
    found = statements.select(["k", "v"], ["k"], [(one,) for one in given], types=[kind, kind])
    expected = dict(zip(VALUES[name], [VALUES[name][0], None], strict=True))
    held: dict[Any, Any] = dict(found)
    assert held == expected
    assert {type(one) for one in held} == {type(VALUES[name][0])}
    # As SQLAlchemy itself stores and reads it.
    assert dict(connection.execute(table.select()).all()) == expected
    assert connection.scalar(sa.select(sa.func.count()).where(key.in_(VALUES[name]))) == 2


@pytest.mark.parametrize("name", VALUES)
def test_a_key_of_several_columns_is_found_by_values_of_its_types(
    connection: sa.Connection, name: str
) -> None:
    dialect = connection.dialect
    kind = types(dialect)[name]
    key = sa.Column("k", kind, primary_key=True, autoincrement=False)
    other = sa.Column("n", sa.Integer, primary_key=True, autoincrement=False)
    table = sa.Table("t", sa.MetaData(), key, other)
    table.create(connection)
    statements = Statements(connection, table, is_typed=True)
    convert = to_driver(kind, dialect)
    given = [value if convert is None else convert(value) for value in VALUES[name]]
    lines = [(value, at) for at, value in enumerate(given)]
    statements.insert(["k", "n"], lines)
    found = statements.select(["k", "n"], ["k", "n"], lines, types=[kind, other.type])
    assert sorted(found, key=lambda row: row[1]) == list(zip(VALUES[name], [0, 1], strict=True))
    statements.delete(["k", "n"], lines[:1] * 2)
    assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 1
