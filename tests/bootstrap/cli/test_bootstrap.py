"""`databus bootstrap …` as somebody runs it: processes around an SQLite shop."""

from __future__ import annotations

import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from databus.bootstrap.store.values import SourceStatus
from databus.cli.main import main
from databus.demo.processes import Child, free_port, python_module
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from tests import PATIENCE_S
from tests.bootstrap.filled import PERSON, make_filled, stored
from tests.bootstrap.serving import ServedStore
from tests.bootstrap.walking import snapshot_at, split
from tests.promises.running import RunningRelay, to_toml, wait_until

SOURCE = "shop.person"


class Shop:
    """An SQLite shop with rows from before, a relay, and the settings of a pair."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "shop.db"
        self.execute("CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT)")
        self.execute("INSERT INTO person VALUES (1, 'Ann'), (2, 'Bob')")
        physical = {"name": "shop", "uri": f"sqlite:{self.path}", "sources": [SOURCE]}
        self.relay = RunningRelay(folder, physical)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "bootstrap.toml"
        options = {"data_dir": str(folder / "pair"), "relays": [self.relay.url]}
        self.config.write_text(to_toml(options, {"port": self.port}, [physical]), "utf-8")
        self.children: list[Child] = []

    def execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=PATIENCE_S)) as connection, connection:
            connection.execute(statement)

    def start(self, name: str, *words: str) -> Child:
        """Start `databus bootstrap …` as a process."""
        child = Child(name, command(*words, "-c", self.config), self.folder)
        child.start()
        self.children.append(child)
        return child

    def status(self) -> dict[str, Any]:
        """Return what the command prints about the one source."""
        found = json.loads(invoke("status", "-c", self.config, "--json").stdout)
        sources: dict[str, dict[str, Any]] = found["shop"]["sources"]
        return sources.get(SOURCE, {})

    def get(self, path: str, url: str | None = None) -> bytes:
        with urllib.request.urlopen((url or self.url) + path, timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
        return body

    def is_served(self) -> bool:
        try:
            return self.get(f"/targetSCN?source={SOURCE}") != b""
        except OSError:
            return False

    def close(self) -> None:
        for child in self.children:
            child.stop()
        self.relay.child.stop()


def command(*words: object) -> list[str]:
    return python_module("databus.cli.main", "bootstrap", *words)


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, ["bootstrap", *map(str, words)], prog_name="databus")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    made.relay.start()
    try:
        yield made
    finally:
        made.close()


def test_run_produces_seeds_and_serves_and_ends_at_a_signal(shop: Shop) -> None:
    pair = shop.start("pair", "run")
    shop.execute("INSERT INTO person VALUES (3, 'Eve')")
    wait_until(shop.is_served, "the pair", pair.log_tail)
    checkpoint = Checkpoint(ConsumptionMode.SNAPSHOT).to_json()
    start_scn = int(json.loads(shop.get(f"/startSCN?sources={SOURCE}&checkPoint={checkpoint}")))
    at = snapshot_at(SOURCE, start_scn).to_json()
    page = shop.get(f"/bootstrap?sources={SOURCE}&batchSize=9999&maxev=2&checkPoint={at}")
    events, _ = split(page)
    assert sorted(event.key for event in events) == [1, 2, 3]
    assert f"listening on {shop.url}" in pair.log_tail()
    pair.stop()
    assert pair.exit_code == 0
    assert "Traceback" not in pair.log_tail()


def test_the_parts_of_a_pair_may_be_processes_of_their_own(shop: Shop) -> None:
    producer = shop.start("producer", "run", "--no-serve", "--no-seed")
    shop.execute("INSERT INTO person VALUES (3, 'Eve')")
    wait_until(lambda: shop.status().get("status") == "new", "the store", producer.log_tail)
    server = shop.start("server", "serve")
    wait_until(lambda: "listening" in server.log_tail(), "the server", server.log_tail)
    with pytest.raises(urllib.error.HTTPError) as refused:
        shop.get(f"/targetSCN?source={SOURCE}")
    with refused.value as answer:
        assert answer.headers["x-dbus-error-cause"].endswith(".BootstrapProcessingException")
    seeder = shop.start("seeder", "seed")
    assert seeder.wait(PATIENCE_S) == 0, seeder.log_tail()
    wait_until(shop.is_served, "the server", server.log_tail)
    found = json.loads(invoke("verify", "-c", shop.config, "--json").stdout)
    assert found[SOURCE]["isSame"]
    for child in (producer, server):
        child.stop()
        assert child.exit_code == 0
        assert "Traceback" not in child.log_tail()


def test_a_second_producer_of_a_store_ends_at_once(shop: Shop) -> None:
    first = shop.start("first", "run")
    wait_until(lambda: "listening" in first.log_tail(), "the first", first.log_tail)
    second = shop.start("second", "run", "--port", "0")
    assert second.wait(PATIENCE_S) == 1
    assert "has a producer already" in second.log_tail()
    assert first.exit_code is None


class TestStatus:
    def test_it_is_read_from_the_files(self, shop: Shop) -> None:
        filled = make_filled(shop.folder / "pair" / "shop.db")
        filled.close()
        result = invoke("status", "-c", shop.config)
        assert result.exit_code == 0
        assert "shop: producer at scn 101" in result.stdout
        assert "shop.person" in result.stdout
        assert shop.status()["rows"] == 10

    def test_seeding_shows_how_far_it_is(self, shop: Shop) -> None:
        filled = make_filled(shop.folder / "pair" / "shop.db")
        filled.store.reset_source(PERSON.source)
        filled.store.begin_seeding(PERSON.source, 101, 10)
        filled.store.merge_chunk(PERSON.source, [stored(1, 1, 101)], "1")
        filled.close()
        assert "seeding 10 %" in invoke("status", "-c", shop.config).stdout
        assert shop.status()["status"] == SourceStatus.SEEDING

    def test_a_store_that_is_not_there_is_said_so(self, shop: Shop) -> None:
        result = invoke("status", "-c", shop.config)
        assert "the producer has not created this store yet" in result.stdout

    def test_a_running_server_is_asked(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path / "served")
        try:
            text = "producer at scn 101"
            wait_until(lambda: text in invoke("status", "--url", served.url).stdout, "the status")
        finally:
            served.close()

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ((), "give either -c FILE or --url URL"),
            (("-c", "a.toml", "--url", "http://a"), "give either -c FILE or --url URL"),
            (("--url", "file:///etc/passwd"), "begins with http:// or https://"),
            (("--url", "http://127.0.0.1:1"), "does not report its status"),
            (("-c", "/nowhere/b.toml"), "No such file"),
        ],
    )
    def test_what_is_wrong_is_said_in_a_line(self, words: tuple[str, ...], says: str) -> None:
        result = invoke("status", *words)
        assert result.exit_code != 0
        assert says in result.output


@pytest.mark.parametrize("words", [("seed",), ("verify",)])
def test_an_unknown_source_is_refused_by_name(words: tuple[str, ...], tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    result = invoke(*words, "-c", shop.config, "--source", "shop.nothing")
    assert result.exit_code == 1
    assert "unknown source 'shop.nothing'; known: shop.person" in result.output


def test_seeding_before_the_producer_says_what_to_start(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    result = invoke("seed", "-c", shop.config)
    assert result.exit_code == 1
    assert "databus bootstrap run" in result.output


@pytest.mark.parametrize("words", [(), ("run",), ("serve",), ("status",), ("seed",), ("verify",)])
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    result = invoke(*words, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
