"""Twelve tasks with the client, each run against a relay, and with aiokafka, each type-checked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from databus.client import DatabusClient, DataWindow
from databus.demo.processes import Child, wait_until
from databus.testing import RelayForTests, running_relay
from tests import PATIENCE_S
from tests.docs.markdown import blocks_of
from tools.repository import ROOT

BLOCKS = {block.test: block.text for block in blocks_of(ROOT / "docs" / "side-by-side.md")}
THEIRS = ", theirs"
TASKS = [name for name in BLOCKS if f"{name}{THEIRS}" in BLOCKS]
PRINTED = {
    "call a function for each change": "insert {'id': 1, 'status': 'paid'}",
    "a loop": "insert {'id': 1}",
    "asyncio": "transaction with 4 changes",
    "commit by hand": "store [{'id': 1, 'status': 'paid'}",
    "batches to a database": "copied 3",
    "go on from a time": "'status': 'paid'",
    "two filters": "[{'id': 1, 'status': 'paid'}, {'id': 5, 'country': 'at'}]",
    "typed rows": "[Order(id=1, status='paid')",
    "a row that nobody can process": "shipped {'id': 1}",
    "several workers": "{'id': 1, 'status': 'paid'}",
    "shut down on sigterm": "insert {'id': 1}",
    "a unit test": "passed",
}


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayForTests]:
    """A relay with one transaction of a customer and three orders, of which one is gone again."""
    orders = "CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)"
    customers = "CREATE TABLE customers (id INTEGER PRIMARY KEY, country TEXT)"
    with running_relay(orders, customers) as relay:
        relay.execute("INSERT INTO customers VALUES (4, 'ch')")
        first_window(relay, "shop.customers")
        relay.execute(
            "INSERT INTO orders VALUES (1, 'paid'), (2, 'lost'), (3, 'new')",
            "INSERT INTO customers VALUES (5, 'at')",
            "DELETE FROM orders WHERE id = 3",
        )
        yield relay


def first_window(relay: RelayForTests, source: str) -> DataWindow:
    """Return the first window of a source, once it is there."""
    with DatabusClient(relay.url) as client:
        return next(client.windows(source))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_done(relay: RelayForTests, tmp_path: Path, name: str) -> None:
    # What was committed an hour ago, before the first window, is not known.
    since = datetime.fromtimestamp(first_window(relay, "shop.orders").timestamp_ns / 1e9, UTC)
    program = f"{BLOCKS['ours']}\n\n{BLOCKS[name]}".replace("http://127.0.0.1:11115", relay.url)
    program = program.replace("datetime.now(UTC) - timedelta(hours=1)", repr(since))
    program = program.replace("datetime.datetime(", "datetime(").replace(
        "datetime.timezone.utc", "UTC"
    )
    (tmp_path / "program.py").write_text(program)
    command = ["env", "-C", str(tmp_path), sys.executable, "-u", "program.py"]
    child = Child("program", command, tmp_path)
    child.start()
    try:
        wait_until(lambda: PRINTED[name] in _output(child), PATIENCE_S, f"the output of {name}")
        if "SIGTERM" in BLOCKS[name]:
            child.stop()
            assert "stopped behind a whole transaction" in _output(child)
            assert child.exit_code == 0
    except TimeoutError:
        raise AssertionError(_output(child)) from None
    finally:
        child.kill()


def _output(child: Child) -> str:
    found = child.log.read_text("utf-8")
    assert "Traceback" not in found, found
    return found


def test_none_is_longer_than_with_aiokafka() -> None:
    lengths = {name: (_lines(BLOCKS[name]), _lines(BLOCKS[f"{name}{THEIRS}"])) for name in TASKS}
    assert {name: both for name, both in lengths.items() if both[0] > both[1]} == {}
    assert _lines(BLOCKS["ours"]) <= _lines(BLOCKS["theirs"])


def _lines(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.strip())


def test_what_is_compared_is_right_by_its_types(tmp_path: Path) -> None:
    for number, name in enumerate(TASKS):
        text = f"{BLOCKS['theirs']}\n\n\n{BLOCKS[f'{name}{THEIRS}']}\n"
        (tmp_path / f"task_{number}.py").write_text(text)
    # The type of a message's value does not know its deserializer.
    (tmp_path / "pyrightconfig.json").write_text('{"reportOptionalSubscript": false}')
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    ended = subprocess.run(
        [*command, "-p", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    found = json.loads(ended.stdout)
    assert found["summary"]["filesAnalyzed"] == len(TASKS) == 12
    told = [
        (TASKS[int(Path(one["file"]).stem.removeprefix("task_"))], one["message"])
        for one in found["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert told == []


def test_there_are_twelve_tasks() -> None:
    assert set(TASKS) == set(PRINTED)
    assert len(TASKS) == 12
