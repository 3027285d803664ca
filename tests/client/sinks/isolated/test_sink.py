"""Isolated sinks, each in a real process: what it may do, and how its end is told."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import (
    SinkCodeError,
    SinkProcessError,
    SinkRefusedError,
    SinkUnavailableError,
)
from databus.client.sinks.isolated.maker import IsolatedMaker
from databus.client.sinks.isolated.sink import IsolatedSink
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.client.shop import wait_until
from tests.client.sinks.changes import made
from tests.client.sinks.isolated.processes import are_gone, below, command_lines

OPENING = Opening("ill", "shop")
ILL = "tests.client.sinks.isolated.ill_sinks"
LIMITS = {"memory_bytes": "96MiB", "cpu_s": 1, "call_s": 300, "processes": 30}
PLACE = Position("shop", Checkpoint.at(7))


def maker(
    kind: str = f"{ILL}:IllSink", limits: dict[str, Any] | None = None, **options: Any
) -> IsolatedMaker:
    raw = {"name": "ill", "kind": kind, "sources": ["shop.*"], "options": options}
    settings = build_settings({**raw, "limits": {**LIMITS, **(limits or {})}}, SinkSettings)
    return IsolatedMaker(settings, None, {"A_SECRET"})


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Each test ends with the processes that there were before."""
    before = {one.pid for one in below()}
    yield
    assert are_gone([one for one in below() if one.pid not in before])


def write(make: IsolatedMaker) -> None:
    """Open a sink, write and flush one row, and close it."""
    sink = make()
    try:
        sink.open(OPENING)
        sink.write([made("insert", 1)])
        sink.flush()
    finally:
        sink.close()


@pytest.mark.parametrize(
    ("harm", "reason", "text"),
    [
        ("memory", "memory", "killed: memory limit 96 MiB"),
        ("children's memory", "memory", "killed: memory limit 96 MiB"),
        ("spin", "cpu", "killed: CPU limit 1 s"),
        ("exit", "exit", "exit code 3"),
        ("crash", "signal", "signal SIGSEGV"),
        ("crash with children", "signal", "signal SIGSEGV"),
        ("many", "processes", "killed: limit of 30 processes"),
        ("supervisor", "signal", "signal SIGKILL"),
    ],
)
@pytest.mark.parametrize("call", ["open", "write"])
def test_what_ends_its_process_is_told_in_words(
    harm: str, reason: str, text: str, call: str
) -> None:
    make = maker(harm=harm, call=call)
    with pytest.raises(SinkProcessError, match=f"^its process ended in {call}: {text}$"):
        write(make)
    assert make.ends == ({reason: 1}, text)


def test_a_call_that_takes_too_long_is_killed() -> None:
    make = maker(harm="hang", limits={"call_s": 5})
    began_s = time.monotonic()
    with pytest.raises(SinkProcessError, match="in write: killed: time limit 5 s"):
        write(make)
    assert time.monotonic() - began_s < PATIENCE_S


def test_a_sink_that_has_not_returned_is_ended_from_another_thread() -> None:
    make = maker(harm="hang", limits={"call_s": 999})
    sink = make()
    assert isinstance(sink, IsolatedSink)
    sink.open(OPENING)
    threading.Timer(0.5, sink.abort).start()
    with pytest.raises(SinkProcessError):
        sink.write([made("insert", 1)])
    assert make.ends.counts == {}  # it was asked for


def test_what_a_sink_has_started_ends_with_it() -> None:
    sink = maker(harm="children")()
    before = {one.pid for one in below()}
    sink.open(OPENING)
    sink.write([made("insert", 1)])
    sink.flush()
    # Supervisor, worker, two sleepers, a daemon.
    wait_until(lambda: len([one for one in below() if one.pid not in before]) >= 5)
    found = [one for one in below() if one.pid not in before]
    assert {os.getsid(one.pid) for one in found if one.is_running()} != {sink_group(found)}
    sink.close()
    assert are_gone(found)


def sink_group(found: list[psutil.Process]) -> int:
    return os.getsid(found[0].pid)


def test_a_close_that_hangs_does_not_keep_it() -> None:
    sink = maker(harm="hang", call="close", limits={"call_s": 5})()
    sink.open(OPENING)
    began_s = time.monotonic()
    sink.close()
    assert time.monotonic() - began_s < PATIENCE_S


def test_what_it_prints_is_logged_in_part_and_holds_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        write(maker(harm="print", limits={"cpu_s": 60, "call_s": 120}))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("ill: xxxx")
    assert max(map(len, lines)) < 1100
    assert "lines more, which are not logged)" in lines[-1]
    assert len(lines) < 2000


