"""A table that was stopped alone is taken in again, while the others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from databus.conf.named_places import ScnPlace
from databus.relay import captured_spans
from databus.relay.catch_up.status import CatchUpState
from databus.relay.sources.source import RowChange, Transaction
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.metadata import Op
from databus.schemas.stream.stream_reader import walk
from tests.relay.admin.test_api import post
from tests.relay.fakes import ORDERS, PERSON, Answer, ServedRelay, insert, transaction, wait_until

STOP = 20  # the newest window with rows of both tables
REPAIR = 60  # the newest window when the table is taken in again
BOTH = f"{PERSON.source},{ORDERS.source}"
UNFIT = RowChange(ORDERS, Op.INSERT, {"id": "no number"})
Rows = list[tuple[int, str]]  # SCN and table


def of_both(scn: int) -> Transaction:
    return transaction(scn, insert(scn, "x", PERSON), insert(scn, "y", ORDERS))


def stopped(folder: Path, **changes: Any) -> ServedRelay:
    """Return a relay that has stopped a table."""
    shop: dict[str, Any] = {"name": "shop", "uri": "fake:", "sources": BOTH.split(",")}
    relay = ServedRelay(folder, is_reread=True, physical_sources=[shop | changes])
    relay.put(*map(of_both, range(1, STOP + 1)))
    relay.put(transaction(STOP + 1, UNFIT, insert(STOP + 1)))
    relay.put(*map(of_both, range(STOP + 2, REPAIR + 1)))
    relay.source()._log[STOP] = of_both(STOP + 1)  # what was wrong with the row is mended
    return relay


def repair(relay: ServedRelay, **body: Any) -> Answer:
    return post(relay, "/physicalSources/shop/repair", {"source": ORDERS.source} | body)


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay that has taken a table in again, and has windows with its rows since."""
    with closing(stopped(tmp_path)) as relay:
        assert repair(relay).status == 200
        relay.put(*map(of_both, range(REPAIR + 1, REPAIR + 21)))
        yield relay


def ask(relay: ServedRelay, scn: int, sources: str, **more: Any) -> Answer:
    at = Checkpoint.at(scn) if scn else Checkpoint.flexible()
    asked: dict[str, Any] = {"sources": sources, "checkPoint": at.to_json(), "wait": 5000}
    return relay.stream(**(asked | more))


def read_to(relay: ServedRelay, scn: int, until: int, sources: str, **more: Any) -> Rows:
    """Read up to a window; return the rows."""
    found: Rows = []
    names = {src_id: name for name, src_id in relay.relay.catalog.ids.items()}
    while scn < until:
        answer = ask(relay, scn, sources, **more)
        assert answer.status == 200, answer.headers["x-dbus-error-cause-message"]
        found += [(e.scn, names[e.src_id]) for e in walk(answer.body) if not e.is_control]
        scn = int(answer.headers["x-databus-resume"].split(",")[0])
    return found


def expected(begin: int, until: int, sources: str) -> Rows:
    return [(scn, name) for scn in range(begin + 1, until + 1) for name in sources.split(",")]


@pytest.mark.parametrize("sources", [ORDERS.source, BOTH])
@pytest.mark.parametrize("begin", [0, 10, STOP, STOP + 9, REPAIR, REPAIR + 5])
def test_who_reads_the_table_gets_every_row_in_order_from_wherever(
    relay: ServedRelay, begin: int, sources: str
) -> None:
    last = REPAIR + 20
    found = read_to(relay, begin, last, sources, size=2000)
    assert found == expected(begin, last, sources)
    assert bool(relay.rereads) is (begin < REPAIR)
    assert all(one.state is CatchUpState.JOINED for one in relay.relay.status_of("shop").catch_ups)
    relay.put(of_both(last + 1))
    assert read_to(relay, last, last + 1, sources) == expected(last, last + 1, sources)


def test_the_others_are_served_by_the_ring_as_before(relay: ServedRelay) -> None:
    assert read_to(relay, 10, REPAIR + 20, PERSON.source) == expected(
        10, REPAIR + 20, PERSON.source
    )
    assert relay.rereads == []
    assert relay.get("/health").status == 200


