"""Every example of docs/sinks.md, pasted and run against a relay."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.demo.processes import child_environment, wait_until
from tests.docs.markdown import blocks_of
from tests.docs.shop import reader_of_three_rows
from tests.docs.terminal import Reader
from tools.repository import ROOT

PAGE = ROOT / "docs" / "sinks.md"
BLOCKS = {block.test: block for block in blocks_of(PAGE) if block.test}
PATIENCE_S = 30.0


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
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=child_environment()
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
