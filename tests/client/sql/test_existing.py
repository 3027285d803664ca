"""When an upsert of rows that are there is an UPDATE of them."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from databus.client.sql.existing import required_columns

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]


@pytest.mark.parametrize(
    ("columns", "key", "expected"),
    [
        ("id INT NOT NULL, v INT, PRIMARY KEY (id)", ["id"], {"id"}),
        ("a INT, b INT, v INT NOT NULL, PRIMARY KEY (a, b)", ["b", "a"], {"a", "b", "v"}),
        ("id INT NOT NULL, v INT DEFAULT 7 NOT NULL, PRIMARY KEY (id)", ["id"], {"id"}),
        ("id INT NOT NULL, v INT, PRIMARY KEY (id), UNIQUE (v)", ["id"], None),
        ("id INT, v INT, UNIQUE (id)", ["id"], None),
        ("id INT, v INT", ["id"], None),
        ("a INT, b INT, PRIMARY KEY (a)", ["a", "b"], None),
    ],
)
def test_an_upsert_needs_the_only_unique_key_and_what_must_be_given(
    connection: sa.Connection, columns: str, key: list[str], expected: set[str] | None
) -> None:
    connection.exec_driver_sql(f"CREATE TABLE t ({columns})")
    table = sa.Table("t", sa.MetaData())
    found = required_columns(connection, table, key)
    if found is not None and connection.dialect.name == "sqlite":
        # It lets a column of a key be NULL.
        found |= set(key)
    assert found == expected
