"""docs/spark.md from top to bottom, as a notebook: what it shows is what comes out.

<!-- test: shop -->              the tables of the shop
<!-- test: python -->            run, with what the blocks before it have defined
<!-- test: commit -->            a transaction of the shop's
<!-- test: prints -->            all that the block before it has printed; … is anything
<!-- test: command[, exits with N] -->  a command behind a $, and what it prints
"""

from __future__ import annotations

import io
import json
import re
import runpy
import shlex
import sqlite3
import urllib.request
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client.spark.monitoring.metrics import QueryStats, make_metrics
from databus.demo.processes import free_port, wait_until
from databus.demo.stage import Stage
from tests import PATIENCE_S
from tests.docs.markdown import (
    Block,
    block_for,
    blocks_of,
)
from tools.repository import ROOT

PAGE = ROOT / "docs" / "spark.md"
SOURCES = ("shop.customers", "shop.orders")
ROWS = (
    "INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bob');"
    "INSERT INTO orders VALUES (1, 1, 'placed'), (2, 1, 'placed'), (3, 2, 'paid')"
)
# A line that is nothing but … stands for any lines.
ANY_LINES = r"(?:.*\n)*?"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The page's shop, with a relay and a bootstrap pair that have its rows."""
    tables = [one for one in block_for(PAGE, "shop").text.split(";") if one.strip()]
    with Stage("sqlite", tables, SOURCES) as found:
        found.start_relay()
        found.start_bootstrap()
        commit(found, ROWS)
        wait_until(lambda: found.is_seeded, PATIENCE_S, "the pair")
        yield found


def commit(stage: Stage, script: str) -> None:
    """Write a transaction, and wait until relay and bootstrap pair have it."""
    with closing(sqlite3.connect(stage.database.uri.removeprefix("sqlite:"))) as shop:
        with shop:
            for statement in script.split(";"):
                shop.execute(statement)
        ((scn,),) = shop.execute("SELECT max(id) FROM _databus_log").fetchall()

    def has_come() -> bool:
        with urllib.request.urlopen(
            f"{stage.bootstrap_url}/bootstrapStatus", timeout=PATIENCE_S
        ) as answer:
            found = json.loads(answer.read())
        return bool(found["physicalSources"]["shop"]["scn"] >= scn)

    wait_until(has_come, PATIENCE_S, f"scn {scn} in the store")


class Notebook:
    """Somebody who runs the page's blocks, one after another."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._names: dict[str, Any] = {}
        self._printed = ""
        self._places = {
            "http://127.0.0.1:11115": stage.url,
            "http://127.0.0.1:11116": stage.bootstrap_url,
            "9400": str(free_port()),
            # The JVM of the tests was started elsewhere.
            "lake/": f"{folder}/lake/",
        }

    def run(self, block: Block) -> None:
        text = block.text
        for place, here in self._places.items():
            text = text.replace(place, here)
        verb, _, rest = block.test.partition(", exits with ")
        match verb:
            case "shop":
                pass  # the fixture has made it
            case "commit":
                commit(self._stage, text.strip().removesuffix(";"))
            case "python":
                self._python(text, str(block))
            case "prints":
                self._check(text)
            case "command":
                self._command(text, int(rest or 0))
            case _:
                raise AssertionError(f"nobody knows what `test: {block.test}` means")

    def _python(self, text: str, name: str) -> None:
        # Functions of a notebook are sent to workers by value, as those of __main__.
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(text, name, "exec"), self._names)
        self._printed = out.getvalue()

    def _command(self, text: str, exit_code: int) -> None:
        command, _, shown = text.partition("\n")
        dollar, name, *words = shlex.split(command)
        assert (dollar, name) == ("$", "databus")
        result = CliRunner().invoke(main, words)
        assert result.exit_code == exit_code, (result.output, result.exception)
        self._printed = result.output
        self._check(shown)

    def _check(self, shown: str) -> None:
        pattern = "".join(
            ANY_LINES if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n"
            for line in shown.splitlines()
        )
        assert re.fullmatch(pattern, self._printed), f"shown:\n{shown}\nprinted:\n{self._printed}"


@pytest.mark.usefixtures("spark", "delta_runtime")
def test_the_page_can_be_followed_from_top_to_bottom(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relay.toml").write_bytes(stage.settings_file.read_bytes())
    notebook = Notebook(stage, tmp_path)
    for block in blocks_of(PAGE):
        if block.test:
            try:
                notebook.run(block)
            except Exception as error:
                raise AssertionError(f"{block}: {error}") from error


def test_the_page_names_every_metric() -> None:
    metrics = [metric.name for metric in make_metrics(QueryStats()).collect()]
    text = PAGE.read_text(encoding="utf-8")
    names = [name.removeprefix("databus_spark_") for name in metrics]
    assert len(names) > 15
    assert [
        name for name in names if f"`{name}`" not in text and f"`{name}_total`" not in text
    ] == []


@pytest.mark.usefixtures("spark", "delta_runtime")
def test_the_example_keeps_the_orders_and_goes_on_where_it_was(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = runpy.run_path(str(ROOT / "examples" / "spark_orders.py"))
    words = [stage.url, stage.bootstrap_url, str(tmp_path / "lake"), "--once"]
    for number in (71, 72):
        commit(stage, f"INSERT INTO orders VALUES ({number}, 1, 'packed')")
        program["main"](words)
        told = capsys.readouterr().out
        assert f"{number - 70} orders are packed" in told
        assert re.search(r"^orders: batch \d+: .*shop at scn", told, re.M)
