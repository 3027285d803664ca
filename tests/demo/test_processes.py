"""Children that end, that refuse to, and that never start."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.demo.processes import (
    Child,
    ChildError,
    check_signals,
    free_port,
    pause,
    port_or_free,
    stopped_by_signals,
    wait_until,
)
from tests import PATIENCE_S

SLEEP = "import threading; print('up', flush=True); threading.Event().wait()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def child(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Child]:
    made = Child("child", [sys.executable, "-c", request.param], tmp_path)
    yield made
    made.kill()


def wait_until_up(child: Child) -> None:
    child.start()
    wait_until(lambda: "up" in child.log_tail(), PATIENCE_S, "the child")


@pytest.mark.parametrize("child", [SLEEP], indirect=True)
def test_a_child_asked_to_stop_is_gone(child: Child) -> None:
    wait_until_up(child)
    child.stop()
    assert child.exit_code == -signal.SIGTERM
    assert not is_running(child.pid)


@pytest.mark.parametrize("child", [DEAF], indirect=True)
def test_a_child_that_does_not_listen_is_killed(child: Child) -> None:
    wait_until_up(child)
    child.stop(grace_s=0.05)
    assert child.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("child", [SLEEP], indirect=True)
def test_a_killed_child_can_be_started_again(child: Child) -> None:
    wait_until_up(child)
    first = child.pid
    child.kill()
    child.start()
    assert child.exit_code is None
    assert child.pid != first


@pytest.mark.parametrize("child", ["raise SystemExit('no such table')"], indirect=True)
def test_a_child_that_fails_is_reported_with_what_it_said(child: Child) -> None:
    child.start()
    assert child.wait(PATIENCE_S) == 1
    with pytest.raises(ChildError, match="child ended with 1:\nno such table"):
        child.check()


@pytest.mark.parametrize("child", ["import databus.schemas.errors"], indirect=True)
def test_a_child_imports_the_package_from_any_folder(child: Child) -> None:
    before = Path.cwd()
    os.chdir("/")
    try:
        child.start()
    finally:
        os.chdir(before)
    assert child.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("child", [SLEEP], indirect=True)
def test_a_child_that_was_never_started_stops_and_says_so(child: Child) -> None:
    child.stop()
    assert child.exit_code is None
    with pytest.raises(ChildError, match="was not started"):
        child.wait(1)
    with pytest.raises(ChildError, match="was not started"):
        assert child.pid


def test_waiting_in_vain_names_what_was_waited_for() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0.01 s in vain for the relay"):
        wait_until(lambda: False, 0.01, "the relay", interval_s=0.001)


def test_a_free_port_is_none_that_a_connection_may_be_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = [socket.create_connection(server.getsockname()) for _ in range(50)]
        of_connections = [one.getsockname()[1] for one in given]
        for one in given:
            one.close()
    ports = [free_port() for _ in range(50)]
    assert min(ports) >= 1024
    assert max(ports) < min(of_connections)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_is_the_wanted_one_unless_somebody_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port_or_free(port) not in (0, port)
    assert port_or_free(port) == port


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_at_the_next_check_and_not_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopped_by_signals():
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            check_signals()
        check_signals()
    assert signal.getsignal(number) == before


def test_a_signal_stops_a_wait_and_a_pause() -> None:
    with stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            wait_until(lambda: False, PATIENCE_S, "a signal")
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            pause(20)


def test_a_signal_that_came_too_late_stops_nothing_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
    check_signals()
    assert signal.getsignal(signal.SIGINT) == before


def test_a_pause_is_as_long_as_asked() -> None:
    started = time.monotonic()
    pause(0.02)
    assert time.monotonic() - started >= 0.02
