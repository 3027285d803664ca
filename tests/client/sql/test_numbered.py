"""Statements with numbered parameters."""

from __future__ import annotations

import sqlalchemy as sa

from databus.client.sql.numbered import numbered, with_numbers

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]


def test_each_place_gets_its_number() -> None:
    assert with_numbers("a = ~ AND b IN (~, ~)", "~") == "a = $1 AND b IN ($2, $3)"
    assert with_numbers("SELECT 1", "~") == "SELECT 1"


def test_only_postgres_takes_numbers_and_only_meanwhile(connection: sa.Connection) -> None:
    is_postgres = connection.dialect.name == "postgresql"
    with numbered(connection) as is_numbered:
        assert is_numbered is is_postgres
        if is_numbered:
            found = connection.exec_driver_sql("SELECT $2::text || '%', $1::int", (7, "a"))
            assert found.all() == [("a%", 7)]
    assert connection.execute(sa.select(sa.literal("x%s"))).scalar() == "x%s"
