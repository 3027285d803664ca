"""The README's relay, consumer and curl lines, on an SQLite shop."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest

from tests.docs.markdown import (
    block_for,
    blocks_of,
)
from tests.docs.shop import commit, make_shop
from tests.docs.terminal import Reader
from tools.repository import ROOT

README = ROOT / "README.md"
CURLS = block_for(README, "curl").text.splitlines()


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody with a shop and the README's relay, which holds two transactions."""
    reader = Reader(tmp_path_factory.mktemp("readme"))
    try:
        make_shop(reader.folder)
        reader.do(block_for(README, "write relay.toml"))
        reader.start_relay()
        commit(reader.folder, "INSERT INTO customers VALUES (1, 'Ada')")
        commit(reader.folder, "INSERT INTO orders VALUES (7, 1, 'paid')")
        reader.wait_for_events(2)
        yield reader
    finally:
        reader.close()


def test_the_consumer_prints_what_it_says_and_goes_on_where_it_stopped(relay: Reader) -> None:
    (relay.folder / "consumer.py").write_text(relay.localized(block_for(README, "consumer").text))
    with relay.opened("first") as first:
        first.paste("python -u consumer.py\n")
        first.wait_for(
            ["insert shop.customers {'id': 1}: …Ada…", "insert shop.orders {'id': 7}: …paid…"]
        )
        first.interrupt()
        assert "Traceback" not in first.output
    commit(relay.folder, "DELETE FROM orders")
    with relay.opened("second") as second:
        second.paste("python -u consumer.py\n")
        second.wait_for(["shop.orders {'id': 7} is gone"])
        assert "Ada" not in second.output


def test_each_curl_line_answers_what_the_text_says(relay: Reader) -> None:
    with relay.opened("curl") as terminal:
        answers = [terminal.run(relay.localized(line)) for line in CURLS]
    sources, schemas, events, health = answers
    assert json.loads(sources) == [
        {"name": "shop.customers", "id": 1},
        {"name": "shop.orders", "id": 2},
    ]
    (schema,) = json.loads(schemas)
    assert json.loads(schema["schema"])["name"] == "customers"
    rows = [json.loads(line) for line in events.splitlines()]
    assert [row["value"] for row in rows if row["srcId"] > 0][:2] == [
        {"id": 1, "name": "Ada"},
        {"id": 7, "customer": 1, "status": "paid"},
    ]
    assert rows[-1]["endOfPeriod"]
    assert json.loads(health)["status"] == "ok"


def test_the_curl_lines_are_curl_lines() -> None:
    assert len(CURLS) == 4
    assert all(shlex.split(line)[:2] == ["curl", "-s"] for line in CURLS)


def test_the_tail_command_prints_the_rows(relay: Reader) -> None:
    text = README.read_text(encoding="utf-8")
    assert "databus tail shop.orders --from earliest" in text
    with relay.opened("tail") as tail:
        tail.paste("databus tail shop.orders --from earliest\n")
        tail.wait_for(["…paid…"])


def test_the_consumer_is_short() -> None:
    # What is promised: a consumer of some 20 lines.
    code = [line for line in block_for(README, "consumer").text.splitlines() if line.strip()]
    assert len(code) <= 20


def test_every_block_of_the_readme_that_a_test_takes_is_taken_by_one() -> None:
    taken = {"write relay.toml", "consumer", "curl"}
    assert {block.test for block in blocks_of(README) if block.test} == taken
