"""The row that a database refuses among many."""

from __future__ import annotations

import re
from functools import partial

import pytest
import sqlalchemy as sa

from databus.client.sql.refusals import first_refused, said
from databus.client.sql.statements import Statements

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

COUNT = 700


@pytest.mark.parametrize("wrong", [0, 1, 333, COUNT - 1])
def test_the_first_refused_row_is_found_and_nothing_is_written(
    connection: sa.Connection, wrong: int
) -> None:
    key = sa.Column("id", sa.Integer, primary_key=True, autoincrement=False)
    table = sa.Table("t", sa.MetaData(), key, sa.Column("v", sa.Integer, unique=True))
    table.create(connection)
    connection.execute(table.insert(), {"id": -1, "v": -1})
    # The last one is wrong only after a row before it.
    rows = [(at, at) for at in range(COUNT)] + [(COUNT, 5)]
    rows[wrong] = (wrong, -1)
    write = partial(Statements(connection, table).insert, ["id", "v"])
    at, error = first_refused(connection, write, rows)
    assert at == wrong
    assert error is not None
    assert re.search("unique|duplicate", said(error), re.IGNORECASE)
    rows[wrong] = (wrong, COUNT + wrong)
    assert first_refused(connection, write, rows)[0] == COUNT
    assert connection.execute(table.select()).all() == [(-1, -1)]