def test_a_measurement_counts_every_row_once(relay: ServedRelay) -> None:
    scn, rows = 10, 0
    while scn < REPAIR + 20:
        at = Checkpoint.at(scn).to_json()
        answer = relay.get("/measure", sources=ORDERS.source, checkPoint=at)
        assert answer.status == 200, answer.body
        found = json.loads(answer.body)
        scn, rows = found["scn"], rows + found["rows"]
    assert rows == REPAIR + 10


def test_it_survives_a_restart_of_the_relay(relay: ServedRelay, tmp_path: Path) -> None:
    written = list(relay.source()._log)
    relay.close()
    shop = {"name": "shop", "uri": "fake:", "sources": BOTH.split(",")}
    with closing(
        ServedRelay(tmp_path, is_reread=True, is_frozen=True, physical_sources=[shop])
    ) as again:
        again.source().put(*written, of_both(REPAIR + 21))
        again.source().answers.set()
        again.wait_for_scn(REPAIR + 21)
        found = read_to(again, 10, REPAIR + 21, BOTH)
        assert found == expected(10, REPAIR + 21, BOTH)


def test_what_cannot_be_saved_leaves_the_table_stopped_and_capture_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with closing(stopped(tmp_path)) as relay:
        with monkeypatch.context() as broken:
            broken.setattr(captured_spans, "replace_file", full)
            assert repair(relay).status >= 500
        relay.put(of_both(REPAIR + 1))
        assert ask(relay, STOP, ORDERS.source).status == 503
        assert repair(relay).status == 200
        assert read_to(relay, STOP, REPAIR + 1, BOTH) == expected(STOP, REPAIR + 1, BOTH)


def test_a_second_repair_leaves_no_hole_between_both(relay: ServedRelay) -> None:
    last = REPAIR + 20
    relay.put(transaction(last + 1, UNFIT, insert(last + 1)), of_both(last + 2), of_both(last + 3))
    assert ask(relay, last, ORDERS.source).status == 503
    # Who is in the first hole waits at the stop, too.
    assert read_to(relay, 10, last, ORDERS.source) == expected(10, last, ORDERS.source)
    relay.source()._log[last] = of_both(last + 1)
    assert repair(relay).status == 200
    relay.put(of_both(last + 4))
    for begin in (10, STOP + 3, REPAIR + 3, last + 1):
        assert read_to(relay, begin, last + 4, BOTH) == expected(begin, last + 4, BOTH)


def test_what_the_log_no_longer_has_is_not_found(relay: ServedRelay) -> None:
    relay.source()._log[STOP + 5] = transaction(STOP + 6, UNFIT)
    answer, scn = ask(relay, STOP, ORDERS.source), STOP
    while answer.status == 200:
        scn = int(answer.headers["x-databus-resume"].split(",")[0])
        answer = ask(relay, scn, ORDERS.source)
    assert (answer.status, scn < STOP + 6) == (404, True)


def test_a_restart_before_the_stop_needs_no_catch_up(relay: ServedRelay) -> None:
    source = relay.relay.physical_sources["shop"]
    relay.relay.control.restart(source, ScnPlace(STOP - 5))
    relay.wait_for_scn(REPAIR + 20)
    source.reader.follow()
    begin, last = STOP - 5, REPAIR + 20
    assert read_to(relay, begin, last, BOTH) == expected(begin, last, BOTH)
    assert relay.rereads == []


@pytest.mark.parametrize("changes", [{}, {"catch_ups": 0}], ids=["not stopped", "no catch-ups"])
def test_it_is_refused_where_rows_would_be_missing(tmp_path: Path, changes: dict[str, Any]) -> None:
    with closing(stopped(tmp_path, **changes)) as relay:
        name = ORDERS.source if changes else PERSON.source
        assert repair(relay, source=name).status == 409
        assert ask(relay, STOP, ORDERS.source).status == 503
        assert read_to(relay, 10, REPAIR, PERSON.source) == expected(10, REPAIR, PERSON.source)


def test_a_streamed_answer_ends_where_the_hole_begins(tmp_path: Path) -> None:
    with closing(stopped(tmp_path)) as relay:
        assert repair(relay).status == 200
        answer = ask(relay, 10, BOTH, follow="true")
        assert {event.scn for event in walk(answer.body)} == set(range(11, STOP + 1))
        wait_until(lambda: read_to(relay, STOP, REPAIR, BOTH) == expected(STOP, REPAIR, BOTH))
