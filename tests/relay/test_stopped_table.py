"""A table that cannot be captured stops alone: its consumers at the window before, nobody else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.conf.named_places import ScnPlace
from databus.daemon import files
from databus.relay import captured_spans
from databus.relay.capture.status import State
from databus.relay.ring.ring import Ring
from databus.relay.sources.source import RowChange, TableDefined, Transaction
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import RingError
from databus.schemas.event.control import statement_of
from databus.schemas.event.event import DDL_SRC_ID
from databus.schemas.event.metadata import Op
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.relay.fakes import ORDERS, PERSON, Answer, ServedRelay, insert, transaction, wait_until

STOPPED = "TableStoppedException"
UNFIT = RowChange(ORDERS, Op.INSERT, {"id": "no number"})
BOTH = "shop.person,shop.orders"


def of_both(scn: int) -> Transaction:
    return transaction(scn, insert(scn, "x", PERSON), insert(scn, "x", ORDERS))


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay with windows 1 to 6; orders cannot be captured from 4 on."""
    with closing(stopped_relay(tmp_path)) as relay:
        yield relay


def stopped_relay(folder: Path, **changes: Any) -> ServedRelay:
    relay = ServedRelay(folder, **changes)
    relay.put(of_both(1), of_both(2), of_both(3))
    relay.put(transaction(4, insert(4, "x", PERSON), UNFIT), of_both(5), of_both(6))
    return relay


def ask(relay: ServedRelay, scn: int, sources: str, **parameters: Any) -> Answer:
    at = Checkpoint.at(scn) if scn else Checkpoint.flexible()
    return relay.stream(sources=sources, checkPoint=at.to_json(), **parameters)


def rows_of(answer: Answer) -> list[tuple[int, int]]:
    """Return SCN and source id of each row."""
    assert answer.status == 200, answer.body
    return [(event.scn, event.src_id) for event in walk(answer.body) if not event.is_control]


def refuses(answer: Answer, scn: int = 3) -> bool:
    assert (answer.status, answer.headers["x-dbus-error"]) == (503, STOPPED), answer.body
    assert answer.headers["x-databus-stopped"] == "shop.orders"
    assert f"source shop.orders is stopped after scn {scn}".encode() in answer.body
    assert b"/restart" in answer.body
    return True


def test_the_others_go_on_with_whole_windows(relay: ServedRelay) -> None:
    found = rows_of(ask(relay, 0, "shop.person"))
    assert [scn for scn, _ in found] == [1, 2, 3, 4, 5, 6]
    assert relay.relay.physical_sources["shop"].capture.status.state is State.RUNNING


@pytest.mark.parametrize("sources", ["shop.orders", BOTH])
def test_who_reads_the_table_is_sent_everything_before_and_then_the_error(
    relay: ServedRelay, sources: str
) -> None:
    answer = ask(relay, 0, sources)
    assert {scn for scn, _ in rows_of(answer)} == {1, 2, 3}
    assert answer.headers["x-databus-resume"] == "3,-1"
    for scn in (3, 4, 6, 900):
        assert refuses(ask(relay, scn, sources))


def test_a_request_for_all_sources_is_refused_too(relay: ServedRelay) -> None:
    everything = '[{"logicalPartition":{"source":{"id":-1,"name":"*"}}}]'
    at = Checkpoint.at(3).to_json()
    assert refuses(relay.get("/stream", size=1 << 20, subs=everything, checkPoint=at))


def test_from_the_latest_on_it_is_refused_and_from_the_oldest_on_it_ends(
    relay: ServedRelay,
) -> None:
    assert refuses(relay.stream(sources="shop.orders", streamFromLatestScn="true"))
    assert {scn for scn, _ in rows_of(relay.stream(sources="shop.orders"))} == {1, 2, 3}


