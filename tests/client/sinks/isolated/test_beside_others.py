"""Sinks whose code does harm, beside one that is well: only they fail, and nothing is left."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.client.sinks.isolated.maker import IsolatedMaker
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.running.plan import make_plan
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.service import served
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinksSettings
from databus.demo.processes import child_environment, python_module
from databus.testing import RelayForTests
from databus.testing.recorder import Recorder
from tests.client.shop import wait_until
from tests.client.sinks.isolated.processes import are_gone, below
from tests.client.sinks.serving.test_killed import copied
from tests.client.sinks.serving.test_running_sink import keys, relay, running
from tests.client.sinks.serving.test_steering import ask, databus

__all__ = ["relay"]  # a fixture

ILL = "tests.client.sinks.isolated.ill_sinks"
LIMITS = {"memory_bytes": "96MiB", "cpu_s": 1, "call_s": 60, "processes": 30}
ROWS = 30
DEATHS = 6
PATIENCE_S = 180.0  # a sink that spins runs after all others
MOST_LAG_S = 5.0  # a machine may be busy; one that is held up waits far longer


def ill(name: str, kind: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a sink, which tries for ever and often."""
    return {
        "name": name,
        "kind": f"{ILL}:{kind}",
        "sources": ["shop.orders"],
        "limits": LIMITS,
        "flush": {"seconds": 0.01},
        "positions_every_s": 0,
        "failures": {"other": {"retries": -1}, "back_off": {"first_s": 0.2, "factor": 1}},
        **more,
    }


def process_of(folder: Path, url: str, recorder: Recorder, *sinks: dict[str, Any]) -> SinkProcess:
    """Return a process with the sink `well`, which writes to a recorder, and others."""
    well = {"name": "well", "kind": "recorder", "sources": ["shop.orders"]}
    raw = {"data_dir": folder, "relays": [url]}
    settings = build_settings(
        {**raw, "sinks": [{**well, "flush": {"seconds": 0.01}}, *sinks]}, SinksSettings
    )
    (folder / "sink.toml").write_text(
        f'data_dir = "{folder}"\nrelays = ["{url}"]\n'
        + "".join(
            f'[[sinks]]\nname = "{one["name"]}"\nkind = "print"\nsources = ["shop.orders"]\n'
            for one in (well, *sinks)
        )
    )
    plans = [
        make_plan(
            one,
            IsolatedMaker(one) if one.is_isolated else recorder.sink,
            folder / "letters",
        )
        for one in settings.sinks
    ]
    return SinkProcess(settings, plans)


@contextmanager
def steered(process: SinkProcess, folder: Path) -> Iterator[None]:
    settings = build_settings(
        {
            "data_dir": folder,
            "relays": ["http://127.0.0.1:1"],
            "sinks": [{"name": "a", "kind": "print", "sources": ["x.y"]}],
        },
        SinksSettings,
    )
    with served(process, settings), running(process):
        yield


def metrics(url: str) -> str:
    return ask(url, "/metrics", "GET")[1].decode()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("memory", "killed: memory limit 96 MiB"),
        ("spin", "killed: CPU limit 1 s"),
        ("exit", "exit code 3"),
        ("crash with children", "signal SIGSEGV"),
        ("hang", "killed: time limit 3 s"),
        ("many", "killed: limit of 30 processes"),
        ("garbage", "killed: its answer makes no sense"),
    ],
)
def test_a_sink_that_does_harm_fails_alone_and_goes_on_once_it_is_mended(
    relay: RelayForTests, tmp_path: Path, harm: str, reason: str
) -> None:
    before = {one.pid for one in below()}
    recorder, target = Recorder(), tmp_path / "target"
    sick = ill("ill", "DyingUntilMended", options={"harm": harm, "path": str(target)})
    sick["limits"] = {**LIMITS, "call_s": 3 if harm == "hang" else 60}
    process = process_of(tmp_path, relay.url, recorder, sick)
    with steered(process, tmp_path):
        url = json.loads((tmp_path / "address.json").read_text())["url"]
        lags = []
        for key in range(ROWS):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
            at_s = time.monotonic()
            wait_until(lambda key=key: ("shop.orders", key) in keys(recorder))  # type: ignore[misc]
            lags.append(time.monotonic() - at_s)
        assert max(lags) < MOST_LAG_S
        one = process.sink("ill")
        wait_until(lambda: any(feed.trouble is not None for feed in one.status), PATIENCE_S)
        assert process.sink("well").state is SinkState.RUNNING
        wait_until(lambda: reason in databus(tmp_path, "list").stdout, PATIENCE_S)
        shown = json.loads(databus(tmp_path, "show", "ill", "--json").stdout)
        assert shown["isolation"]["lastEnd"] == reason
        (count,) = shown["isolation"]["ends"].values()
        assert count >= 1
        assert "  isolated      its processes ended " in databus(tmp_path, "show", "ill").stdout
        code, body = ask(url, "/health", "GET")
        health = json.loads(body)
        assert (code, health["sinks"]["well"]) == (503, "running")
        assert reason in "; ".join(health["problems"]["ill"])
        (word,) = shown["isolation"]["ends"]
        name = f'databus_sink_process_ends_total{{reason="{word}",sink="ill"}}'
        assert f"{name} 0.0" not in metrics(url)
        assert name in metrics(url)
        Path(f"{target}.mended").touch()
        wait_until(lambda: target.exists() and written(target) == set(range(ROWS)), PATIENCE_S)
        wait_until(lambda: one.state is SinkState.RUNNING)
    assert are_gone([one for one in below() if one.pid not in before])


