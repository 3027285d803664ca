from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from databus.conf.settings import HttpSettings
from databus.daemon import service as service_shell
from databus.daemon.http.handlers import ApiHandler
from databus.daemon.http.requests import accepts_gzip
from databus.daemon.service import Health, Life, Phase, Service
from databus.schemas.errors import ScnNotFoundError, SettingsError
from tests import PATIENCE_S
from tests.relay.fakes import ServiceThread, connect, get, wait_until
from tools.repository import ROOT


class Daemon:
    """A service that writes down what the shell does with it."""

    def __init__(self, **http_settings: Any) -> None:
        self.did: list[str] = []
        self.problems: dict[str, Any] = {}
        self.metrics = CollectorRegistry()
        self.counter = Counter("cups", "Of tea", registry=self.metrics)
        self.released = threading.Event()
        http = HttpSettings.model_validate({"port": 0} | http_settings)
        limits: dict[str, Any] = {"limits": http}
        self.service = Service(
            name="tea",
            http=http,
            routes=[
                ("/slow", SlowHandler, limits | {"daemon": self}),
                ("/gone", GoneHandler, limits),
                ("/bug", BugHandler, limits),
            ],
            metrics=self.metrics,
            health=lambda: Health(not self.problems, self.problems),
            start=lambda: self.did.append("start"),
            let_go=lambda: self.did.append("let go"),
            stop=lambda timeout_s: self.did.append("stop"),
        )


class SlowHandler(ApiHandler):
    def initialize(self, limits: HttpSettings, daemon: Daemon) -> None:  # type: ignore[override]
        super().initialize(limits)
        self.daemon = daemon

    async def get(self) -> None:
        self.daemon.did.append("asked")
        while "let go" not in self.daemon.did:
            await asyncio.sleep(0.01)
        await self.send(b"in the end", "text/plain")


class GoneHandler(ApiHandler):
    async def get(self) -> None:
        raise ScnNotFoundError(5, 7)


class BugHandler(ApiHandler):
    async def get(self) -> None:
        raise ZeroDivisionError("oh")


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def running(daemon: Daemon) -> Iterator[ServiceThread]:
    thread = ServiceThread(daemon.service)
    yield thread
    thread.close()


def test_health_is_200_or_503_with_the_reasons(daemon: Daemon, running: ServiceThread) -> None:
    answer = get(running.url, "/health")
    assert (answer.status, json.loads(answer.body)) == (200, {"service": "tea", "status": "ok"})
    daemon.problems["kettle"] = "empty"
    answer = get(running.url, "/health")
    assert answer.status == 503
    assert json.loads(answer.body)["kettle"] == "empty"


def test_a_service_may_be_ready_though_it_is_not_well(
    daemon: Daemon, running: ServiceThread
) -> None:
    daemon.problems["kettle"] = "empty"
    assert get(running.url, "/ready").status == 200
    assert get(running.url, "/health").status == 503


def test_a_service_that_is_not_ready_says_why(daemon: Daemon) -> None:
    service = replace(daemon.service, ready=lambda: Health(False, {"kettle": "cold"}))
    life = Life()
    assert life.readiness_of(service) == Health(False, {"phase": "starting"})
    life.phase = Phase.SERVING
    assert life.readiness_of(service) == Health(False, {"kettle": "cold"})
    assert life.readiness_of(daemon.service) == Health(True)
    life.phase = Phase.DRAINING
    assert life.readiness_of(daemon.service) == Health(False, {"phase": "draining"})


def test_metrics_are_those_of_the_services_own_registry(
    daemon: Daemon, running: ServiceThread
) -> None:
    daemon.counter.inc(3)
    assert b"cups_total 3.0" in get(running.url, "/metrics").body


def test_an_error_is_answered_with_its_names(running: ServiceThread) -> None:
    answer = get(running.url, "/gone")
    assert answer.status == 404
    assert (
        answer.headers["x-dbus-error"]
        == "com.linkedin.databus2.core.container.request.RequestProcessingException"
    )
    assert answer.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"
    assert answer.headers["x-dbus-error-cause-message"] == "scn 5 is gone; the oldest held is 7"
    assert (
        json.loads(answer.body)["error"]
        == "com.linkedin.databus2.core.container.request.RequestProcessingException"
    )


def test_a_bug_is_answered_500_without_its_details(
    running: ServiceThread, caplog: pytest.LogCaptureFixture
) -> None:
    answer = get(running.url, "/bug")
    assert answer.status == 500
    assert b"oh" not in answer.body
    assert "ZeroDivisionError" in caplog.text


def test_the_end_comes_in_order_and_held_requests_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service_shell, "DRAIN_S", 2 * PATIENCE_S)
    daemon = Daemon()
    thread = ServiceThread(daemon.service)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(get(thread.url, "/slow")))
    asking.start()
    with connect(thread.url):  # an idle connection must not hold up the end
        wait_until(lambda: "asked" in daemon.did)
        started = time.monotonic()
        thread.close()
    asking.join()
    assert time.monotonic() - started < PATIENCE_S
    assert answers[0].body == b"in the end"
    assert daemon.did == ["start", "asked", "let go", "stop"]


