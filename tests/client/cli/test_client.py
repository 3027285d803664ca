"""`databus tail` and `databus client run`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main
from databus.client.checkpoints.store import FileCheckpoints
from databus.client.consumer import Op
from databus.demo.processes import free_port
from databus.schemas.event.control import dml_event
from databus.schemas.event.metadata import EventMetadata, Notes, encode_metadata, metadata_part
from tests import PATIENCE_S
from tests.client.fake_relay import FakeRelay
from tests.client.shop import change, emptied, orders, wait_until
from tools.repository import ROOT


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay(orders(range(1, 6))) as fake:
        yield fake


def tail(relay: FakeRelay, *options: str) -> Result:
    return CliRunner().invoke(main, ["tail", "shop.orders", "--relay", relay.url, *options])


def start(*arguments: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "databus.cli.main", *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_tail_prints_rows_from_the_oldest_on(relay: FakeRelay) -> None:
    result = tail(relay, "--from", "earliest", "--count", "3")
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert len(lines) == 3
    assert "1 insert   shop.orders  id=100 item=tea" in lines[0]


def test_tail_starts_after_a_given_scn(relay: FakeRelay) -> None:
    result = tail(relay, "--from", "3", "--count", "2", "--json")
    assert [json.loads(line)["scn"] for line in result.output.splitlines()] == [4, 5]


def test_tail_prints_json_with_everything(relay: FakeRelay) -> None:
    row, before = {"id": 7, "item": "milk"}, {"id": 7, "item": "tea"}
    relay.append([change(6, row, op=Op.UPDATE, before=before)])
    result = tail(relay, "--from", "5", "--count", "1", "--json")
    assert json.loads(result.output) == {
        "scn": 6,
        "index": 0,
        "source": "shop.orders",
        "op": "update",
        "key": 7,
        "timestamp_ns": 1006,
        "row": row,
        "before": before,
        "gtid": "0-1-6",
    }


def test_tail_shows_what_a_changed_column_was(relay: FakeRelay) -> None:
    row, before = {"id": 7, "item": "milk"}, {"id": 7, "item": "tea"}
    relay.append([change(6, row, op=Op.UPDATE, before=before)])
    assert "id=7 item=tea→milk" in tail(relay, "--from", "5", "--count", "1").output


def test_tail_shows_that_a_table_was_emptied(relay: FakeRelay) -> None:
    relay.append([emptied(6)])
    assert " 6 truncate shop.orders" in tail(relay, "--from", "5", "--count", "1").output
    shown = json.loads(tail(relay, "--from", "5", "--count", "1", "--json").output)
    assert (shown["op"], shown["key"], shown["row"]) == ("truncate", "", {})


def test_tail_shows_a_statement_that_was_logged_without_its_rows(relay: FakeRelay) -> None:
    relay.append([dml_event(6, 6, 0, ["shop.orders"], "shop", "DELETE FROM orders")])
    shown = tail(relay, "--from", "5", "--count", "1").output
    assert " 6 rows unknown shop.orders DELETE FROM orders" in shown
    assert json.loads(tail(relay, "--from", "5", "--count", "1", "--json").output) == {
        "op": "statement",
        "sources": ["shop.orders"],
        "database": "shop",
        "statement": "DELETE FROM orders",
        "scn": 6,
        "timestamp_ns": 1006,
    }


def test_tail_says_in_json_what_was_not_logged(relay: FakeRelay) -> None:
    notes = Notes(absent=(1,), raw={"item": "?"})
    lacking = change(6, {"id": 7, "item": ""})
    told = metadata_part(encode_metadata(EventMetadata(Op.UPDATE, notes=notes)))
    relay.append([lacking._replace(metadata=told)])
    shown = json.loads(tail(relay, "--from", "5", "--count", "1", "--json").output)
    assert (shown["row"], shown["absent"], shown["raw"]) == ({"id": 7}, ["item"], {"item": "?"})


def test_tail_keeps_control_characters_out_of_the_terminal(relay: FakeRelay) -> None:
    relay.append([change(6, {"id": 7, "item": "\x1b[2J" + "y" * 100})])
    output = tail(relay, "--from", "5", "--count", "1").output
    assert "\x1b" not in output
    assert r"item=\x1b[2Jyyy" in output
    assert output.rstrip().endswith("…")


def test_tail_of_an_unknown_source_says_which_there_are(relay: FakeRelay) -> None:
    result = CliRunner().invoke(main, ["tail", "shop.ordesr", "--relay", relay.url])
    assert result.exit_code == 1
    assert "unknown source 'shop.ordesr'; known: shop.customers, shop.orders" in result.output


def test_tail_from_a_point_that_is_gone_says_so(relay: FakeRelay) -> None:
    relay.oldest_gone = 3
    result = tail(relay, "--from", "1")
    assert result.exit_code == 1
    assert "scn 1 is gone; the oldest held is 4" in result.output


def test_tail_from_nonsense_says_what_is_allowed(relay: FakeRelay) -> None:
    result = tail(relay, "--from", "yesterday")
    assert result.exit_code == 1
    assert "earliest, latest" in result.output


def test_tail_into_a_pipe_gives_rows_at_once_and_ends_at_ctrl_c(relay: FakeRelay) -> None:
    process = start("tail", "shop.orders", "--relay", relay.url, "--from", "earliest", "--json")
    with process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["scn"] for _ in range(5)] == [1, 2, 3, 4, 5]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "")


def test_tail_ends_quietly_when_its_reader_has_gone(relay: FakeRelay) -> None:
    process = start("tail", "shop.orders", "--relay", relay.url, "--from", "earliest", "--json")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        # It may have noticed with the first events already.
        wait_until(lambda: len(relay.streams()) >= 2 or process.poll() is not None)
        relay.append(*orders(range(6, 8)))
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""


CONSUMER = """
from databus.client.consumer import Consumer

