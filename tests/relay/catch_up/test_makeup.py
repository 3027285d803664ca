"""A place inside a window is valid only where the window has the same events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from databus.conf.named_places import ScnPlace
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.stream_reader import walk
from tests.relay.fakes import ORDERS, PERSON, Answer, ServedRelay, insert, transaction

BOTH = (PERSON.source, ORDERS.source)
RING_BYTES = 64 << 10
LARGE = 5  # the SCN of a window larger than an answer
ROWS = 30
LAST = 300
Place = tuple[int, int]


@contextmanager
def relay_of(
    folder: Path, sources: Sequence[str], last: int = LAST, **changes: Any
) -> Iterator[ServedRelay]:
    """Yield a relay of these sources that has read their log up to a window."""
    shop = {"name": "shop", "uri": "fake:", "sources": [*sources], "ring_bytes": RING_BYTES}
    relay = ServedRelay(folder, is_frozen=True, is_reread=True, physical_sources=[shop | changes])
    try:
        tables = [table for table in (PERSON, ORDERS) if table.source in sources]
        for scn in range(1, last + 1):
            rows = ROWS if scn == LARGE else 1
            size = 800 if scn == LARGE else 300
            made = [insert(n, "x" * size, table) for n in range(rows) for table in tables]
            relay.source().put(transaction(scn, *made))
        relay.source().answers.set()
        relay.wait_for_scn(last)
        yield relay
    finally:
        relay.close()


def at_place(place: Place) -> str:
    """Return the checkpoint of a place."""
    return replace(Checkpoint.at(place[0]), window_offset=place[1]).to_json()


def ask(relay: ServedRelay, place: Place, **parameters: Any) -> Answer:
    """Ask for what comes after a place, and wait a while for it."""
    asked = {"checkPoint": at_place(place), "wait": 5000, "size": 8000, "sources": PERSON.source}
    return relay.stream(**(asked | parameters))


def place_of(answer: Answer) -> Place:
    """Return the place at which to go on."""
    assert answer.status == 200, answer.headers["x-dbus-error-cause-message"]
    scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
    return scn, offset


def inside(relay: ServedRelay) -> tuple[Place, list[int]]:
    """Return a place inside the large window, and the keys of the rows before it."""
    answer = ask(relay, (LARGE - 1, -1))
    assert place_of(answer)[1] > 0
    return place_of(answer), keys_of(answer)


def keys_of(answer: Answer) -> list[int]:
    """Return the keys of the rows of the large window."""
    return [int(e.key) for e in walk(answer.body) if not e.is_control and e.scn == LARGE]


def rest(relay: ServedRelay, place: Place) -> list[int]:
    """Return the keys of the rows of the large window after a place."""
    found: list[int] = []
    while place[0] <= LARGE and place != (LARGE, -1):
        answer = ask(relay, place)
        place = place_of(answer)
        found += keys_of(answer)
    return found


def refuses(answer: Answer) -> bool:
    """Say whether the place is not valid any more."""
    return answer.status == 400 and b"read it from its beginning" in answer.body


def test_a_place_of_before_the_sources_changed_is_refused_where_a_catch_up_would_count_others(
    tmp_path: Path,
) -> None:
    with relay_of(tmp_path, BOTH, LARGE + 5) as relay:
        place, before = inside(relay)
        assert before
    with relay_of(tmp_path, BOTH[:1]) as relay:
        assert relay.relay.physical_sources["shop"].reader.min_scn > LARGE
        assert refuses(ask(relay, place))
        assert rest(relay, (LARGE - 1, -1)) == list(range(ROWS))


def test_a_place_that_a_catch_up_told_is_refused_by_one_of_other_sources_and_by_the_ring(
    tmp_path: Path,
) -> None:
    with relay_of(tmp_path, BOTH[:1]):
        pass
    with relay_of(tmp_path, BOTH) as relay:
        place, before = inside(relay)
        assert [*before, *rest(relay, place)] == list(range(ROWS))
    with relay_of(tmp_path, BOTH) as relay:  # the same sources, and another catch-up
        assert [*before, *rest(relay, place)] == list(range(ROWS))
    with relay_of(tmp_path, BOTH[:1]) as relay:
        assert refuses(ask(relay, place))
        relay.relay.control.restart(relay.relay.physical_sources["shop"], ScnPlace(LARGE - 2))
        relay.wait_for_scn(LAST)
        relay.relay.physical_sources["shop"].reader.follow()
        assert refuses(ask(relay, place))


def test_without_a_change_a_reader_goes_on_inside_a_window_that_the_ring_has_evicted(
    tmp_path: Path,
) -> None:
    for _ in range(2):  # what a new ring was written with is known from the second start on
        with relay_of(tmp_path, BOTH, 1):
            pass
    with relay_of(tmp_path, BOTH, LARGE) as relay:
        place, before = inside(relay)
        more = [transaction(n, insert(n, "x" * 300)) for n in range(LARGE + 1, LAST)]
        relay.put(*more)
        assert relay.relay.physical_sources["shop"].reader.min_scn > LARGE
        assert [*before, *rest(relay, place)] == list(range(ROWS))


def test_a_measurement_from_such_a_place_counts_the_rest_of_the_window(tmp_path: Path) -> None:
    with relay_of(tmp_path, BOTH[:1]):
        pass
    with relay_of(tmp_path, BOTH) as relay:
        place, before = inside(relay)
        answer = relay.get(
            "/measure", sources=PERSON.source, checkPoint=at_place(place), untilScn=LARGE
        )
        found = json.loads(answer.body)
        assert (found["scn"], found["rows"]) == (LARGE, ROWS - len(before))


def test_several_sources_in_one_answer_keep_a_place_inside_a_window_as_it_was_told(
    tmp_path: Path,
) -> None:
    with relay_of(tmp_path, BOTH[:1]):
        pass
    with relay_of(tmp_path, BOTH) as relay:
        place, _ = inside(relay)
        many = json.dumps({"shop": at_place(place)})
        answer = relay.get(
            "/stream", sources=PERSON.source, size=100, checkPointMult=many, wait=5000, maxev=2
        )
        assert (answer.status, answer.body) == (200, b"")
        assert f"{place[0]},{place[1]}" in answer.headers["x-databus-resume"]
