"""A relay whose ring was damaged at rest: what it answers, and what it says of itself."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay.clock import Clock
from databus.relay.ring import recovery as ring_recovery, watch as ring_watch
from databus.relay.ring.ring import Ring
from databus.relay.ring.watch import RingWatch
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DamagedWindowsError, DatabusError, ProtocolError, RingError
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.relay.admin.test_api import post
from tests.relay.fakes import ORDERS, ServedRelay, insert, transaction, wait_until
from tests.relay.ring.model import window_of
from tests.relay.ring.test_check import flip, old_byte

LAST = 300
RINGS = {"name": "shop", "uri": "fake:", "sources": ["shop.person", "shop.orders"]}


@pytest.fixture
def ring_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A relay's ring of some blocks, damaged while the relay was down."""
    monkeypatch.setattr(ring_recovery, "_CHECKED_BYTES", 1)
    relay = ServedRelay(tmp_path, physical_sources=[RINGS | {"ring_bytes": 1 << 18}])
    relay.put(*(transaction(scn, insert(scn, "x" * 300, ORDERS)) for scn in range(1, LAST + 1)))
    relay.close()
    path = tmp_path / "data" / "shop.ring"
    flip(path, old_byte(path, 0.5))
    return path


@pytest.fixture
def damaged(ring_path: Path, tmp_path: Path) -> Iterator[ServedRelay]:
    relay = ServedRelay(tmp_path, physical_sources=[RINGS | {"ring_bytes": 1 << 18}])
    yield relay
    relay.close()


def test_the_slow_look_finds_it_and_everything_says_so(
    damaged: ServedRelay, ring_path: Path
) -> None:
    wait_until(lambda: damaged.relay.ring_watch.watched["shop"].round_at_s is not None)
    health = damaged.get("/health")
    assert health.status == 503
    assert str(ring_path) in json.loads(health.body)["physicalSources"]["shop"]["problem"]
    view = json.loads(damaged.get("/api/v1/physicalSources/shop").body)
    assert str(ring_path) in view["problem"]
    (noted,) = json.loads(damaged.get("/api/v1/problems").body)["problems"]
    assert str(ring_path) in noted["text"]
    metrics = damaged.get("/metrics").body.decode()
    assert 'databus_relay_ring_is_damaged{physical_source="shop"} 1.0' in metrics
    assert 'databus_relay_ring_checked_age_seconds{physical_source="shop"}' in metrics
    assert "ring_checked_bytes_total" in metrics


def test_a_request_across_it_is_refused_at_once_and_one_behind_it_is_served(
    damaged: ServedRelay, ring_path: Path
) -> None:
    scn = 1
    while (answer := damaged.stream(checkPoint=Checkpoint.at(scn).to_json())).status == 200:
        scn = int(answer.headers["x-databus-resume"].split(",")[0])
    assert 1 < scn < LAST
    assert answer.status == 404
    assert answer.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"
    text = answer.headers["x-dbus-error-cause-message"]
    assert str(ring_path) in text
    until = int(text.split("oldest held is ")[1].split(";")[0])
    rest = damaged.stream(checkPoint=Checkpoint.at(until).to_json())
    assert [e.scn for e in walk(rest.body) if e.is_eop] == list(range(until + 1, LAST + 1))
    assert damaged.get("/health").status == 503