class Rows(Consumer):
    def on_data_event(self, event):
        print(event.row["id"], flush=True)

def show(event):
    print("row", event.row["id"], flush=True)

number = 5
"""


@pytest.mark.parametrize(("target", "first"), [("mine:Rows", "100"), ("mine:show", "row 100")])
def test_client_run_calls_a_consumer_until_it_is_terminated(
    relay: FakeRelay, tmp_path: Path, target: str, first: str
) -> None:
    (tmp_path / "mine.py").write_text(CONSUMER)
    (tmp_path / "client.toml").write_text(f'relays = ["{relay.url}"]\ncheckpoint_dir = "state"\n')
    process = start(
        "client", "run", "-c", "client.toml", "--consumer", target, "--source", "shop.orders",
        cwd=tmp_path,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(5)]
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert lines[0] == first
    assert (process.returncode, err) == (0, "")
    kept = FileCheckpoints(tmp_path / "state").load("default", ["shop.orders"])
    assert kept is not None
    assert kept.window_scn == 5


def test_client_run_serves_what_its_settings_say_and_leaves_the_port_at_its_end(
    relay: FakeRelay, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(CONSUMER)
    port = free_port()
    (tmp_path / "client.toml").write_text(
        f'name = "mine"\nrelays = ["{relay.url}"]\n[http]\nport = {port}\n'
    )
    process = start(
        "client", "run", "-c", "client.toml", "--consumer", "mine:show", "--source", "shop.orders",
        "-v", "--log-format", "json", cwd=tmp_path,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        with urlopen(f"http://127.0.0.1:{port}/api/v1/client", timeout=PATIENCE_S) as answer:
            report = json.load(answer)
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (report["name"], report["registrations"][0]["sources"]) == ("mine", ["shop.orders"])
    assert process.returncode == 0
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert f"listening on http://127.0.0.1:{port}" in messages
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nowhere:thing", "No module named 'nowhere'"),
        ("json:nothing", "has no attribute 'nothing'"),
        ("json:__name__", "neither a Consumer nor a function"),
        (":", "--consumer :"),
    ],
)
def test_client_run_says_what_is_wrong_with_a_consumer(
    relay: FakeRelay, tmp_path: Path, target: str, problem: str
) -> None:
    config = tmp_path / "client.toml"
    config.write_text(f'relays = ["{relay.url}"]\n')
    result = CliRunner().invoke(
        main, ["client", "run", "-c", str(config), "--consumer", target, "--source", "shop.orders"]
    )
    assert result.exit_code == 1
    assert problem in result.output