def written(target: Path) -> set[int]:
    return {int(line) for line in target.read_text().split()}


def test_one_that_prints_without_end_and_leaves_children_holds_up_no_other(
    relay: RelayForTests, tmp_path: Path
) -> None:
    before = {one.pid for one in below()}
    recorder = Recorder()
    more = {"limits": {**LIMITS, "cpu_s": 60, "call_s": 60}}
    prints = ill("prints", "IllSink", options={"harm": "print"}, **more)
    leaves = ill("leaves", "IllSink", options={"harm": "children"}, **more)
    process = process_of(tmp_path, relay.url, recorder, prints, leaves)
    with running(process):
        lags = []
        for key in range(5):
            relay.execute(f"INSERT INTO orders VALUES ({key}, 'tea')")
            at_s = time.monotonic()
            wait_until(lambda key=key: ("shop.orders", key) in keys(recorder))  # type: ignore[misc]
            lags.append(time.monotonic() - at_s)
        assert max(lags) < MOST_LAG_S
        wait_until(
            lambda: all(sum(f.rows for f in s.status) == 5 for s in process.sinks), PATIENCE_S
        )
    assert are_gone([one for one in below() if one.pid not in before])


def test_a_sink_that_stops_after_its_retries_waits_for_a_person(
    relay: RelayForTests, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    failures = {"other": {"retries": 2}, "back_off": {"first_s": 0.05}}
    options = {"harm": "crash", "path": str(target)}
    sick = ill("ill", "DyingUntilMended", options=options, failures=failures)
    process = process_of(tmp_path, relay.url, Recorder(), sick)
    with running(process):
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        one = process.sink("ill")
        wait_until(lambda: one.state is SinkState.STOPPED, PATIENCE_S)
        (feed,) = one.status
        assert feed.trouble is not None
        assert feed.trouble.problem.endswith("its process ended in write: signal SIGSEGV")
        assert feed.trouble.attempts == 3
        Path(f"{target}.mended").touch()
        one.retry()
        wait_until(lambda: target.exists() and written(target) == {1}, PATIENCE_S)


def test_the_row_that_kills_its_sink_becomes_a_dead_letter(
    relay: RelayForTests, tmp_path: Path
) -> None:
    failures = {
        "other": {"retries": 1, "then": "dead-letter"},
        "fast_retries": 1,
        "back_off": {"first_s": 0.05},
    }
    sick = ill("ill", "PoisonedCopy", failures=failures, flush={"rows": 100, "seconds": 0.5})
    sick["options"] = {"path": str(tmp_path / "copy.db")}
    process = process_of(tmp_path, relay.url, Recorder(), sick)
    with running(process):
        for key in range(6):
            item = "poison" if key == 3 else "tea"
            relay.execute(f"INSERT INTO orders VALUES ({key}, '{item}')")
        wait_until(lambda: len(copied(tmp_path / "copy.db")) == 5, PATIENCE_S)
    (letter,) = (json.loads(line) for line in (tmp_path / "letters").read_text().splitlines())
    assert (letter["key"], letter["error"]) == (
        {"id": 3},
        "SinkProcessError: its process ended in write: signal SIGSEGV",
    )


def test_a_target_that_keeps_its_position_has_each_change_once_whenever_its_sink_dies(
    relay: RelayForTests, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    sick = ill("ill", "DyingCopy", options={"path": str(copy)}, flush={"rows": 3, "seconds": 0.05})
    sick["failures"] = {"other": {"retries": -1}, "back_off": {"first_s": 0.01, "factor": 1}}
    sick["limits"] = {**LIMITS, "cpu_s": 60, "call_s": 60}
    process = process_of(tmp_path, relay.url, Recorder(), sick)
    dying = process.sink("ill").plan.isolated
    assert dying is not None
    wanted: dict[tuple[str, int], Any] = {}
    count = 0
    with running(process):
        while dying.ends.counts.get("signal", 0) < DEATHS:
            key = count % 50
            relay.execute(f"REPLACE INTO orders VALUES ({key}, 'tea {count}')")
            wanted["shop.orders", key] = {"id": key, "item": f"tea {count}"}
            count += 1
            time.sleep(0.02)
        wait_until(lambda: copied(copy) == wanted, PATIENCE_S)
    with closing(sqlite3.connect(copy)) as target:
        # It refuses a change that it has, and so none came twice.
        assert target.execute("SELECT count(DISTINCT id) FROM seen").fetchone()[0] >= count


def test_a_pause_ends_its_processes_and_after_it_the_sink_goes_on(
    relay: RelayForTests, tmp_path: Path
) -> None:
    before = {one.pid for one in below()}
    options = {"path": str(tmp_path / "copy.db")}
    well = {**ill("copy", ""), "kind": "tests.client.sinks.copy_sink:ExactCopy", "options": options}
    process = process_of(tmp_path, relay.url, Recorder(), well)
    copy = tmp_path / "copy.db"
    with running(process):
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: len(copied(copy)) == 1, PATIENCE_S)
        found = [one for one in below() if one.pid not in before]
        assert len(found) == 2
        process.pause("copy")
        assert are_gone(found)
        relay.execute("INSERT INTO orders VALUES (2, 'tea')")
        time.sleep(0.5)
        assert are_gone([one for one in below() if one.pid not in before])
        assert len(copied(copy)) == 1
        process.resume("copy")
        wait_until(lambda: len(copied(copy)) == 2, PATIENCE_S)


SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "leaves"
kind = "tests.client.sinks.isolated.ill_sinks:IllSink"
sources = ["shop.orders"]
options = {{ harm = "children" }}

[[sinks]]
name = "hangs"
kind = "tests.client.sinks.isolated.ill_sinks:IllSink"
sources = ["shop.orders"]
options = {{ harm = "hang" }}

[[sinks]]
name = "broken"
kind = "tests.client.sinks.isolated.bad_import:Sink"
sources = ["shop.orders"]

[[sinks]]
name = "well"
kind = "files"
sources = ["shop.orders"]
options = {{ folder = "archive" }}
flush = {{ seconds = 0.05 }}
"""


@contextmanager
def sink_run(relay: RelayForTests, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `databus sink run` until its sink `well` has written, and `leaves` has children."""
    (folder / "sink.toml").write_text(SINKS.format(url=relay.url))
    command = python_module("databus.cli.main", "sink", "run", "-c", folder / "sink.toml")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=child_environment())
    try:
        relay.execute("INSERT INTO orders VALUES (1, 'tea')")
        wait_until(lambda: list((folder / "archive").rglob("*.jsonl")), PATIENCE_S)
        wait_until(lambda: len(below(process.pid)) >= 9, PATIENCE_S)
        yield process
    finally:
        process.kill()
        process.wait()


