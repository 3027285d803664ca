"""A table that the relay has stopped alone stops alone in a catch-up, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.relay.sources.source import RowChange
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.metadata import Op
from databus.schemas.stream.stream_reader import walk
from tests.relay.fakes import ORDERS, PERSON, Answer, ServedRelay, insert, transaction

STOP = 20  # the newest window with rows of both tables
LAST = 400
UNFIT = RowChange(ORDERS, Op.INSERT, {"id": "no number"})


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay that has stopped a table, and of which the ring has evicted the first windows."""
    shop: dict[str, Any] = {"name": "shop", "uri": "fake:", "ring_bytes": 64 << 10}
    shop["sources"] = [PERSON.source, ORDERS.source]
    relay = ServedRelay(tmp_path, is_reread=True, physical_sources=[shop])
    try:
        for scn in range(1, LAST + 1):
            order = UNFIT if scn == STOP + 1 else insert(scn, "y", ORDERS)
            relay.source().put(transaction(scn, insert(scn, "x" * 300), order))
        relay.wait_for_scn(LAST)
        assert relay.relay.physical_sources["shop"].reader.min_scn > STOP + 10
        yield relay
    finally:
        relay.close()


def ask(relay: ServedRelay, scn: int, sources: str) -> Answer:
    return relay.stream(sources=sources, checkPoint=Checkpoint.at(scn).to_json(), wait=5000)


def read_to(relay: ServedRelay, scn: int, until: int, sources: str) -> list[tuple[int, int]]:
    """Read up to a window; return SCN and key of each row."""
    found: list[tuple[int, int]] = []
    while scn < until:
        answer = ask(relay, scn, sources)
        assert answer.status == 200, answer.headers["x-dbus-error-cause-message"]
        found += [(e.scn, int(e.key)) for e in walk(answer.body) if not e.is_control]
        scn = int(answer.headers["x-databus-resume"].split(",")[0])
    return found


@pytest.mark.parametrize("begin", [2, STOP, STOP + 5], ids=["before", "at", "after"])
def test_the_others_get_every_row_across_the_stop_and_go_on_in_the_ring(
    relay: ServedRelay, begin: int
) -> None:
    expected = [(scn, scn) for scn in range(begin + 1, LAST + 1)]
    assert read_to(relay, begin, LAST, PERSON.source) == expected
    assert relay.rereads


def test_who_reads_the_table_gets_every_row_up_to_the_stop_and_then_the_error(
    relay: ServedRelay,
) -> None:
    expected = [(scn, scn) for scn in range(3, STOP + 1)]
    assert read_to(relay, 2, STOP, ORDERS.source) == expected
    answer = ask(relay, STOP, ORDERS.source)
    assert (answer.status, answer.headers["x-databus-stopped"]) == (503, ORDERS.source)


def test_a_table_that_cannot_be_understood_before_its_stop_ends_the_catch_up(
    relay: ServedRelay,
) -> None:
    log = relay.source()._log
    log[STOP - 5] = transaction(STOP - 4, insert(STOP - 4), UNFIT)
    answer, scn = ask(relay, 2, PERSON.source), 2
    while answer.status == 200:
        scn = int(answer.headers["x-databus-resume"].split(",")[0])
        answer = ask(relay, scn, PERSON.source)
    assert (answer.status, scn < STOP - 4) == (404, True)