def test_an_oldest_window_after_the_stop_is_refused(tmp_path: Path) -> None:
    physical = {"name": "shop", "uri": "fake:", "sources": BOTH.split(","), "ring_bytes": 1 << 16}
    with closing(stopped_relay(tmp_path, physical_sources=[physical])) as relay:
        wide = [transaction(scn, insert(scn, "x" * 8000, PERSON)) for scn in range(7, 30)]
        relay.put(*wide)
        assert relay.relay.physical_sources["shop"].ring.min_scn > 3
        assert refuses(relay.stream(sources="shop.orders"))
        assert rows_of(relay.stream(sources="shop.person"))
        assert ask(relay, 1, "shop.orders").status == 404


def test_a_request_that_is_held_when_the_table_stops_is_answered_with_the_error(
    tmp_path: Path,
) -> None:
    with closing(ServedRelay(tmp_path)) as relay:
        relay.put(of_both(1))
        found: list[Answer] = []
        held = threading.Thread(
            target=lambda: found.append(ask(relay, 1, "shop.orders", wait=30_000))
        )
        held.start()
        wait_until(lambda: relay.relay.physical_sources["shop"].notifier.waiting == 1)
        relay.put(transaction(2, UNFIT))
        held.join(PATIENCE_S)
        assert refuses(found[0], 1)


def test_a_streamed_answer_ends_at_the_window_before(tmp_path: Path) -> None:
    with closing(ServedRelay(tmp_path)) as relay:
        relay.put(of_both(1))
        found: list[Answer] = []
        streamed = threading.Thread(
            target=lambda: found.append(ask(relay, 0, BOTH, wait=30_000, follow="true"))
        )
        streamed.start()
        wait_until(lambda: relay.relay.physical_sources["shop"].notifier.waiting == 1)
        relay.put(of_both(2), transaction(3, UNFIT), of_both(4))
        streamed.join(PATIENCE_S)
        assert {scn for scn, _ in rows_of(found[0])} == {1, 2}
        assert refuses(ask(relay, 2, BOTH), 2)


def test_a_measurement_ends_at_the_window_before(relay: ServedRelay) -> None:
    def measure(scn: int, sources: str, **more: Any) -> Answer:
        at = Checkpoint.at(scn).to_json()
        return relay.get("/measure", sources=sources, checkPoint=at, **more)

    found = json.loads(measure(1, BOTH).body)
    assert (found["scn"], found["rows"], found["maxScn"]) == (3, 4, 6)
    assert refuses(measure(3, BOTH))
    assert json.loads(measure(3, BOTH, untilScn=3).body)["scn"] == 3
    assert json.loads(measure(3, "shop.person").body)["scn"] == 6


def test_a_range_that_ends_before_the_stop_is_served_to_its_end(relay: ServedRelay) -> None:
    assert {scn for scn, _ in rows_of(ask(relay, 1, BOTH, untilScn=3))} == {2, 3}
    assert rows_of(ask(relay, 3, BOTH, untilScn=3)) == []
    assert refuses(ask(relay, 3, BOTH, untilScn=4))


def test_the_stop_survives_a_restart(tmp_path: Path) -> None:
    stopped_relay(tmp_path).close()
    with closing(ServedRelay(tmp_path)) as relay:
        relay.put(of_both(7))
        assert refuses(ask(relay, 3, "shop.orders"))
        assert rows_of(ask(relay, 6, "shop.person")) == [(7, 1)]
        assert [scn for scn, _ in rows_of(ask(relay, 0, "shop.person"))] == [*range(1, 8)]


def test_a_relay_that_was_killed_between_file_and_ring_finds_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = Ring.seal_sources
    with monkeypatch.context() as killed, closing(ServedRelay(tmp_path)) as relay:
        relay.put(of_both(1))
        killed.setattr(Ring, "seal_sources", lambda *_: None)
        relay.relay.physical_sources["shop"].spans.stop(["shop.orders"], "it is broken", 1.0)
    assert Ring.seal_sources is sealed
    with closing(ServedRelay(tmp_path)) as relay:
        relay.put(of_both(2))
        answer = ask(relay, 1, "shop.orders")
        assert (answer.status, b"it is broken" in answer.body) == (503, True)
        assert [scn for scn, _ in rows_of(ask(relay, 0, "shop.person"))] == [1, 2]


