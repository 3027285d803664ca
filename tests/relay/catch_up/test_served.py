"""A relay serves from the source's own log what neither its ring nor its log has."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.conf.named_places import ScnPlace
from databus.relay.catch_up import catch_up
from databus.relay.catch_up.status import CatchUpState, CatchUpStatus
from databus.relay.sources.kind import RereadRequest
from databus.relay.sources.source import Transaction
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import SourceStoppedError
from databus.schemas.event.v2 import peek
from databus.schemas.log_mark import LogMark
from tests.relay.admin.test_api import kept, post
from tests.relay.fakes import ORDERS, PERSON, Answer, ServedRelay, insert, transaction, wait_until
from tests.relay.log.test_served import transactions
from tests.relay.ring.model import split_events
from tests.relay.serving.databus.test_http import as_json

RING_BYTES = 64 << 10
LAST = 1500  # windows: several rings of them
ANN = {"x-databus-client": "ann"}


@contextmanager
def served(folder: Path, **changes: Any) -> Iterator[ServedRelay]:
    """Yield a relay of which the ring has evicted the first windows."""
    shop = {"name": "shop", "uri": "fake:", "sources": [PERSON.source, ORDERS.source]}
    shop |= {"ring_bytes": RING_BYTES, "catch_up_idle_s": 60.0} | changes
    relay = ServedRelay(folder, is_reread=True, physical_sources=[shop])
    try:
        relay.put(*transactions(range(1, LAST + 1)))
        yield relay
    finally:
        relay.close()


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay of which the ring has evicted the first windows."""
    with served(tmp_path) as one:
        yield one


def ask(relay: ServedRelay, checkpoint: Checkpoint, **parameters: Any) -> Answer:
    """Ask for what comes after a checkpoint, and wait a while for it."""
    asked = {"checkPoint": checkpoint.to_json(), "wait": 2000} | parameters
    return relay.stream(**asked)


def read_to(relay: ServedRelay, scn: int, until: int = LAST, **parameters: Any) -> list[bytes]:
    """Read the events after an SCN up to another one."""
    events: list[bytes] = []
    while scn < until:
        answer = ask(relay, Checkpoint.at(scn), **parameters)
        assert answer.status == 200, answer.headers["x-dbus-error-cause-message"]
        assert answer.headers.get("x-databus-ahead") is None
        events += split_events(answer.body)
        scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
        assert offset == -1, "a window larger than an answer"
    return events


def encoded(relay: ServedRelay, wanted: list[Transaction]) -> list[bytes]:
    """Return the events of transactions, as the relay writes them."""
    source = relay.relay.physical_sources["shop"]
    encoder = relay.relay._opener.make_encoder(source.settings)
    return [event for one in wanted for event in split_events(encoder.encode(one).data)]


def catch_ups(relay: ServedRelay) -> tuple[CatchUpStatus, ...]:
    """Return the status of the catch-ups."""
    return relay.relay.status_of("shop").catch_ups


def wait_for(relay: ServedRelay, is_so: Callable[[tuple[CatchUpStatus, ...]], bool]) -> None:
    """Wait until catch-ups are so."""
    wait_until(lambda: is_so(catch_ups(relay)))


def test_a_consumer_older_than_the_ring_gets_every_event_in_order_and_then_those_of_the_ring(
    relay: ServedRelay,
) -> None:
    assert relay.relay.physical_sources["shop"].reader.min_scn > 500
    assert read_to(relay, 100) == encoded(relay, list(transactions(range(101, LAST + 1))))
    (status,) = catch_ups(relay)
    assert (status.state, status.problem) == (CatchUpState.JOINED, "")
    assert relay.rereads[0].opened_after == [100]


def test_a_filtered_read_goes_across_the_joint_too(relay: ServedRelay) -> None:
    person = relay.relay.catalog.ids["shop.person"]
    every = encoded(relay, list(transactions(range(101, LAST + 1))))
    wanted = [event for event in every if peek(event).src_id == person]
    found = read_to(relay, 100, sources="shop.person")
    assert [event for event in found if not peek(event).is_eop] == wanted


def test_two_consumers_share_one_catch_up_and_an_older_one_waits_for_its_own(
    relay: ServedRelay,
) -> None:
    assert read_to(relay, 100, 150, size=4096)
    assert read_to(relay, 200, 250, size=4096)
    assert len(catch_ups(relay)) == 1
    held = ask(relay, Checkpoint.at(50), wait=10)
    assert (held.status, held.body) == (200, b"")
    assert held.headers["x-databus-resume"] == "50,-1"
    first, second = catch_ups(relay)
    assert (first.asked_scn, second.asked_scn) == (100, 50)
    assert second.state is CatchUpState.QUEUED


