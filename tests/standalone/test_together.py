"""Two services in one process: their order, their errors, and their end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from databus.conf.settings import HttpSettings
from databus.daemon.service import Health, Service, run_for_life
from databus.schemas.errors import SettingsError
from databus.standalone import together
from databus.standalone.together import run_together
from tools.repository import ROOT


def make_service(name: str, did: list[str]) -> Service:
    """Return a service that writes down what the shell does with it."""
    return Service(
        name=name,
        http=HttpSettings(port=0),
        routes=[],
        metrics=CollectorRegistry(),
        health=lambda: Health(True),
        start=lambda: did.append(f"{name} starts"),
        let_go=lambda: did.append(f"{name} lets go"),
        stop=lambda timeout_s: did.append(f"{name} stops"),
    )


@pytest.fixture(autouse=True)
def _in_a_process_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "end_within", lambda *arguments: None)
    monkeypatch.setattr(together, "settle", lambda: None)


def terminate(*_urls: str) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_the_second_starts_when_the_first_is_ready_and_ends_before_it() -> None:
    did: list[str] = []
    asked: list[str] = []

    def ready() -> Health:
        asked.append("ready?")
        return Health(len(asked) > 3)

    def make_second(url: str) -> Service:
        did.append(f"the first is {'ready' if len(asked) > 3 else 'not ready'}")
        assert url.startswith("http://127.0.0.1:")
        return make_service("two", did)

    run_together(replace(make_service("one", did), ready=ready), make_second, terminate)
    assert did == [
        *("one starts", "the first is ready", "two starts"),
        *("two lets go", "two stops", "one lets go", "one stops"),
    ]


def test_a_second_that_is_out_of_date_ends_and_another_one_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "RENEW_LOOK_S", 0.01)
    did: list[str] = []

    def make_second(_url: str) -> Service:
        return make_service("another two" if did[1:] else "two", did)

    def is_outdated() -> bool:
        if "another two starts" not in did:
            return True
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    run_together(make_service("one", did), make_second, lambda *_: None, is_outdated=is_outdated)
    assert did == [
        *("one starts", "two starts", "two lets go", "two stops", "another two starts"),
        *("another two lets go", "another two stops", "one lets go", "one stops"),
    ]


def test_a_second_that_cannot_be_made_again_is_tried_again_until_it_can(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(together, "RENEW_LOOK_S", 0.01)
    did: list[str] = []
    tries: list[str] = []

    def make_second(url: str) -> Service:
        tries.append(url)
        if 1 < len(tries) < 4:
            raise SettingsError("the store is still in use")
        return make_service("two", did)

    def is_outdated() -> bool:
        if len(tries) == 1:
            return True
        os.kill(os.getpid(), signal.SIGTERM)
        return False

    run_together(make_service("one", did), make_second, lambda *_: None, is_outdated=is_outdated)
    assert did[:5] == ["one starts", "two starts", "two lets go", "two stops", "two starts"]
    assert caplog.text.count("the store is still in use") == 2


def test_a_defect_in_the_making_of_another_second_ends_both_with_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(together, "RENEW_LOOK_S", 0.01)
    did: list[str] = []

    def make_second(_url: str) -> Service:
        if "two starts" in did:
            raise ZeroDivisionError("a defect")
        return make_service("two", did)

    with pytest.raises(SystemExit):
        run_together(
            make_service("one", did), make_second, lambda *_: None, is_outdated=lambda: True
        )
    assert did[-2:] == ["one lets go", "one stops"]
    assert "a defect" in caplog.text


def test_the_second_starts_though_the_first_does_not_become_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "READY_S", 0.1)
    did: list[str] = []
    first = replace(make_service("one", did), ready=lambda: Health(False))
    run_together(first, lambda url: make_service("two", did), terminate)
    assert "two starts" in did


def fails(url: str) -> Service:
    raise SettingsError("its folder is in use")


def cannot_listen(url: str) -> Service:
    def listen(*_arguments: object) -> str:
        raise SettingsError("its port is in use")

    return replace(make_service("two", []), listen=listen)


@pytest.mark.parametrize("make_second", [fails, cannot_listen])
def test_a_second_that_cannot_start_ends_the_first_with_its_error(
    make_second: Callable[[str], Service],
) -> None:
    did: list[str] = []
    with pytest.raises(SettingsError, match="is in use"):
        run_together(make_service("one", did), make_second, terminate)
    assert did == ["one starts", "one lets go", "one stops"]


def test_a_first_that_cannot_start_has_no_second() -> None:
    did: list[str] = []
    first = cannot_listen("")
    with pytest.raises(SettingsError, match="its port is in use"):
        run_together(first, lambda url: make_service("two", did), terminate)
    assert did == []


def test_a_thread_that_dies_ends_both_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    did: list[str] = []

    def die() -> None:
        raise ZeroDivisionError("oh")

    def second(url: str) -> Service:
        dying = threading.Thread(target=die, name="seeder of shop")
        return replace(make_service("two", did), start=dying.start)

    with pytest.raises(SystemExit) as ended:
        run_together(make_service("one", did), second, lambda one, two: None)
    assert ended.value.code == 1
    assert did[-2:] == ["one lets go", "one stops"]
    assert "seeder of shop has died, and so the process ends: oh" in caplog.text


async def die_as_task() -> None:
    await asyncio.sleep(0.01)
    raise ZeroDivisionError("oh")


def test_a_task_that_dies_ends_both_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    did: list[str] = []

    def second(url: str) -> Service:
        def start() -> None:
            run_for_life(die_as_task(), "the monitor of the relays")

        return replace(make_service("two", did), start=start)

    with pytest.raises(SystemExit) as ended:
        run_together(make_service("one", did), second, lambda one, two: None)
    assert ended.value.code == 1
    assert did[-2:] == ["one lets go", "one stops"]
    assert "the monitor of the relays has died, and so the process ends: oh" in caplog.text


SLOW = """
import sys, time
from dataclasses import replace
from databus.standalone.together import run_together
from tests.standalone.test_together import make_service

def stop(timeout_s):
    print("stopping", flush=True)
    time.sleep(60)

two = replace(make_service("two", []), stop=stop)
run_together(make_service("one", []), lambda url: two, lambda *urls: print("up", flush=True))
"""


def test_a_second_signal_ends_the_process_at_once() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SLOW]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.terminate()
        assert process.stdout.readline() == "stopping\n"
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM  # it would stop for a minute