def test_a_stop_that_cannot_be_saved_captures_nothing_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(ServedRelay(tmp_path)) as relay:
        relay.put(of_both(1))
        capture = relay.relay.physical_sources["shop"].capture
        monkeypatch.setattr(captured_spans, "replace_file", full)
        relay.source().put(transaction(2, UNFIT), of_both(3))
        wait_until(
            lambda: capture.status.state is State.RETRYING and "room" in capture.status.problem
        )
        assert relay.relay.physical_sources["shop"].ring.max_scn == 1
        monkeypatch.setattr(captured_spans, "replace_file", files.replace_file)
        relay.wait_for_scn(3)
        assert refuses(ask(relay, 1, "shop.orders"), 1)


def test_the_only_table_that_is_left_stops_its_physical_source(relay: ServedRelay) -> None:
    unfit = RowChange(PERSON, Op.INSERT, {"id": "no number"})
    relay.source().put(transaction(7, unfit))
    capture = relay.relay.physical_sources["shop"].capture
    assert capture.wait_for(State.ERROR, PATIENCE_S)
    # It goes on from there, so nothing is lost.
    assert [scn for scn, _ in rows_of(ask(relay, 3, "shop.person"))] == [4, 5, 6]


def test_statements_about_the_table_are_left_out_and_those_about_others_are_not(
    relay: ServedRelay,
) -> None:
    mine, both = (ORDERS.source,), (PERSON.source, ORDERS.source)
    relay.put(
        transaction(7, TableDefined(mine, "shop", "ALTER TABLE orders ADD x INT")),
        transaction(8, TableDefined(both, "shop", "RENAME TABLE person TO p, orders TO o")),
        of_both(9),
    )
    answer = ask(relay, 6, "shop.person", ddl="true")
    statements = [statement_of(e) for e in walk(answer.body) if e.src_id == DDL_SRC_ID]
    assert [one.statement[:6] for one in statements] == ["RENAME"]


def test_it_is_shown(relay: ServedRelay) -> None:
    health = relay.get("/health")
    assert health.status == 503
    (trouble,) = relay.relay.troubles
    assert "source shop.orders is stopped after scn 3" in trouble.text
    status = json.loads(relay.get("/controlSources/status").body)["shop"]
    (stopped,) = status["stoppedTables"]
    assert (stopped["source"], stopped["afterScn"]) == ("shop.orders", 3)
    assert (status["state"], status["problem"]) == ("running", "")
    (view,) = json.loads(relay.get("/api/v1/physicalSources").body)["physicalSources"]
    assert view["stoppedTables"][0]["afterScn"] == "3"
    assert b'databus_relay_stopped_tables{physical_source="shop"} 1.0' in relay.get("/metrics").body


def test_a_restart_from_there_brings_the_table_back_and_nobody_goes_on_inside_a_window(
    relay: ServedRelay,
) -> None:
    # What was wrong with the row is mended.
    relay.source()._log[3] = of_both(4)
    physical = relay.relay.physical_sources["shop"]
    relay.relay.control.restart(physical, ScnPlace(3))
    relay.wait_for_scn(6)
    physical.reader.follow()
    assert rows_of(ask(relay, 3, "shop.orders")) == [(4, 2), (5, 2), (6, 2)]
    assert relay.get("/health").status == 200
    inside = Checkpoint.at(5).to_json().replace('"windowOffset":-1', '"windowOffset":1')
    answer = relay.stream(sources="shop.person", checkPoint=inside)
    assert (answer.status, b"captured again" in answer.body) == (400, True)
    relay.put(of_both(7))
    inside = Checkpoint.at(7).to_json().replace('"windowOffset":-1', '"windowOffset":1')
    assert rows_of(relay.stream(sources="shop.orders", checkPoint=inside)) == [(7, 2)]


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def restart(relay: ServedRelay, scn: int) -> None:
    relay.relay.control.restart(relay.relay.physical_sources["shop"], ScnPlace(scn))


