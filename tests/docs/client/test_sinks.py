"""Every example of the pages on sinks, pasted and run against a relay."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import URL, make_url

from databus.demo.processes import child_environment, wait_until
from tests import PATIENCE_S
from tests.docs.markdown import blocks_of
from tests.docs.shop import commit, make_shop, reader_of_three_rows
from tests.docs.terminal import Reader
from tools.repository import ROOT

PAGES = [ROOT / "docs" / name for name in ("sinks.md", "sink-kinds.md")]
BLOCKS = {block.test: block for page in PAGES for block in blocks_of(page) if block.test}

pytest_plugins = ["tests.postgres"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody with a relay that holds one transaction of three rows."""
    with reader_of_three_rows(tmp_path_factory.mktemp("sinks")) as reader:
        yield reader


def test_every_example_is_taken() -> None:
    assert set(BLOCKS) == {
        "write sink.toml",
        "run",
        "look",
        "write my_sink.py",
        "application",
        "in tests",
        "write relay.toml",
        "write copy.toml",
        "copy",
    }


def test_the_first_sinks_print_and_archive_every_change(reader: Reader) -> None:
    reader.do(BLOCKS["write sink.toml"])
    with reader.opened("sinks") as terminal:
        terminal.paste(reader.localized(BLOCKS["run"].text))
        terminal.wait_for(['…"source":"shop.customers","key":{"id":1}', '…"id":5'])
        wait_until(lambda: archived(reader.folder) == 3, PATIENCE_S, "the archive")
        with reader.opened("looking") as other:
            shown = other.run(reader.localized(BLOCKS["look"].text))
    assert "valid settings for a sink" in terminal.output
    assert "archive  files  shop.*  running, lag " in shown
    assert "shown  shop  scn " in shown


def archived(folder: Path) -> int:
    entries = (folder / "archive" / "_manifest").glob("*.json")
    return sum(json.loads(entry.read_text())["rows"] for entry in entries)


def test_three_tables_have_a_copy_in_postgresql(tmp_path: Path, postgres_url: str) -> None:
    reader, url = Reader(tmp_path), make_url(postgres_url)
    try:
        make_shop(reader.folder)
        commit(reader.folder, "CREATE TABLE items (id INTEGER PRIMARY KEY, price DECIMAL(10, 2))")
        reader.do(BLOCKS["write relay.toml"])
        reader.start_relay()
        commit(reader.folder, "INSERT INTO customers VALUES (1, 'Ada')")
        commit(reader.folder, "INSERT INTO orders VALUES (4, 1, 'paid')")
        commit(reader.folder, "INSERT INTO items VALUES (7, 9.99)")
        password = reader.folder / "copy-password"
        password.write_text(f"{url.password}\n")
        password.chmod(0o600)
        named = f"postgresql://{url.username}@{url.host}:{url.port}/{url.database}"
        text = BLOCKS["write copy.toml"].text.replace(
            "postgresql://copy@127.0.0.1/shop_copy", named
        )
        (reader.folder / "copy.toml").write_text(reader.localized(text))
        with reader.opened("copy") as terminal, closing(psycopg.connect(plain(url))) as copy:
            copy.autocommit = True
            terminal.paste(reader.localized(BLOCKS["copy"].text))
            wanted = {"customers": (1, "Ada"), "orders": (4, 1, "paid"), "items": (7, "9.99")}
            for table, row in wanted.items():
                wait_until(lambda t=table, r=row: rows(copy, t) == [r], PATIENCE_S, table)  # type: ignore[misc]
            assert "valid settings for a sink" in terminal.output
    finally:
        reader.close()


def plain(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def rows(copy: psycopg.Connection[Any], table: str) -> list[tuple[Any, ...]]:
    try:
        return copy.execute(f"TABLE {table}".encode()).fetchall()
    except psycopg.errors.UndefinedTable:
        return []


def test_a_sink_of_ones_own_copies_a_table(reader: Reader) -> None:
    folder = reader.folder
    reader.do(BLOCKS["write my_sink.py"])
    (folder / "program.py").write_text(reader.localized(BLOCKS["application"].text))
    with reader.opened("program") as terminal:
        terminal.paste("python -u program.py\n")
        wait_until(lambda: copied(folder) == [(4, "paid"), (5, "paid")], PATIENCE_S, "the copy")
        assert "Traceback" not in terminal.output


def copied(folder: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(folder / "copy.db")) as copy:
        try:
            return copy.execute("SELECT id, status FROM orders ORDER BY id").fetchall()
        except sqlite3.OperationalError:
            return []


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(BLOCKS["in tests"].text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=child_environment(),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
