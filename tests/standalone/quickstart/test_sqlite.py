"""What quickstart finds in an SQLite file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from databus.relay.sources.keys import NO_KEY, NULL_KEY
from databus.schemas.errors import SettingsError
from databus.standalone.quickstart.found import FoundTable
from databus.standalone.quickstart.sqlite import look_at_file


def test_every_table_is_listed_and_what_cannot_be_captured_says_why(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "my shop.db")) as shop, shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        shop.execute("CREATE TABLE keyless (a INT)")
        shop.execute("CREATE TABLE loose (a INT, b TEXT NOT NULL, PRIMARY KEY (a, b))")
        shop.execute("CREATE TABLE strict (a TEXT, PRIMARY KEY (a)) WITHOUT ROWID")
        shop.execute("CREATE TABLE hidden (rowid INT, _rowid_ INT, oid INT)")
        shop.execute("CREATE VIEW newest AS SELECT * FROM orders")
    found = look_at_file("sqlite:my shop.db", tmp_path)
    assert found.name == "my_shop"
    by_name = {table.source: table for table in found.tables}
    assert by_name["my_shop.orders"] == FoundTable("my_shop.orders")
    assert by_name["my_shop.keyless"].note == NO_KEY
    assert by_name["my_shop.loose"].note == NULL_KEY
    assert by_name["my_shop.strict"].note == ""
    assert "give it a primary key" in by_name["my_shop.hidden"].problem
    assert "is a view" in by_name["my_shop.newest"].problem
    assert sorted(found.sources) == [
        f"my_shop.{name}" for name in ("keyless", "loose", "orders", "strict")
    ]


def test_a_file_that_is_not_there_or_no_database_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"shop\.db does not exist"):
        look_at_file("sqlite:shop.db", tmp_path)
    (tmp_path / "shop.db").write_text("hello, this is a text and no database at all" * 9)
    with pytest.raises(SettingsError, match="is it an SQLite database"):
        look_at_file("sqlite:shop.db", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]
