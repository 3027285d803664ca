"""Dead letters that are written again: only where nothing newer of the row was."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client.dead_letters import DeadLetterFile
from databus.client.sinks.contract import Change, ChangeOp, TransactionInfo
from databus.client.sinks.rules.typed_values import from_json, to_json
from databus.client.sinks.running.dead_letters import DeadLetters, change_of, lines_of
from databus.client.sinks.running.lane import Trouble
from databus.demo.processes import Child, python_module, wait_until
from databus.demo.stage import Stage
from databus.schemas.errors import CheckpointError
from tests import PATIENCE_S
from tests.client.sinks.changes import made
from tests.client.sinks.serving.test_killed import copied

SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "a"
kind = "tests.client.sinks.copy_sink:PickyCopy"
sources = ["shop.*"]
options = {{ path = "{folder}/copy.db" }}
flush = {{ rows = 1 }}
failures = {{ refused = {{ retries = 0, then = "dead-letter" }} }}
"""
TROUBLE = Trouble(0, "refused", 1, 1)


class Shop:
    """A database, a relay, and the process of a sink that refuses some rows."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.folder = stage, stage.folder
        (self.folder / "sink.toml").write_text(SINKS.format(url=stage.url, folder=self.folder))
        self.refuse()
        command = python_module("databus.cli.main", "sink", "run", "-c", self.folder / "sink.toml")
        self.sinks: Child = stage.child("sinks", command)
        self.session = stage.database.connect()

    def refuse(self, *ids: int) -> None:
        (self.folder / "copy.db.refused").write_text(json.dumps(ids))

    def execute(self, *statements: str) -> None:
        for text in statements:
            self.session.execute(text)

    def rows(self) -> dict[int, int]:
        return {key: row["v"] for (_, key), row in copied(self.folder / "copy.db").items()}

    def letters(self) -> list[dict[str, Any]]:
        lines = lines_of(self.folder / "state" / "a.dead-letters.jsonl")
        return [line.values for line in lines if not line.is_note]

    def replay(self, *options: str) -> Any:
        words = ["sink", "replay-dead-letters", "a", "-c", str(self.folder / "sink.toml"), *options]
        return CliRunner().invoke(main, words)


@pytest.fixture
def shop() -> Iterator[Shop]:
    tables = ["CREATE TABLE t1 (id INTEGER PRIMARY KEY, v INTEGER)"]
    with Stage("sqlite", tables, ["shop.t1"]) as stage:
        stage.start_relay()
        found = Shop(stage)
        try:
            yield found
        finally:
            found.session.close()


def test_rows_without_anything_newer_are_written_and_leave_the_file(shop: Shop) -> None:
    shop.refuse(2, 3)
    shop.sinks.start()
    shop.execute("INSERT INTO t1 VALUES (1, 10), (2, 20), (3, 30)")
    wait_until(lambda: len(shop.letters()) == 2, PATIENCE_S, "two letters")
    wait_until(lambda: shop.rows() == {1: 10}, PATIENCE_S, "the other row")
    running = shop.replay()
    assert (running.exit_code, "in use by process" in running.output) == (1, True)
    shop.sinks.stop()
    shop.refuse(3)
    result = shop.replay()
    assert result.exit_code == 1
    assert 'written: insert shop.t1 {"id": 2}' in result.output
    assert 'failed: insert shop.t1 {"id": 3}' in result.output
    assert shop.rows() == {1: 10, 2: 20}
    (letter,) = shop.letters()
    assert (letter["key"], letter["attempts"]) == ({"id": 3}, 2)
    mode = (shop.folder / "state" / "a.dead-letters.jsonl").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600
    shop.refuse()
    assert shop.replay().exit_code == 0
    assert shop.rows() == {1: 10, 2: 20, 3: 30}
    assert "there are no dead letters" in shop.replay().output


def test_an_older_row_never_overwrites_what_came_since_also_after_kills(shop: Shop) -> None:
    shop.refuse(1, 2, 3)
    shop.sinks.start()
    shop.execute("INSERT INTO t1 VALUES (1, 1)", "INSERT INTO t1 VALUES (2, 2)")
    shop.execute("INSERT INTO t1 VALUES (3, 3)", "UPDATE t1 SET v = 33 WHERE id = 3")
    wait_until(lambda: len(shop.letters()) == 4, PATIENCE_S, "the letters")
    shop.sinks.kill()
    shop.refuse(3)
    shop.sinks.start()
    shop.execute("UPDATE t1 SET v = 11 WHERE id = 1", "DELETE FROM t1 WHERE id = 2")
    shop.execute("INSERT INTO t1 VALUES (4, 4)")
    wait_until(lambda: shop.rows() == {1: 11, 4: 4}, PATIENCE_S, "the newer rows")
    shop.sinks.kill()
    shop.refuse()
    result = shop.replay()
    assert result.exit_code == 0, result.output
    assert shop.rows() == {1: 11, 3: 33, 4: 4}
    assert "not written, as something newer of the row was: insert shop.t1" in result.output
    assert {one["key"]["id"] for one in shop.letters()} == {1, 2}
    assert shop.replay("--forget-superseded").exit_code == 0
    assert shop.letters() == []
    assert (shop.folder / "state" / "a.dead-letters.jsonl").read_bytes() == b""


# The file


@contextmanager
def letters(folder: Path) -> Iterator[DeadLetters]:
    yield DeadLetters(DeadLetterFile(folder / "letters"), "a", "shop")


def notes(folder: Path) -> list[tuple[Any, ...]]:
    lines = lines_of(folder / "letters")
    return [(one.values["newer"], one.values["scn"]) for one in lines if one.is_note]


def test_only_what_is_newer_is_noted_and_once(tmp_path: Path) -> None:
    with letters(tmp_path) as one:
        one.coming([made("update", 1, scn=4)])
        one.keep(made("update", 1, scn=5), TROUBLE)
        one.coming([made("update", 1, scn=5), made("update", 1, scn=3), made("update", 2, scn=9)])
        one.coming([made("insert", 1, "shop.others", scn=9)])
    assert notes(tmp_path) == []
    with letters(tmp_path) as one:  # another process
        one.coming([made("snapshot", 1, scn=4)])
        one.coming([made("update", 1, scn=6), made("update", 1, scn=7)])
        one.coming([made("update", 1, scn=8)])
    assert notes(tmp_path) == [("update", 6)]


@pytest.mark.parametrize("op", ["truncate", "snapshot"])
def test_a_page_and_a_truncate_are_newer_too(tmp_path: Path, op: str) -> None:
    with letters(tmp_path) as one:
        one.keep(made("update", 1, scn=5), TROUBLE)
        one.coming([made(op, 1, scn=5 if op == "snapshot" else 6)])
    assert len(notes(tmp_path)) == 1


def test_a_letter_has_its_row_with_all_types() -> None:
    row = {
        "id": 1,
        "price": Decimal("1.20"),
        "raw": b"\x00\xff",
        "at": datetime(2026, 11, 29, 4, 5, 6, 7, tzinfo=UTC),
        "day": date(2026, 11, 29),
        "hour": time(1, 2, 3),
        "span": timedelta(hours=-30, microseconds=1),
        "x": float("inf"),
        "json": {"$decimal": "not one", "list": [1, None, {"a": "b"}]},
        "none": None,
    }
    assert from_json(json.loads(json.dumps(to_json(row)))) == row


def test_a_change_is_the_same_after_its_letter(tmp_path: Path) -> None:
    info = TransactionInfo(5, 6, "0-1-17", 1)
    price = {"id": 1, "price": Decimal("1.20")}
    change = Change(ChangeOp.UPDATE, "shop.t", {"id": 1}, None, price, info, 5, 6, 2)
    with letters(tmp_path) as one:
        one.keep(change, TROUBLE)
    (line,) = lines_of(tmp_path / "letters")
    assert change_of(line.values) == change
    assert line.values["row"] == {"id": 1, "price": "1.20"}


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    with letters(tmp_path) as one:
        one.keep(made("update", 1, scn=5), TROUBLE)
        with (tmp_path / "letters").open("ab") as file:
            file.write(b'{"at": 17, "si')
        assert [line.values["scn"] for line in lines_of(tmp_path / "letters")] == [5]
        one.keep(made("update", 2, scn=6), TROUBLE)
    assert [line.values["scn"] for line in lines_of(tmp_path / "letters")] == [5, 6]


def test_a_file_that_has_something_else_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text('{"sink": "a"}\n')
    with pytest.raises(CheckpointError, match="line 1: it is no dead letter"):
        list(lines_of(tmp_path / "letters"))