class BusyHandler(ApiHandler):
    """Works for longer than anybody waits, and is not told that its client is gone."""

    def initialize(self, limits: HttpSettings, daemon: Daemon) -> None:  # type: ignore[override]
        super().initialize(limits)
        self.daemon = daemon

    async def get(self) -> None:
        self.daemon.did.append("asked")
        try:
            await asyncio.sleep(60)
        finally:
            self.daemon.did.append("ended")


def test_no_request_runs_any_more_when_the_work_is_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_shell, "DRAIN_S", 0.1)
    monkeypatch.setattr(service_shell, "END_S", 0.1)
    daemon = Daemon()
    busy = ("/busy", BusyHandler, {"limits": daemon.service.http, "daemon": daemon})
    daemon.service.routes.append(busy)  # type: ignore[attr-defined]
    thread = ServiceThread(daemon.service)
    with connect(thread.url) as asking:
        asking.sendall(b"GET /busy HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: "asked" in daemon.did)
        thread.close()
    assert daemon.did == ["start", "asked", "let go", "ended", "stop"]
    assert not caplog.records


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python to its end."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", text]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )


HELD_UP = """
import asyncio, signal, os, threading, time
from prometheus_client import CollectorRegistry
from databus.daemon import service
from databus.conf.settings import HttpSettings

service.WHOLE_S = 0.7

def hold_up():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

service.run(service.Service(
    "tea", HttpSettings(port=0), [], CollectorRegistry(), lambda: service.Health(True),
    start=hold_up, let_go=lambda: None, stop=time.sleep,
))
"""


def test_whatever_holds_a_process_up_it_ends_in_time_and_says_what_it_did_not_wait_for() -> None:
    ended = run_program(HELD_UP)
    assert ended.returncode == 0
    assert "ended after 0.7 s without waiting for" in ended.stderr
    assert "asyncio_0" in ended.stderr


LOSES_A_TASK = """
import asyncio
from prometheus_client import CollectorRegistry
from databus.daemon import service
from databus.conf.settings import HttpSettings

async def fail():
    raise ZeroDivisionError("oh")

service.run(service.Service(
    "tea", HttpSettings(port=0), [], CollectorRegistry(), lambda: service.Health(True),
    start=lambda: service.run_for_life(fail(), "the kettle"), let_go=lambda: None,
    stop=lambda _: print("stopped"),
))
"""


def test_a_task_that_dies_ends_the_daemon_in_order_with_an_error() -> None:
    ended = run_program(LOSES_A_TASK)
    assert ended.returncode == 1
    assert "the kettle has died, and so the process ends: oh" in ended.stderr
    assert ended.stdout.endswith("stopped\n")


def test_a_port_in_use_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        daemon = Daemon(port=taken.getsockname()[1])
        with pytest.raises(SettingsError, match=r"is in use.*another port"):
            ServiceThread(daemon.service)
    assert daemon.did == []


def test_an_address_that_is_not_ours_is_said() -> None:
    daemon = Daemon(host="192.0.2.1", open_to_all=True)
    with pytest.raises(SettingsError, match=r"cannot listen on 192\.0\.2\.1"):
        ServiceThread(daemon.service)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("deflate, gzip;q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("identity, br", False),
        ("gzipped", False),
    ],
)
def test_gzip_is_used_when_the_header_allows_it(header: str, expected: bool) -> None:
    assert accepts_gzip(header) is expected


CONFIG = """
data_dir = "data"
[http]
port = 0
[[physical_sources]]
name = "dice"
uri = "generator:?rate=100"
sources = ["dice.rolls"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG)
    return path


def start_relay(config: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "databus.cli.main",
        "relay",
        "run",
        "-c",
        str(config),
        *options,
    ]
    return subprocess.Popen(
        command,
        cwd=config.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_process_says_where_it_listens_and_ends_quickly(
    config: Path, number: signal.Signals
) -> None:
    with start_relay(config) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), process.communicate()
        url = line.split()[-1]
        assert get(url, "/admin").body == b"GOOD"
        held = http.client.HTTPConnection(url.removeprefix("http://"))
        held.request("GET", "/stream?sources=1&size=1000&wait=30000&streamFromLatestScn=true")
        started = time.monotonic()
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - started < 30  # the time for which it was held
        held.close()
    assert (process.returncode, output, errors) == (0, "", "")


def test_a_relay_that_cannot_have_its_port_says_so_in_one_line(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start_relay(config, "--port", str(port)) as process:
            _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1
    assert f"127.0.0.1:{port} is in use" in errors


def test_a_second_relay_in_the_same_folder_is_refused(config: Path) -> None:
    with start_relay(config) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with start_relay(config) as second:
            _, errors = second.communicate(timeout=PATIENCE_S)
        with contextlib.suppress(ProcessLookupError):
            first.terminate()
        first.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert "in use by another relay" in errors


def test_a_wrong_setting_is_named(config: Path) -> None:
    config.write_text(CONFIG + 'colour = "blue"\n')
    with start_relay(config) as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "physical_sources.0.colour is not a setting" in errors