def test_an_idle_catch_up_is_dropped_with_its_folder_and_the_queued_one_begins(
    tmp_path: Path,
) -> None:
    with served(tmp_path, catch_up_idle_s=0.3) as relay:
        assert read_to(relay, 100, 150, size=4096)
        folder = tmp_path / "data" / "shop.catch-up"
        assert len(list(folder.iterdir())) == 1
        # The queued request is held: it is in use, and begins once the other one is gone.
        assert read_to(relay, 50, 100, size=4096)
        assert [one.asked_scn for one in catch_ups(relay)] == [50]
        wait_for(relay, lambda found: not found)
        assert not list(folder.iterdir())


def test_what_the_source_cannot_read_any_more_is_not_found_with_the_reason_and_the_oldest(
    relay: ServedRelay,
) -> None:
    purged = SourceStoppedError("shop", 100, "files were purged")
    relay.source().reread_errors += [purged, purged]
    answer = ask(relay, Checkpoint.at(100), wait=20_000)
    assert answer.status == 404
    text = answer.headers["x-dbus-error-cause-message"]
    oldest = relay.relay.physical_sources["shop"].reader.min_scn
    assert f"scn 100 is gone; the oldest held is {oldest}; the source's own log cannot" in text
    assert "files were purged" in text
    again = ask(relay, Checkpoint.at(99))
    assert again.status == 404
    assert len(relay.rereads) == 2, "it was tried again at once"


def test_other_rows_than_the_relay_captured_end_a_catch_up_before_its_readers_pass_the_joint(
    relay: ServedRelay,
) -> None:
    source = relay.relay.physical_sources["shop"]
    oldest = source.reader.min_scn
    log = relay.source()._log
    log[oldest - 1] = transaction(oldest, insert(7, "another row"))
    scn, answer = 100, ask(relay, Checkpoint.at(100))
    while answer.status in (200, 503):  # while it ends, a request may be told to ask again
        if answer.status == 200:
            scn = int(answer.headers["x-databus-resume"].split(",")[0])
        assert scn < source.reader.prev_scn
        answer = ask(relay, Checkpoint.at(scn))
    assert answer.status == 404, answer.body
    assert f"other rows at scn {oldest}" in answer.headers["x-dbus-error-cause-message"]


UNREAD = [transaction(scn, insert(scn), insert(100 + scn)) for scn in range(1, 6)]
CAPTURED = list(transactions(range(6, 10)))


@contextmanager
def begun_at(folder: Path, **changes: Any) -> Iterator[ServedRelay]:
    """Yield a relay that began at window 5, which it has not read, and then captured up to 9."""
    shop = {"name": "shop", "uri": "fake:", "sources": [PERSON.source, ORDERS.source]} | changes
    relay = ServedRelay(folder, is_reread=True, physical_sources=[shop])
    try:
        source = relay.source()
        source.put(transaction(5))  # an empty window
        relay.wait_for_scn(5)
        relay.put(*CAPTURED)
        # The log itself has rows up to there.
        with source._arrived:
            source._log[:1] = UNREAD
            source._next += len(UNREAD) - 1
        yield relay
    finally:
        relay.close()


INSIDE = Checkpoint(ConsumptionMode.ONLINE, 5, 1)
KEPT = pytest.mark.parametrize("changes", [{}, {"log": {"sync_ms": 5}}], ids=["ring", "relay log"])


@KEPT
@pytest.mark.parametrize("scn", [1, 3, 4])
def test_a_relay_that_began_after_a_place_leads_to_what_it_has_captured(
    tmp_path: Path, changes: dict[str, Any], scn: int
) -> None:
    with begun_at(tmp_path, **changes) as relay:
        if changes:
            recorder = relay.relay.physical_sources["shop"].recorder
            assert recorder is not None
            wait_until(lambda: recorder.join is not None)
        wanted = encoded(relay, [*UNREAD, *CAPTURED][scn:])
        assert read_to(relay, scn, 9) == wanted
        assert [one.state for one in catch_ups(relay)] == [CatchUpState.JOINED]