def test_a_restart_that_cannot_save_its_beginning_changes_nothing(
    relay: ServedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_spans, "replace_file", full)
    with pytest.raises(RingError, match="the file of captured sources cannot be saved"):
        restart(relay, 1)
    monkeypatch.undo()
    assert rows_of(ask(relay, 1, "shop.orders")) == [(2, 2), (3, 2)]
    assert refuses(ask(relay, 3, "shop.orders"))


@pytest.mark.parametrize("step", ["max_scn.save", "spans.clear"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["fails", "is killed"])
def test_a_restart_that_ends_half_way_serves_no_window_without_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_killed: bool
) -> None:
    with closing(stopped_relay(tmp_path)) as relay:
        physical: Any = relay.relay.physical_sources["shop"]
        place, _, method = step.rpartition(".")
        monkeypatch.setattr(type(getattr(physical, place)), method, full)
        with pytest.raises(OSError, match="No space left"):
            restart(relay, 1)
        monkeypatch.undo()
        if not is_killed:
            relay.wait_for_scn(6)
            physical.reader.follow()
            assert refuses(ask(relay, 1, "shop.orders"), 1)
            assert [scn for scn, _ in rows_of(ask(relay, 1, "shop.person"))] == [2, 3, 4, 5, 6]
    if is_killed:
        with closing(ServedRelay(tmp_path)) as relay:
            relay.put(of_both(7))
            assert refuses(ask(relay, 1, "shop.orders"), 1)
            assert refuses(ask(relay, 6, "shop.orders"), 1)
            assert ask(relay, 6, "shop.person").status == 200


def test_a_large_window_that_is_captured_again_is_read_in_pieces(tmp_path: Path) -> None:
    def in_pieces(place: str) -> list[tuple[int, int]]:
        """Return the rows behind a place, read as the relay says."""
        found: list[tuple[int, int]] = []
        while True:
            scn, offset = place.split(",")
            at = Checkpoint.at(int(scn)).to_json()
            at = at.replace('"windowOffset":-1', f'"windowOffset":{offset}')
            answer = relay.stream(sources=BOTH, checkPoint=at, size=8000)
            found += rows_of(answer)
            place = answer.headers["x-databus-resume"]
            if place.endswith(",-1"):
                return found
            pieces.append(place)

    rows = [insert(n, "x" * 1000, (PERSON, ORDERS)[n % 2]) for n in range(30)]
    pieces: list[str] = []
    with closing(ServedRelay(tmp_path)) as relay:
        relay.put(of_both(1), transaction(2, *rows))
        assert len(in_pieces("1,-1")) == 30
        before = pieces[:]
        relay.put(transaction(3, UNFIT, insert(3, "x", PERSON)))
        relay.source()._log[2] = of_both(3)
        for _ in range(2):
            restart(relay, 1)
            relay.wait_for_scn(3)
            relay.relay.physical_sources["shop"].reader.follow()
            pieces.clear()
            whole = in_pieces("1,-1")
            assert len(whole) == 32
            assert len(pieces) > 2
            assert set(pieces).isdisjoint(before)
            assert len(in_pieces(pieces[0])) < 32
            stale = Checkpoint.at(2).to_json()
            stale = stale.replace('"windowOffset":-1', f'"windowOffset":{before[0][2:]}')
            answer = relay.stream(sources=BOTH, checkPoint=stale)
            assert (answer.status, b"captured again" in answer.body) == (400, True)
            before = pieces[:]


def test_a_ring_that_never_had_a_window_stops_as_a_whole(tmp_path: Path) -> None:
    with closing(ServedRelay(tmp_path)) as relay:
        relay.source().put(transaction(1, UNFIT), of_both(2))
        assert relay.relay.physical_sources["shop"].capture.wait_for(State.ERROR, PATIENCE_S)
        assert relay.stream(sources="shop.orders").status == 200
