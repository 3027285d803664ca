"""The statements that make one table of another."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import sqlalchemy as sa

from databus.client.sql.altering import Altering
from databus.client.sql.column_types import decimal


class Column(NamedTuple):
    """A column that stays."""

    name: str
    was: str
    value: None = None


@pytest.mark.parametrize(("was", "now"), [(0, 3), (2, 3), (3, 3), (2, 38)])
def test_decimals_that_are_texts_get_the_decimal_places_of_their_new_type(
    was: int, now: int
) -> None:
    """Also a text that an earlier version has left with fewer places than its type."""
    engine = sa.create_engine("sqlite://")
    old, new = (
        sa.Table("t", sa.MetaData(), sa.Column(name, decimal(engine.dialect, 40, places)))
        for name, places in (("a", was), ("b%", now))
    )
    fraction = f".{'5' * was}" if was else ""
    texts = ["7", f"-1{fraction}", f"0{fraction}", f"{'1' * 38}{fraction}", None]
    with engine.connect() as connection:
        old.create(connection)
        connection.exec_driver_sql("INSERT INTO t VALUES (?)", [(text,) for text in texts])
        for statement in Altering(old, new, [Column("b%", "a")], engine.dialect).one_by_one():
            connection.exec_driver_sql(statement)
        found = connection.exec_driver_sql("SELECT * FROM t").scalars().all()
    engine.dispose()
    left = fraction or "."
    padded = [text and text.ljust(len(text.partition(".")[0]) + 1 + now, "0") for text in
              ["7.", f"-1{left}", f"0{left}", f"{'1' * 38}{left}", None]]  # fmt: skip
    assert found == (texts if was == now else padded)