def test_errors_of_its_code_keep_their_kind_and_trace() -> None:
    with pytest.raises(SinkCodeError, match=r"^ValueError: boom$") as failed:
        write(maker(harm="fail"))
    assert 'raise ValueError("boom")' in str(failed.value.__cause__)
    with pytest.raises(SinkUnavailableError, match=r"^it is away$") as away:
        write(maker(harm="away"))
    assert away.value.retry_after_s == 7.0
    with pytest.raises(SinkCodeError, match="SystemExit: 4"):
        write(maker(harm="leave"))
    with pytest.raises(SinkCodeError, match=r"kind = '.*:Nobody': .*no attribute 'Nobody'"):
        write(maker(kind=f"{ILL}:Nobody"))


def test_bytes_that_are_no_answer_end_it() -> None:
    make = maker(harm="garbage")
    with pytest.raises(SinkProcessError, match="in write: killed: its answer makes no sense"):
        write(make)
    assert make.ends.counts == {"answer": 1}


def test_a_module_that_cannot_be_imported_is_an_error_of_the_sink() -> None:
    make = maker(kind="tests.client.sinks.isolated.bad_import:Sink")
    with pytest.raises(
        SinkCodeError, match=r"kind = .* cannot be imported: RuntimeError\(.this module is broken"
    ):
        write(make)
    with pytest.raises(SettingsError, match="this module is broken"):
        make.facts()
    with pytest.raises(SettingsError, match=r"no_such_module:Sink.*No module named"):
        maker(kind="no_such_module:Sink").facts()


def test_a_sink_gets_its_changes_and_tells_what_it_has_done(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hidden")
    monkeypatch.setenv("NO_SECRET", "seen")
    make = maker(kind=f"{ILL}:Telling", variable="NO_SECRET")
    assert make.keeps_position
    assert not make.has_position_per_source
    sink = make()
    assert isinstance(sink, IsolatedSink)
    with caplog.at_level(logging.WARNING):
        assert sink.open(replace(OPENING, position=PLACE)) == PLACE
        assert (sink.keeps_position, sink.follows_schemas) == (True, True)
        assert sink.unique_keys("shop.a") == [["mail"], ["shop.a", "x"]]
        changes = [made("insert", 1, name="a"), made("update", 2, name="b", before_name="c")]
        sink.write([*changes, replace(made("delete", 3), position=PLACE)])
        assert sink.flush() == PLACE
        changes = [made("insert", 4, name="d"), made("insert", 5, name="bad")]
        with pytest.raises(SinkRefusedError, match=r"^not wanted$") as refused:
            sink.write(changes)
        assert refused.value.change is changes[1]
        sink.close()
    text = caplog.text
    for part in (
        "variable: seen",
        "stdin: ''",
        "insert {'id': 1} {'id': 1, 'name': 'a'} 1 None",
        "delete {'id': 3} None 1 None",
        "closed",
    ):
        assert part in text


def test_a_secret_that_the_settings_name_is_not_in_its_environment(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hidden")
    with caplog.at_level(logging.WARNING):
        write(maker(kind=f"{ILL}:Telling", variable="A_SECRET"))
    assert "variable: None" in caplog.text


def test_options_are_no_part_of_a_command_line() -> None:
    sink = maker(harm="nothing", call="option-that-ps-would-show")()
    with contextlib.closing(sink):
        sink.open(OPENING)
        lines = command_lines()
    assert any("isolated.supervisor ill" in line for line in lines)
    assert not any("option-that-ps-would-show" in line for line in lines)


def test_ready_sinks_may_be_isolated_too(tmp_path: Path) -> None:
    limits = {"memory_bytes": "512MiB", "cpu_s": 60}
    write(maker(kind="files", limits=limits, folder=str(tmp_path / "out")))
    (entry,) = (tmp_path / "out" / "_manifest").glob("*.json")
    assert json.loads(entry.read_text())["files"]
    with pytest.raises(SettingsError, match="options of files: "):
        maker(kind="files", foldr="x").facts()


def test_a_thread_that_spins_between_calls_is_killed_within_minutes() -> None:
    """The CPU limit is renewed once a minute between calls, and with each call."""
    make = maker(kind=f"{ILL}:SpinningBehind", harm="nothing")
    before = {one.pid for one in below()}
    sink = make()
    sink.open(OPENING)
    assert are_gone([one for one in below() if one.pid not in before])
    with pytest.raises(SinkProcessError, match="killed: CPU limit 1 s"):
        sink.write([made("insert", 1)])
    sink.close()
