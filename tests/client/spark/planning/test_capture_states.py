"""A source that its relay does not capture, as queries see it: an error, and an unknown lag."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.client.spark.planning.capture_states import CaptureStates, Stopped, stopped_sources
from databus.client.spark.planning.offsets import AtScn, QueryOffset, to_offset
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.spark.source.changes_between import ranges_of_changes
from databus.schemas.errors import ServerError, SourceStoppedError
from tests.client.spark.monitoring.test_progress import figures_of, source
from tests.client.spark.source.queries import Query
from tests.promises.running import RunningRelay, Shop, running, wait_until

SOURCES = ("shop.orders",)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.db")
    yield found
    found.close()


@pytest.fixture
def relay(tmp_path: Path, shop: Shop) -> Iterator[RunningRelay]:
    with running(RunningRelay(tmp_path, shop.settings()).start()) as found:
        shop.insert(*range(1, 61), each=10)
        ((scn,),) = shop.connection.execute("SELECT max(id) FROM _databus_log").fetchall()
        found.wait_for_scn(scn)
        yield found


def make_unreachable(shop: Shop, relay: RunningRelay) -> None:
    """Take the database away from under its relay."""
    shop.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shop.path.rename(shop.path.with_suffix(".away"))
    wait_until(lambda: relay.get("/health").status == 503, "a problem", relay.tell)


def pause(relay: RunningRelay) -> None:
    """Let a relay rest, and wait until it does."""
    relay.post("/controlSources/pause")

    def rests() -> bool:
        return bool(relay.get("/controlSources/status").json()["shop"]["state"] == "paused")

    wait_until(rests, "a pause", relay.tell)


def status(state: str, problem: str = "") -> dict[str, Any]:
    return {"shop": {"state": state, "problem": problem}}


def test_a_source_that_runs_without_a_problem_is_captured_and_any_other_is_not() -> None:
    assert stopped_sources("r", status("running"), ["shop"]) == {}
    gone = {"shop": Stopped("unreachable", "connection refused")}
    assert stopped_sources("r", status("running", "connection refused"), ["shop"]) == gone
    for state in ("error", "paused", "stopped", "starting", "unreachable", "a state of later days"):
        assert stopped_sources("r", status(state, "why"), ["shop"]) == {
            "shop": Stopped(state, "why")
        }


def test_one_that_is_captured_while_its_max_scn_cannot_be_saved_is_not_stopped() -> None:
    told = status("retrying", "no space left on device")
    full = {"shop": Stopped("retrying", "no space left on device")}
    assert stopped_sources("r", told, ["shop"]) == full
    assert stopped_sources("r", {"shop": told["shop"] | {"connected": False}}, ["shop"]) == full
    assert stopped_sources("r", {"shop": told["shop"] | {"connected": True}}, ["shop"]) == {}
    for state in ("error", "unreachable", "paused"):
        told = {"shop": {"state": state, "problem": "why", "connected": True}}
        assert stopped_sources("r", told, ["shop"]) != {}


@pytest.mark.parametrize("answer", [{}, [], {"shop": "running"}, {"shop": {"state": "error"}}])
def test_a_status_that_makes_no_sense_is_an_error_and_not_all_is_well(answer: Any) -> None:
    with pytest.raises(ServerError, match="is malformed"):
        stopped_sources("r", answer, ["shop"])


def test_all_there_is_is_read_and_then_available_now_fails_and_says_what_to_do(
    relay: RunningRelay, shop: Shop
) -> None:
    make_unreachable(shop, relay)
    query = Query(relays=relay.url, sources="shop.orders", start="earliest", maxRowsPerTrigger="20")
    with closing(query):
        query.stream.aim_at_newest()
        found = [record["id"] for record in query.wait_for_batch()]
        while len(found) < 60:
            found += [record["id"] for record in query.wait_for_batch()]
        with pytest.raises(SourceStoppedError, match=r"(?s)shop stopped .*onStoppedSource=warn"):
            query.plan()
    assert sorted(found) == list(range(1, 61))


def test_a_warning_is_enough_for_who_asks_for_that(
    relay: RunningRelay, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.insert(61)
    relay.wait_for_scn(61)
    pause(relay)
    given = {"relays": relay.url, "sources": "shop.orders", "start": "earliest"}
    with closing(Query(**given, onStoppedSource="warn")) as query:
        query.stream.aim_at_newest()
        with caplog.at_level(logging.WARNING):
            assert sum(len(records) for records in query.batches()) == 61
    assert "its relay reports state paused" in caplog.text
    with pytest.raises(SourceStoppedError, match="paused"):
        ranges_of_changes({**given, "mode": "changes", "after": "60"})
    assert ranges_of_changes({**given, "after": "60", "until": "61"})


def test_a_query_at_rest_tells_of_a_stop_and_of_its_end_with_a_batch_without_rows(
    relay: RunningRelay, shop: Shop
) -> None:
    with closing(Query(relays=relay.url, sources="shop.orders", start="earliest")) as query:
        assert sum(len(records) for records in query.batches()) == 60
        pause(relay)
        wait_until(lambda: query.plan() is not None, "a batch that tells of it")
        assert query.planned() == []
        end = json.loads(query.log[-1])
        assert end["stopped"] == {"shop": "paused"}
        (place,) = figures_of(source(end, query.stream.newest_offset())).places
        assert (place.stopped, place.lag_s, place.lag_scn) == ("paused", None, None)
        assert query.plan() is None
        relay.post("/controlSources/unpause")
        wait_until(lambda: query.plan() is not None, "a batch that tells of its end")
        assert "stopped" not in json.loads(query.log[-1])
        shop.insert(61)
        assert [record["id"] for record in query.wait_for_batch()] == [61]


def test_a_query_that_goes_on_for_ever_ends_when_a_source_is_stopped_for_as_long_as_was_given(
    relay: RunningRelay, shop: Shop
) -> None:
    given = {"relays": relay.url, "sources": "shop.orders", "start": "earliest"}
    with closing(Query(**given, stoppedSourceSeconds="30")) as query:
        now = [0.0]
        query.stream._clock = lambda: now[0]
        assert sum(len(records) for records in query.batches()) == 60
        pause(relay)
        wait_until(lambda: query.plan() is not None, "a batch that tells of it")
        assert query.plan() is None  # the clock of the stop begins
        now[0] = 29.0
        assert query.plan() is None
        now[0] = 30.0
        with pytest.raises(SourceStoppedError, match=r"state paused for 30 s, longer than stopped"):
            query.plan()
        assert query.stream.newest_offset()["rungs"] == {"shop": "relay"}  # type: ignore[index]


def test_a_source_that_is_being_opened_is_waited_for_before_the_newest_is_asked(
    relay: RunningRelay, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = CaptureStates._ask
    said: list[str] = []

    def opening(states: CaptureStates, names: list[str]) -> Mapping[str, Stopped]:
        if len(said) < 3:
            said.append("starting")
            return {"shop": Stopped("starting", "")}
        if len(said) == 3:
            said.append("")
            shop.insert(61)
            relay.wait_for_scn(61)
        return ask(states, names)

    monkeypatch.setattr(CaptureStates, "_ask", opening)
    with closing(Query(relays=relay.url, sources="shop.orders", start="earliest")) as query:
        query.stream.aim_at_newest()
        assert sum(len(records) for records in query.batches()) == 61
    said.clear()
    given = {"relays": relay.url, "sources": "shop.orders", "retrySeconds": "0"}
    with pytest.raises(SourceStoppedError, match="starting"):
        ranges_of_changes({**given, "after": "60"})


def test_of_two_relays_the_one_that_captures_is_read_from(
    relay: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    other = RunningRelay(tmp_path / "other", shop.settings())
    with running(other.start()):
        pause(relay)
        with closing(ServerPool([relay.url, other.url], 5.0)) as pool:
            states = CaptureStates(pool)
            assert states.look(["shop"]) == {}
            assert pool.urls[0] == other.url
            pause(other)
            assert states.look(["shop"], at_once=True)["shop"].state == "paused"


def test_another_relay_that_does_not_know_the_source_does_not_hide_what_the_first_one_says(
    relay: RunningRelay, tmp_path: Path
) -> None:
    with closing(Shop(tmp_path / "other.db")) as shop:
        other = RunningRelay(tmp_path / "other", shop.settings(name="elsewhere"))
    with running(other.start()):
        pause(relay)
        with closing(ServerPool([relay.url, other.url], 5.0)) as pool:
            assert CaptureStates(pool).look(["shop"])["shop"].state == "paused"


@pytest.fixture
def lower(tmp_path: Path) -> Iterator[RunningRelay]:
    """A relay of another database, whose log is shorter."""
    folder = tmp_path / "lower"
    folder.mkdir()
    other = Shop(folder / "shop.db")
    with running(RunningRelay(folder, other.settings()).start()) as found:
        other.insert(1, 2)
        ((scn,),) = other.connection.execute("SELECT max(id) FROM _databus_log").fetchall()
        found.wait_for_scn(scn)
        yield found
    other.close()


def test_a_relay_that_has_less_than_was_read_is_told_and_its_newest_is_not_believed(
    relay: RunningRelay, lower: RunningRelay
) -> None:
    given = {"sources": "shop.orders", "start": "earliest"}
    with closing(Query(relays=relay.url, **given)) as query:
        assert sum(len(records) for records in query.batches()) == 60
        log = query.log
    with closing(Query(relays=lower.url, **given)) as query:
        query.log = list(log)
        wait_until(lambda: query.plan() is not None, "a batch that tells of it")
        assert query.planned() == []
        end = json.loads(query.log[-1])
        assert end["stopped"] == {"shop": "behind"}
        (place,) = figures_of(source(end, query.stream.newest_offset())).places
        assert (place.stopped, place.lag_s, place.lag_scn) == ("behind", None, None)
    with closing(Query(relays=lower.url, retrySeconds="0.5", **given)) as query:
        query.log = list(log)
        query.stream.aim_at_newest()
        assert query.plan() == [], "the state is told first"
        with pytest.raises(SourceStoppedError, match=r"has windows up to scn \d+ only, .*another"):
            query.plan()


def test_a_query_that_begins_where_a_target_is_does_not_end_well_if_its_relay_has_less(
    lower: RunningRelay,
) -> None:
    given = {"sources": "shop.orders", "start": "50000", "retrySeconds": "0.5"}
    with closing(Query(relays=lower.url, **given)) as query:
        query.stream.aim_at_newest()
        assert query.plan() == [], "the state is told first"
        with pytest.raises(SourceStoppedError, match=r"up to scn \d+ only, .* after scn 50000"):
            query.plan()
    with closing(Query(relays=lower.url, **given)) as query:
        assert query.plan() == []
        assert json.loads(query.log[-1])["stopped"] == {"shop": "behind"}


def test_a_relay_that_reads_its_log_again_is_waited_for(
    relay: RunningRelay, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Query(relays=relay.url, sources="shop.orders", start="earliest")) as query:
        assert sum(len(records) for records in query.batches()) == 60
        shop.insert(61)
        relay.wait_for_scn(61)
        ask = query.stream._measure_client.newest_scns
        told = [{"shop": 3}, {"shop": 5}]
        monkeypatch.setattr(
            query.stream._measure_client, "newest_scns", lambda: told.pop(0) if told else ask()
        )
        query.stream.aim_at_newest()
        found = [record["id"] for records in query.batches() for record in records]
    assert (found, told) == ([61], [])


def test_offsets_without_a_stop_are_as_they_were() -> None:
    places = {"shop": AtScn(1)}
    assert to_offset(QueryOffset(SOURCES, places), {}) == to_offset(QueryOffset(SOURCES, places))
    assert list(to_offset(QueryOffset(SOURCES, places), {"shop": "error"})) == [
        "physical",
        "sources",
        "stopped",
        "v",
    ]