def test_all_is_well_again_once_the_ring_has_gone_round(damaged: ServedRelay) -> None:
    wait_until(lambda: damaged.get("/health").status == 503)
    later = range(LAST + 1, 4 * LAST)
    damaged.put(*(transaction(scn, insert(scn, "x" * 300, ORDERS)) for scn in later))
    assert damaged.get("/health").status == 200
    assert damaged.stream().status == 200


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay that has written all of its ring itself, and whose slow look rests."""
    relay = ServedRelay(tmp_path, physical_sources=[RINGS | {"ring_bytes": 1 << 18}])
    wait_until(lambda: relay.relay.ring_watch.watched["shop"].round_at_s is not None)
    relay.put(*(transaction(scn, insert(scn, "x" * 300, ORDERS)) for scn in range(1, LAST + 1)))
    yield relay
    relay.close()


def windows_before_damage(body: bytes) -> list[int]:
    found: list[int] = []
    try:
        for event in walk(body):
            found += [event.scn] if event.is_eop else []
    except ProtocolError:
        return found
    raise AssertionError("nothing of it is damaged")


@pytest.mark.parametrize("was_read", [False, True])
@pytest.mark.parametrize("selected", [{}, {"sources": "shop.orders"}])
def test_what_is_changed_while_it_is_served_is_refused_when_a_consumer_comes_back_for_it(
    served: ServedRelay, tmp_path: Path, was_read: bool, selected: dict[str, Any]
) -> None:
    start = Checkpoint.at(100).to_json()
    if was_read:  # by somebody else: the consumer itself is not back for anything
        served.stream(checkPoint=start, headers={"x-databus-client": "early"}, **selected)
    path = tmp_path / "data" / "shop.ring"
    flip(path, old_byte(path, 0.9))
    bad = served.stream(checkPoint=start, **selected).body
    came = windows_before_damage(bad)
    again = Checkpoint.at(came[-1]).to_json()
    answer = served.stream(checkPoint=again, **selected)
    while answer.status == 200:  # what is sound in front of it, once
        newest = max(event.scn for event in walk(answer.body) if event.is_eop)
        assert newest > came[-1]
        came.append(newest)
        answer = served.stream(checkPoint=Checkpoint.at(newest).to_json(), **selected)
    assert str(path) in answer.headers["x-dbus-error-cause-message"]
    health = served.get("/health")
    assert health.status == 503
    assert str(path) in health.body.decode()


def test_a_consumer_that_goes_on_has_nothing_checked_again(served: ServedRelay) -> None:
    check = served.relay.physical_sources["shop"].reader.check
    scn = 1
    while body := served.stream(checkPoint=Checkpoint.at(scn).to_json(), size=9000).body:
        scn = max(event.scn for event in walk(body))
    assert scn == LAST
    assert check._written_from == 0


def test_what_a_start_drops_of_a_damaged_ring_is_said_with_file_and_position(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    relay = ServedRelay(tmp_path, physical_sources=[RINGS | {"ring_bytes": 1 << 18}])
    relay.put(*(transaction(scn, insert(scn, "x" * 300, ORDERS)) for scn in range(1, LAST + 1)))
    tail = relay.relay.physical_sources["shop"].ring.tail
    relay.close()
    path = tmp_path / "data" / "shop.ring"
    flip(path, path.stat().st_size - (1 << 18) + tail - 10)
    relay = ServedRelay(tmp_path, physical_sources=[RINGS | {"ring_bytes": 1 << 18}])
    try:
        (said,) = [r.getMessage() for r in caplog.records if str(path) in r.getMessage()]
        (noted,) = json.loads(relay.get("/api/v1/problems").body)["problems"]
    finally:
        relay.close()
    assert noted["text"] == said
    assert f"what followed scn {LAST - 1} is dropped, and captured again" in said
    assert "at byte" in said


class Watching:
    """A ring and a watch of it, which notes what it says."""

    def __init__(self, path: Path) -> None:
        self.ring = Ring.open(path, "shop", 1 << 18, start_scn=0)
        self.said: list[tuple[str, DatabusError, int]] = []
        self.watch = RingWatch({"shop": path}, lambda *said: self.said.append(said), Clock())


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Watching]:
    made = Watching(tmp_path / "shop.ring")
    yield made
    made.ring.close()


def test_a_watch_says_a_damage_once_and_counts_what_it_looked_at(
    watching: Watching, tmp_path: Path
) -> None:
    watching.ring.append([window_of(scn) for scn in range(1, 400)])
    watching.watch.look_at("shop")
    assert watching.watch.watched["shop"].checked_bytes == watching.ring.tail
    assert watching.said == []
    flip(tmp_path / "shop.ring", old_byte(tmp_path / "shop.ring", 0.9))
    for _ in range(2):
        watching.watch.look_at("shop")
    ((name, error, until),) = watching.said
    assert name == "shop"
    assert isinstance(error, DamagedWindowsError)
    assert 0 < until <= watching.ring.tail


def test_a_ring_that_cannot_be_looked_at_is_said(watching: Watching, tmp_path: Path) -> None:
    (tmp_path / "shop.ring").rename(tmp_path / "elsewhere")
    watching.watch.look_at("shop")
    ((_, error, _),) = watching.said
    assert isinstance(error, RingError)
    assert watching.watch.watched["shop"].problem == str(error)
    (tmp_path / "elsewhere").rename(tmp_path / "shop.ring")
    watching.watch.look_at("shop")
    assert watching.watch.watched["shop"].problem == ""


def test_a_ring_for_which_no_descriptor_is_left_is_said_and_looked_at_again_soon(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", full)
        watching.watch.look_at("shop")
    watched = watching.watch.watched["shop"]
    assert "Too many open files" in watched.problem
    assert watched.is_passing
    monkeypatch.setattr(ring_watch, "RETRY_S", 0.01)
    watching.watch.start()
    wait_until(lambda: not watched.problem)
    assert watching.watch.stop(PATIENCE_S)


def test_a_look_that_fails_in_an_unknown_way_is_said_and_ends_no_watch(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RingWatch, "look_at", lambda *_: 1 // 0)
        patch.setattr(ring_watch, "REST_S", 0.01)
        watching.watch.start()
        wait_until(lambda: "ZeroDivisionError" in watching.watch.watched["shop"].problem)
    wait_until(lambda: not watching.watch.watched["shop"].problem)
    assert watching.watch.stop(PATIENCE_S)


def test_a_ring_begun_anew_is_not_damaged_any_more(damaged: ServedRelay) -> None:
    wait_until(lambda: damaged.relay.ring_watch.watched["shop"].round_at_s is not None)
    watched = damaged.relay.ring_watch.watched["shop"]
    watched.problem = "its index is damaged"
    assert watched.damages
    assert post(damaged, "/physicalSources/shop/restart", {"scn": str(LAST)}).status == 200
    assert (watched.problem, watched.damages) == ("", ())
    assert damaged.get("/health").status == 200


def test_what_a_relay_says_of_all_its_sources_leaves_out_no_one_that_it_can_use(
    tmp_path: Path,
) -> None:
    other = {"name": "other", "uri": "fake:", "sources": ["other.items"]}
    ServedRelay(tmp_path, physical_sources=[RINGS, other]).close()
    (tmp_path / "data" / "other.ring").write_bytes(b"no ring at all")
    relay = ServedRelay(tmp_path, physical_sources=[RINGS, other])
    try:
        relay.put(transaction(1, insert(1, "x", ORDERS)))
        assert json.loads(relay.get("/containerStats/inbound/events/total").body)["events"] == 1
        states = json.loads(relay.get("/controlSources/status").body)
        assert {name: one["state"] for name, one in states.items()} == {
            "shop": "running",
            "other": "error",
        }
        metrics = relay.get("/metrics").body.decode()
        assert 'source_state{physical_source="other",state="error"} 1.0' in metrics
        assert relay.get("/health").status == 503
    finally:
        relay.close()
