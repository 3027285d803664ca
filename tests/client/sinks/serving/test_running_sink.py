"""Sinks of a settings file over real relays: each by itself, and tables as they appear."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client import DatabusClient
from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.running.plan import make_plan
from databus.client.sinks.serving import running_sink
from databus.client.sinks.serving.positions import PositionFile
from databus.client.sinks.serving.process import SinkProcess
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinksSettings
from databus.demo.processes import child_environment, python_module
from databus.schemas.errors import CheckpointError, SettingsError
from databus.testing import RelayForTests, running_relay
from databus.testing.recorder import Recorder
from tests import PATIENCE_S
from tests.client.shop import wait_until

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"
PEOPLE = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)"


@pytest.fixture
def relay() -> Iterator[RelayForTests]:
    with running_relay(ORDERS, PEOPLE) as relay:
        yield relay


def process_of(folder: Path, url: str, recorders: dict[str, Recorder], **more: Any) -> SinkProcess:
    sinks = [
        {
            "name": name,
            "kind": "recorder",
            "sources": ["shop.*"],
            "flush": {"seconds": 0.01},
            "positions_every_s": 0,
            "failures": {"back_off": {"first_s": 0.05, "factor": 1}},
            **more,
        }
        for name in recorders
    ]
    raw = {"data_dir": folder, "relays": [url], "sinks": sinks}
    settings = build_settings(raw, SinksSettings)
    plans = [make_plan(one, recorders[one.name].sink, folder / "x") for one in settings.sinks]
    return SinkProcess(settings, plans)


@contextmanager
def running(process: SinkProcess) -> Iterator[list[bool]]:
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(process.run()))
    thread.start()
    try:
        yield ended
    finally:
        process.end()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def keys(recorder: Recorder) -> list[tuple[str, int]]:
    return [(one.source, one.key["id"]) for one in recorder.changes]


def test_a_sink_whose_target_is_away_slows_nobody_else(
    relay: RelayForTests, tmp_path: Path
) -> None:
    is_away = threading.Event()
    is_away.set()

    def away(_changes: Sequence[Change]) -> None:
        if is_away.is_set():
            raise SinkUnavailableError("away")

    recorders = {"a": Recorder(), "b": Recorder(fails=away), "c": Recorder()}
    process = process_of(tmp_path, relay.url, recorders, capacity=5)
    with running(process):
        for key in range(30):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
            wanted = ("shop.orders", key)
            for name in ("a", "c"):
                wait_until(lambda name=name, wanted=wanted: wanted in keys(recorders[name]))  # type: ignore[misc]
        a, b, c = process.sinks
        assert [one.state for one in (a, b, c)] == [
            SinkState.RUNNING,
            SinkState.FAILING,
            SinkState.RUNNING,
        ]
        assert b.status[0].held_rows <= 5 + 1
        is_away.clear()
        wait_until(lambda: len(keys(recorders["b"])) == 30)
    assert keys(recorders["b"]) == keys(recorders["a"])


def test_after_a_restart_each_sink_goes_on_where_it_was_and_gets_nothing_twice(
    relay: RelayForTests, tmp_path: Path
) -> None:
    is_away = threading.Event()

    def away(_changes: Sequence[Change]) -> None:
        if is_away.is_set():
            raise SinkUnavailableError("away")

    recorders = {"a": Recorder(fails=away), "b": Recorder()}
    first = process_of(tmp_path, relay.url, recorders)
    with running(first):
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: all(len(keys(one)) == 1 for one in recorders.values()))
        wait_until(lambda: len(first.positions.all()) == 2)
        is_away.set()
        for key in (2, 3):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
        wait_until(lambda: len(keys(recorders["b"])) == 3)
        wait_until(lambda: first.sinks[0].status[0].held_rows > 0)
    scns = {one.sink: one.checkpoint.window_scn for one in PositionFile(tmp_path).all()}
    assert scns["a"] < scns["b"]
    is_away.clear()
    with running(process_of(tmp_path, relay.url, recorders)):
        relay.execute("INSERT INTO orders VALUES (4, 'tea')")
        wait_until(lambda: all(len(keys(one)) == 4 for one in recorders.values()))
    for one in recorders.values():
        assert keys(one) == [("shop.orders", key) for key in (1, 2, 3, 4)]


@pytest.mark.parametrize("keeps_position", [False, True])
def test_a_sink_goes_on_behind_the_newest_window_also_if_its_tables_were_quiet(
    relay: RelayForTests, tmp_path: Path, keeps_position: bool
) -> None:
    more = {"sources": ["shop.people"]}
    relay.execute("INSERT INTO people VALUES (1, 'Ada')")
    recorder = Recorder(keeps_position=keeps_position)
    with running(process_of(tmp_path, relay.url, {"a": recorder}, **more)):
        wait_until(lambda: len(keys(recorder)) == 1)
        for key in range(5):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
        with DatabusClient(relay.url) as client:
            newest = -1
            for window in client.windows("shop.orders"):
                newest = window.scn
                if window.events[-1].key["id"] == 4:
                    break
        wait_until(lambda: scn_of(tmp_path) >= newest)
    process = process_of(tmp_path, relay.url, {"a": recorder}, **more)
    with running(process):
        wait_until(lambda: process.sinks[0].state is SinkState.RUNNING)
        (feed,) = process.sinks[0].feeds
        wait_until(lambda: feed.status.scn >= newest)
        assert scn_of(tmp_path) >= newest
        relay.execute("INSERT INTO people VALUES (2, 'Bob')")
        wait_until(lambda: len(keys(recorder)) == 2)
    assert keys(recorder) == [("shop.people", 1), ("shop.people", 2)]


def scn_of(folder: Path) -> int:
    found = PositionFile(folder).load("a", "shop")
    return -1 if found is None else found.checkpoint.window_scn


def test_a_target_with_one_position_takes_one_physical_source_alone(
    relay: RelayForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"shop": ("shop.orders",), "crm": ("crm.leads",)}
    monkeypatch.setattr(running_sink, "chosen", lambda *_: found)
    kind = {"kind": "files", "options": {"folder": str(tmp_path / "out")}}
    raw = {"name": "copy", "sources": ["*"], **kind}
    settings = build_settings(
        {"data_dir": tmp_path, "relays": [relay.url], "sinks": [raw]}, SinksSettings
    )
    (one,) = settings.sinks
    plan = make_plan(one, sink_maker(one.kind, one.options), tmp_path / "x")
    process = SinkProcess(settings, [plan])
    with running(process):
        (sink,) = process.sinks
        wait_until(lambda: "2 physical sources, crm, shop" in sink.problem)
        assert sink.state is SinkState.STOPPED
        assert sink.feeds == []


def test_with_until_the_process_ends_by_itself(relay: RelayForTests, tmp_path: Path) -> None:
    for key in (1, 2, 3):
        relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
    with DatabusClient(relay.url) as client:
        scn = next(client.windows("shop.orders")).scn
    recorder = Recorder()
    with running(process_of(tmp_path, relay.url, {"a": recorder}, until=scn)) as ended:
        wait_until(lambda: ended == [True])
    assert {one.scn for one in recorder.changes} == {scn}


def test_a_job_whose_only_sink_was_stopped_by_an_error_says_so(
    relay: RelayForTests, tmp_path: Path
) -> None:
    def fail(_changes: Sequence[Change]) -> None:
        raise ValueError("a defect")

    relay.execute("INSERT INTO orders VALUES (1, 'tea')")
    failures = {"other": {"retries": 0}}
    recorder = Recorder(fails=fail)
    process = process_of(tmp_path, relay.url, {"a": recorder}, failures=failures, until=1 << 50)
    with running(process) as ended:
        wait_until(lambda: ended == [False])


def test_two_processes_do_not_share_positions(relay: RelayForTests, tmp_path: Path) -> None:
    first = process_of(tmp_path, relay.url, {"a": Recorder()})
    with pytest.raises(CheckpointError, match="in use by process"):
        process_of(tmp_path, relay.url, {"a": Recorder()})
    first.close()


# In an application


def test_a_client_writes_to_a_sink_and_goes_on_behind_its_position(
    relay: RelayForTests, tmp_path: Path
) -> None:
    for key in (1, 2):
        relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
        recorder = Recorder()
        with DatabusClient(relay.url, checkpoint_dir=tmp_path) as client:
            sink = client.register_sink(recorder.sink, "shop.orders", flush={"seconds": 0.01})
            wait_until(lambda recorder=recorder: len(keys(recorder)) == 1)  # type: ignore[misc]
            assert sink.status.state.value == "running"
        assert keys(recorder) == [("shop.orders", key)]
        assert sink.status.state.value == "ended"


def test_sinks_may_be_registered_before_the_start_and_their_names_differ(
    relay: RelayForTests,
) -> None:
    relay.execute("INSERT INTO orders VALUES (1, 'tea')")
    one, other = Recorder(), Recorder()
    client = DatabusClient(relay.url)
    client.register_sink(one.sink, "shop.orders", name="one")
    client.register_sink(other.sink, "shop.orders", name="other", order="row", lanes=3)
    with pytest.raises(SettingsError, match="there is a sink 'one' already"):
        client.register_sink(one.sink, "shop.people", name="one")
    with client:
        wait_until(lambda: keys(one) == keys(other) == [("shop.orders", 1)])


def test_a_wrong_option_of_a_registered_sink_is_named() -> None:
    client = DatabusClient("http://127.0.0.1:1")
    wrong: list[Callable[[], object]] = [
        lambda: client.register_sink("printt", "shop.orders"),
        lambda: client.register_sink("print", "shop.orders", lanes=2),
        lambda: client.register_sink("print", "shop.orders", order="roww"),  # type: ignore[arg-type]
        lambda: client.register_sink(
            Recorder().sink, "a", tables=[{"sources": ["a"], "where": "b("}]
        ),
        lambda: client.register_sink(
            "sql", "a", name="copy", order="row", lanes=2, options={"url": "sqlite:///x.db"}
        ),
    ]
    lanes = "^register_sink: sink copy: lanes = 2: sql has one lane"
    for call, text in zip(
        wrong, ("printt", "lanes = 2", "order = 'roww'", "where|b\\(", lanes), strict=True
    ):
        with pytest.raises(SettingsError, match=text):
            call()


# Commands


def databus(*words: str) -> Any:
    return CliRunner().invoke(main, ["sink", *words])


def test_what_a_sink_could_not_start_with_is_said_by_every_command(tmp_path: Path) -> None:
    file = tmp_path / "sink.toml"
    base = f'data_dir = "{tmp_path}"\nrelays = ["http://127.0.0.1:1"]\n[[sinks]]\nname = "a"\n'
    for text, problem in (
        ('kind = "kafkaa"\nsources = ["x.y"]', "sink a: kind = 'kafkaa': known are"),
        ('kind = "files"\nsources = ["x.y"]', "sink a: options of files: folder is missing"),
        ('kind = "print"\nsources = ["x.y"]\norder = "rows"', "sinks.0.order = 'rows'"),
    ):
        file.write_text(base + text)
        for command in ("run", "list"):
            result = databus(command, "-c", str(file))
            assert result.exit_code == 1
            assert problem in result.output
    file.write_text(base + 'kind = "print"\nsources = ["x.y"]')
    assert (
        "there is no sink b; there are a" in databus("run", "-c", str(file), "--only", "b").output
    )
    assert "a  no position yet" in databus("positions", "-c", str(file)).output


def test_a_run_with_until_prints_what_it_wrote_and_exits_with_0(
    relay: RelayForTests, tmp_path: Path
) -> None:
    relay.execute("INSERT INTO orders VALUES (1, 'tea')", "INSERT INTO people VALUES (1, 'Ada')")
    with DatabusClient(relay.url) as client:
        scn = next(client.windows("shop.orders")).scn
    (tmp_path / "sink.toml").write_text(
        f'data_dir = "state"\nrelays = ["{relay.url}"]\n[[sinks]]\nname = "a"\nkind = "print"\n'
        f'sources = ["shop.*", "!shop.people"]\nuntil = {scn}\n'
    )
    result = databus("run", "-c", str(tmp_path / "sink.toml"))
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("{")]
    assert json.loads(line)["after"] == {"id": 1, "item": "tea"}
    shown = databus("positions", "-c", str(tmp_path / "sink.toml"), "--json")
    (row,) = json.loads(shown.stdout)
    assert (row["sink"], row["source"], row["sources"], row["scn"]) == (
        "a",
        "shop",
        ["shop.orders"],
        scn,
    )
    listed = json.loads(databus("list", "-c", str(tmp_path / "sink.toml"), "--json").stdout)
    assert [(one["name"], one["process"]) for one in listed] == [("a", None)]


def test_a_run_that_an_error_stops_exits_with_1_and_says_why(
    relay: RelayForTests, tmp_path: Path
) -> None:
    relay.execute("INSERT INTO orders VALUES (1, 'tea')")
    (tmp_path / "sink.toml").write_text(
        f'data_dir = "state"\nrelays = ["{relay.url}"]\n[[sinks]]\nname = "a"\nkind = "print"\n'
        'until = 1125899906842624\nsources = ["shop.orders"]\n'
        'tables = [{ sources = ["*"], where = "no_column = 1" }]\n'
    )
    ended = subprocess.run(
        python_module("databus.cli.main", "sink", "run", "-c", tmp_path / "sink.toml"),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=child_environment(),
    )
    assert ended.returncode == 1
    assert "stopped by an error: filter 'no_column = 1': has 'no_column'" in ended.stderr
