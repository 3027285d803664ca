"""`databus run` with sinks: relay, bootstrap pair and sinks in one process, killed and ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.conf.sinks_beside import sinks_beside
from databus.schemas.errors import SettingsError
from tests.client.sinks.serving.test_killed import copied
from tests.standalone.nodes import Node, SqliteOrders, made, make_shop, sqlite_source, writing

SINK = """
[[sinks]]
name = "copy"
kind = "{kind}"
sources = ["shop.*"]
options = {{ path = "{folder}/copy.db" }}
flush = {{ seconds = 0.05 }}
"""
COPY = "tests.client.sinks.copy_sink:UpsertCopy"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """`databus run` of `relay.toml`, not started."""
    with made(tmp_path) as node:
        yield node


def databus(node: Node, *words: str) -> Any:
    return CliRunner().invoke(main, ["sink", *words, "-c", str(node.file)])


def state(node: Node) -> Any:
    (one,) = json.loads(databus(node, "list", "--json").output)
    return one["state"]


def write(node: Node, shop: Path, kind: str = COPY) -> None:
    node.write(sqlite_source(shop) + SINK.format(kind=kind, folder=node.folder))


def test_a_sink_gets_the_rows_from_before_and_every_change_over_kills(node: Node) -> None:
    shop = make_shop(node.folder)
    orders = SqliteOrders(shop)
    write(node, shop)
    copy = node.folder / "copy.db"

    def statuses() -> dict[int, str]:
        return {key: row["status"] for (_, key), row in copied(copy).items()}

    with writing(orders.write):
        node.start()
        node.wait_for(statuses)
        node.child.kill()
        node.start()
        node.wait_for(lambda: state(node) == "running")
    node.wait_for(lambda: statuses() == orders.rows())
    assert databus(node, "pause", "copy").output.startswith("paused")
    assert node.health(node.url)[1]["sinks"] == {"copy": "paused"}
    node.child.stop(20)
    assert node.child.exit_code == 0, node.said
    assert "Traceback" not in node.said
    gone = databus(node, "show", "copy")
    assert (gone.exit_code, "start it with `databus run -c" in gone.output) == (1, True)


def test_a_sink_that_cannot_be_made_is_named_before_anything_starts(node: Node) -> None:
    write(node, make_shop(node.folder), "no_such")
    result = CliRunner().invoke(main, ["run", "-c", str(node.file)])
    assert result.exit_code == 1
    assert "sink copy: kind = 'no_such': known are" in result.output
    assert not (node.folder / "data").exists()


def test_sinks_have_the_tokens_of_the_relay_and_a_folder_in_its_data(tmp_path: Path) -> None:
    sink = {"name": "a", "kind": "print", "sources": ["shop.*"]}
    raw = {
        "data_dir": tmp_path,
        "http": {"host": "0.0.0.0", "port": 11115, "admin_token_env": "ADMIN"},
        "physical_sources": [{"name": "shop", "uri": "sqlite:a.db", "sources": ["shop.orders"]}],
        "sinks": [sink],
    }
    found = sinks_beside(build_settings(raw, RelaySettings))
    assert found.data_dir == tmp_path / "sinks"
    assert (found.http.host, found.http.port, found.http.admin_token_env) == (
        "127.0.0.1",
        0,
        "ADMIN",
    )
    with pytest.raises(SettingsError, match="sink a is listed more than once"):
        build_settings({**raw, "sinks": [sink, sink]}, RelaySettings)
