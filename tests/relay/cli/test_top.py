"""`databus top`: drawn from what a relay says, on a real relay, in a pipe and in a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from databus.cli.main import main
from databus.daemon.client_report import ClientReport
from databus.demo.processes import child_environment, python_module
from databus.relay.admin.models import (
    AwaitedSource,
    ClientPosition,
    ClientState,
    ClientView,
    LogView,
    PhysicalSourceView,
    Problem,
    RelayLogView,
    RelayView,
    RingView,
    RoleView,
    SourceName,
)
from databus.relay.admin.trouble import Trouble
from databus.relay.cli.top_view import LOST_CHECKPOINT, Picture, draw, worst_position
from tests import PATIENCE_S
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until

NOW_S = 1_700_000_000.0


def top(*words: str) -> Result:
    return CliRunner().invoke(main, ["top", *words], env={"COLUMNS": None})


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path / "relay")
    served.put(*(transaction(scn, insert(scn)) for scn in (10, 20)))
    yield served
    served.close()


def source(**more: Any) -> PhysicalSourceView:
    ring: dict[str, Any] = {"capacity_bytes": 1000, "used_bytes": 450, "sleep_s": 9000.0}
    ring |= dict.fromkeys(("min_scn", "max_scn", "prev_scn", "oldest_at", "newest_at"))
    log: dict[str, Any] = {
        "holding": "held",
        "behind_bytes": 2048,
        "behind_s": 0,
        "hours_left": 8,
        "warning": "",
    }
    values: dict[str, Any] = {
        "name": "shop",
        "uri": "sqlite:shop.db",
        "state": "running",
        "problem": "",
        "since": 1_000.0,
        "next_try_at": None,
        "is_connected": True,
        "heard_at": 2_000.0,
        "warnings": [],
        "sources": [SourceName(name="shop.orders", id=1)],
        "ring": RingView(**ring),
        "relay_log": None,
        "log": LogView(**log),
        "delay_s": 0.012,
        "reconnects": 0,
        "events_per_s": 12_345.6,
        "windows_per_s": 9,
        "bytes_per_s": 3 << 20,
        "drain": None,
    }
    values |= dict.fromkeys(("events", "windows", "size_bytes"), 7)
    return PhysicalSourceView(**(values | more))


def client(name: str, state: ClientState, edge_share: float, error: str = "") -> ClientView:
    position = ClientPosition(
        physical_source="shop",
        scn=10,
        behind_bytes=100,
        behind_s=4.0,
        edge_share=edge_share,
        falls_in_s=90 if state is ClientState.FALLING else None,
    )
    return ClientView(
        id=name,
        name=name,
        address="127.0.0.1",
        agent="databus",
        state=state,
        sources=["shop.orders"],
        filters="",
        positions=[position],
        first_seen_at=NOW_S,
        last_seen_at=NOW_S,
        requests=5,
        served_bytes=5,
        bytes_per_s=1536,
        last_error=error,
        last_error_at=None,
        report=None,
    )


def picture(
    sources: Sequence[PhysicalSourceView] = (),
    clients: Sequence[ClientView] = (),
    problems: Sequence[Problem] = (),
    troubles: Sequence[Trouble] = (),
) -> Picture:
    relay = RelayView(
        name="127.0.0.1:11115",
        version="0.1.0",
        process_id=1,
        started_at=NOW_S - 600,
        is_healthy=not troubles,
        troubles=list(troubles),
        is_ready=True,
        role="admin",
        clients=len(clients),
        held_requests=2,
        stream_requests=3,
        served_bytes=4,
        served_bytes_per_s=2048,
    )
    return Picture(NOW_S, relay, sources, clients, problems)


def drawn(*arguments: Any, width: int = 80, **more: Any) -> list[str]:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    try:
        console.print(draw("http://relay", *arguments, **more))
        return console.export_text().splitlines()
    finally:
        console.file.close()


def test_a_source_is_shown_with_rate_lag_fill_and_how_long_one_may_sleep() -> None:
    lines = drawn(picture([source()]))
    assert "databus top http://relay 0.1.0, up 10 min, healthy" in lines[0]
    assert "2 requests held, 2.0 KiB/s served" in lines[1]
    (line,) = [line for line in lines if line.startswith("shop")]
    assert line.split() == (
        ["shop", "running", "12.3k", "3.0", "MiB", "12", "ms", "2.0", "KiB", "45", "%", "2.5", "h"]
    )
    assert "no recent clients" in lines[-1]


def test_a_relay_log_says_how_far_it_reaches_back_and_whether_capture_waits_for_it() -> None:
    log: dict[str, Any] = {
        "folder": "/log",
        "segments": 3,
        "size_bytes": 5 << 20,
        "retention_share": 0.25,
        "problem": "",
        "began_anew": "",
        "held_after_scn": None,
        "unread": "",
        "oldest_at": NOW_S - 7200,
        "archive": None,
    }
    log |= dict.fromkeys(("min_scn", "prev_scn", "durable_scn", "newest_at", "since"))
    at_work = source(relay_log=RelayLogView(**log, capture_waits_s=None))
    (_, line) = [line for line in drawn(picture([at_work])) if line.startswith("shop")]
    assert line.rstrip() == "shop: relay log reaches back 2 h, 5.0 MiB, 25 % of what is kept"
    full = source(relay_log=RelayLogView(**(log | {"oldest_at": None}), capture_waits_s=90.0))
    (_, line) = [line for line in drawn(picture([full])) if line.startswith("shop")]
    assert line.rstrip() == "shop: relay log is empty; capture has waited 90 s for it"


def test_clients_in_danger_come_first_and_say_how_much_of_the_ring_is_left() -> None:
    clients = [
        client("calm", ClientState.LIVE, 1.0),
        client("late", ClientState.FALLING, 0.2),
        client("gone", ClientState.FALLEN, 0.0, "scn 5 is gone; the oldest held is 9"),
    ]
    lines = drawn(picture([source()], clients))
    begin = next(n for n, line in enumerate(lines) if line.startswith("client"))
    gone, late, calm, error = lines[begin + 1 :]
    assert (gone.split()[0], calm.split()[0]) == ("gone", "calm")
    assert " ".join(late.split()) == "late falling 4 s 20 % 90 s 1.5 KiB"
    assert error == "gone: scn 5 is gone; the oldest held is 9"


def test_who_stands_still_and_falls_says_both_and_a_lost_checkpoint_is_told() -> None:
    told = ClientReport(
        id="a", name="a", state="paused", version="1", started_at=NOW_S, registrations=[]
    )
    lost = {"by": "kept", "is_gone": True, "behind_bytes": None, "behind_s": None}
    fallen = client("lost", ClientState.FALLEN, 0.0)
    places = [fallen.positions[0].model_copy(update=lost)]
    clients = [
        fallen.model_copy(update={"report": told, "positions": places}),
        client("still", ClientState.PAUSED, 1.0).model_copy(update={"report": told}),
        client("quiet", ClientState.SILENT, 0.5),
    ]
    lines = [" ".join(line.split()) for line in drawn(picture([source()], clients))]
    assert "lost fallen, paused unknown 0 % - 1.5 KiB" in lines
    assert "still paused 4 s 100 % - 1.5 KiB" in lines
    assert "quiet silent unknown 50 % - 1.5 KiB" in lines
    assert f"lost: {LOST_CHECKPOINT}" in lines


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ((True, "http://a", 3), "captures under term 3"),
        ((False, "http://a", 3), "stands by, and reads from http://a"),
        ((False, None, None), "stands by, and knows of no relay that captures"),
    ],
)
def test_it_is_told_which_relay_captures(
    role: tuple[bool, str | None, int | None], words: str
) -> None:
    is_active, owner, term = role
    view = RoleView(is_active=is_active, owner=owner, term=term, ttl_s=10.0, problem="")
    shop = source().model_copy(update={"role": view})
    assert f"{shop.name}: {words}" in drawn(picture([shop]))


def test_a_screen_that_is_too_low_shows_those_that_matter() -> None:
    clients = [client(f"c{n}", ClientState.LIVE, 1.0) for n in range(40)]
    clients.append(client("gone", ClientState.FALLEN, 0.0))
    lines = drawn(picture([source()], clients), height=24)
    assert len(lines) <= 24
    assert any(line.startswith("gone") for line in lines)
    assert "more clients in better states" in lines[-1]


def test_problems_and_warnings_are_shown_and_cut_to_the_line() -> None:
    problem = Problem(
        at=NOW_S, physical_source="shop", client="", scn=99, place="f:4", text="x" * 200, count=3
    )
    lines = drawn(picture([source(state="error")], problems=[problem]))
    assert any("shop scn 99 (3 times): xxx" in line and line.endswith("…") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_an_error_that_is_over_as_the_client_reports_is_not_shown() -> None:
    behind = client("early", ClientState.BEHIND, 0.5, "cannot connect")
    assert "early: cannot connect" in "".join(drawn(picture(clients=[behind])))
    report = ClientReport(
        id="early", name="early", state="running", version="1", started_at=0, registrations=[]
    )
    well = behind.model_copy(update={"report": report})
    assert "cannot connect" not in "".join(drawn(picture(clients=[well])))


def test_what_is_wrong_stands_above_all_else_with_its_cause_and_the_next_try() -> None:
    away = Trouble(
        physical_source="shop",
        state="unreachable",
        text="connection refused",
        since=NOW_S - 60,
        next_try_at=NOW_S + 4,
    )
    unknown = source(state="unreachable", is_connected=False, delay_s=None)
    waiting = client("late", ClientState.WAITING, 1.0)
    place = waiting.positions[0].model_copy(
        update={"waits_for": AwaitedSource(state="unreachable", since=NOW_S - 60)}
    )
    lines = drawn(
        picture([unknown], [waiting.model_copy(update={"positions": [place]})], troubles=[away])
    )
    assert "NOT HEALTHY" in lines[0]
    since = datetime.fromtimestamp(NOW_S - 60).strftime("%H:%M:%S")
    expected = f"shop is unreachable since {since} (next try in 4 s): connection refused"
    assert " ".join(lines[2:4]).startswith(expected)
    (line,) = [line for line in lines if line.startswith("shop  ")]
    assert line.split()[1] == "unreachable"
    assert line.split()[5] == "unknown", "its lag"
    (line,) = [line for line in lines if line.startswith("late")]
    assert line.split()[1:3] == ["waiting", "unknown"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    clients = [client("a-consumer-with-a-very-long-name-indeed", ClientState.BEHIND, 0.5, "z" * 90)]
    assert all(len(line) <= width for line in drawn(picture([source()], clients), width=width))


def test_a_relay_that_went_away_leaves_its_last_picture() -> None:
    lines = drawn(picture([source()]), "http://relay: does not answer: Connection refused")
    assert lines[0].startswith("NO ANSWER: http://relay: does not answer: Connection refused")
    assert any(line.startswith("shop") for line in lines)
    assert "waiting for http://relay" in drawn(None, "x")[1]


def test_the_position_overwritten_first_counts() -> None:
    far, near = client("a", ClientState.LIVE, 0.9), client("b", ClientState.LIVE, 0.1)
    assert worst_position([*far.positions, *near.positions]) == near.positions[0]
    assert worst_position([]) is None


def test_once_prints_one_picture_of_a_real_relay(relay: ServedRelay) -> None:
    relay.stream()
    result = top("--relay", relay.url, "--once")
    assert result.exit_code == 0, result.output
    assert f"databus top {relay.url}" in result.output
    assert re.search(r"^shop +running ", result.output, re.M)
    assert "client" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_once_without_a_relay_is_an_error() -> None:
    result = top("--relay", "http://127.0.0.1:9", "--once")
    assert result.exit_code == 1
    assert result.output.startswith("Error: http://127.0.0.1:9: does not answer")


def test_in_a_pipe_it_goes_on_when_the_relay_goes_away(relay: ServedRelay, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(
            python_module("databus.cli.main", "top", "--relay", relay.url, "--every", "0.1"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=child_environment(),
        )
    try:
        wait_until(lambda: "running" in output.read_text(), PATIENCE_S)
        relay.close()
        wait_until(lambda: "NO ANSWER" in output.read_text(), PATIENCE_S)
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait()


def test_in_a_terminal_q_ends_it(relay: ServedRelay) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        python_module("databus.cli.main", "top", "--relay", relay.url, "--every", "0.2"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=child_environment() | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(theirs)
    read, end = b"", time.monotonic() + PATIENCE_S
    try:
        while b"running" not in read and time.monotonic() < end:
            read += os.read(ours, 65536)
        os.write(ours, b"q")
        while process.poll() is None and time.monotonic() < end:
            read += os.read(ours, 65536)
    except OSError:
        pass  # how Linux says that the other side was closed
    finally:
        process.kill() if process.poll() is None and time.monotonic() >= end else None
        code = process.wait(PATIENCE_S)
        os.close(ours)
    assert code == 0, read.decode(errors="replace")
    assert b"databus top" in read