def test_after_kill_9_no_process_of_a_sink_is_left(relay: RelayForTests, tmp_path: Path) -> None:
    with sink_run(relay, tmp_path) as process:
        found = below(process.pid)
        process.kill()
        process.wait()
        assert are_gone(found)


def test_after_sigterm_no_process_of_a_sink_is_left(relay: RelayForTests, tmp_path: Path) -> None:
    with sink_run(relay, tmp_path) as process:
        found = below(process.pid)
        process.terminate()
        process.wait(40)
        assert are_gone(found)
    said = (tmp_path / "log").read_text()
    assert "broken: failing" in said
    assert "RuntimeError('this module is broken')" in said


def test_config_check_loads_the_class_in_a_process_and_a_run_does_not(tmp_path: Path) -> None:
    head = f'data_dir = "{tmp_path}"\nrelays = ["http://127.0.0.1:1"]\n[[sinks]]\nname = "a"\n'
    head += 'sources = ["x.y"]\n'
    file = tmp_path / "sink.toml"
    for text, problem in (
        (f'kind = "{ILL}:IllSink"\noptions = {{ harm = "nothing" }}', ""),
        ('kind = "no.such:Sink"', "sink a: kind = 'no.such:Sink': No module named 'no'"),
        ('kind = "tests.client.sinks.isolated.bad_import:Sink"', "this module is broken"),
        (f'kind = "{ILL}:Telling"\norder = "row"\nlanes = 2', "has one lane"),
        (f'kind = "{ILL}:IllSink"\nlimits = {{ memory_bytes = "1MiB" }}', "sinks.0.limits.memory"),
        ('kind = "no.such:Sink"\nisolate = false', "sink a: kind = 'no.such:Sink': No module"),
    ):
        file.write_text(head + text + "\n")
        result = CliRunner().invoke(main, ["config", "check", str(file)])
        assert result.exit_code == (1 if problem else 0), result.output
        assert problem in result.output


def test_two_lanes_of_a_sink_that_keeps_its_position_are_refused_when_it_is_opened(
    relay: RelayForTests, tmp_path: Path
) -> None:
    sick = ill("ill", "Telling", order="row", lanes=2, failures={"other": {"retries": 0}})
    process = process_of(tmp_path, relay.url, Recorder(), sick)
    with running(process):
        one = process.sink("ill")
        wait_until(lambda: one.state is SinkState.STOPPED, PATIENCE_S)
        (feed,) = one.status
        assert feed.trouble is not None
        assert "Telling has one lane" in feed.trouble.problem