@KEPT
def test_the_rest_of_the_window_at_which_a_relay_began_is_not_passed_over(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with begun_at(tmp_path, **changes) as relay:
        answer = ask(relay, INSIDE)
        assert answer.status == 200, answer.headers["x-dbus-error-cause-message"]
        wanted = encoded(relay, [*UNREAD[4:], *CAPTURED])[1:]
        found = split_events(answer.body)
        assert found[:2] == wanted[:2]
        scn, _ = map(int, answer.headers["x-databus-resume"].split(","))
        assert found + read_to(relay, scn, 9) == wanted


@KEPT
def test_the_rest_of_the_window_at_which_a_relay_began_is_gone_without_catch_ups(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with begun_at(tmp_path, catch_ups=0, **changes) as relay:
        assert ask(relay, INSIDE, wait=0).status in (404, 503)
        wait_until(lambda: ask(relay, INSIDE, wait=0).status == 404)
        assert read_to(relay, 5, 9) == encoded(relay, CAPTURED)


def test_the_identity_of_the_log_may_be_known_a_moment_after_the_first_window(
    relay: ServedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, asked = LogMark(LAST, "{}"), list[LogMark | None]()
    answers = iter([None, known])

    def prepare(scn: int, mark: LogMark | None, *more: Any) -> RereadRequest:
        asked.append(mark)
        return RereadRequest(scn, mark, *more)

    monkeypatch.setattr(catch_up.MainHistory, "newest_mark", lambda _: next(answers, known))
    monkeypatch.setattr(catch_up, "RereadRequest", prepare)
    read_to(relay, 100, 150, size=4096)
    assert set(asked) == {known}


def test_a_problem_that_passes_is_no_reason_to_bootstrap(
    relay: ServedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(catch_up, "make_folder", full)
    answer = ask(relay, Checkpoint.at(100), wait=20_000)
    assert answer.status == 503
    monkeypatch.undo()
    wait_until(lambda: ask(relay, Checkpoint.at(100)).status == 200)


def test_a_ring_that_begins_anew_ends_a_catch_up_and_another_one_goes_on(
    relay: ServedRelay,
) -> None:
    assert read_to(relay, 100, 150, size=4096)
    relay.relay.control.restart(relay.relay.physical_sources["shop"], ScnPlace(LAST - 200))
    relay.wait_for_scn(LAST)
    wait_for(relay, lambda found: not found)
    assert read_to(relay, 150) == encoded(relay, list(transactions(range(151, LAST + 1))))


def test_a_place_that_the_ring_has_and_one_of_the_beginning_need_no_catch_up(
    relay: ServedRelay,
) -> None:
    oldest = relay.relay.physical_sources["shop"].reader.min_scn
    assert read_to(relay, oldest)
    assert ask(relay, Checkpoint.at(0)).status == 404
    assert ask(relay, Checkpoint.flexible()).status == 200
    assert catch_ups(relay) == ()


def test_a_client_whose_place_can_be_read_again_has_not_fallen(relay: ServedRelay) -> None:
    old = [report_of(relay, 3), report_of(relay, LAST)]
    assert [one["positions"][0]["isGone"] for one in old] == [False, False]
    assert [one["positions"][0]["isInSourceLog"] for one in old] == [True, False]


def report_of(relay: ServedRelay, scn: int) -> Any:
    """Report a checkpoint as a client does; return what the relay says of it."""
    one = kept(scn, sources=[PERSON.source, ORDERS.source], server="http://localhost")
    return json.loads(post(relay, "/clients/ann-1", one).body)


def test_none_are_made_where_the_settings_say_so(tmp_path: Path) -> None:
    with served(tmp_path, catch_ups=0) as relay:
        assert ask(relay, Checkpoint.at(100)).status == 404
        assert relay.rereads == []


def test_a_read_up_to_a_window_that_is_not_read_yet_ends_with_that_window(
    relay: ServedRelay,
) -> None:
    events = read_to(relay, 100, 400, untilScn=400)
    assert events == encoded(relay, list(transactions(range(101, 401))))


def test_a_measurement_counts_what_is_read_again(relay: ServedRelay) -> None:
    rows, scn = 0, 100
    wanted = encoded(relay, list(transactions(range(101, LAST + 1))))
    while scn < LAST:
        at = Checkpoint.at(scn).to_json()
        answer = relay.get("/measure", sources="shop.person,shop.orders", checkPoint=at, rows=200)
        assert answer.status == 200, answer.body
        found = as_json(answer)
        assert found["fromScn"] == scn
        rows, scn = rows + found["rows"], found["scn"]
    assert rows == len(wanted) - (LAST - 100)  # without the end of each window


def test_status_metrics_and_clients_show_who_reads_the_sources_log(relay: ServedRelay) -> None:
    asked: dict[str, Any] = {"checkPoint": Checkpoint.at(100).to_json(), "wait": 2000}
    relay.get("/stream", ANN, sources="shop.person,shop.orders", size=4096, **asked)
    (view,) = as_json(relay.get("/api/v1/physicalSources/shop"))["catchUps"]
    assert (view["askedScn"], view["readers"], view["problem"]) == ("100", ["ann"], "")
    (client,) = as_json(relay.get("/api/v1/clients"))["clients"]
    (position,) = client["positions"]
    assert (position["isInSourceLog"], position["isGone"]) == (True, False)
    metrics = relay.get("/metrics").body.decode()
    assert 'databus_relay_catch_up_running{physical_source="shop"} 1.0' in metrics
    assert 'databus_relay_catch_up_opened_total{physical_source="shop"} 1.0' in metrics
