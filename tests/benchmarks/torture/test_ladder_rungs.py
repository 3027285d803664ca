"""The ladder's rungs, and what each of them serves."""

from __future__ import annotations

import pytest

from benchmarks.ladder.rungs import AWAY, Held, Rung, misplaced, served

HELD = Held(ring=300, log=200, archive=100)


def test_each_window_is_served_by_the_newest_rung_that_has_it() -> None:
    scns = (50, 100, 101, 200, 201, 300, 301, 302)
    counts = served(scns, HELD)
    assert counts == {Rung.SOURCE: 2, Rung.ARCHIVE: 2, Rung.LOG: 2, Rung.RING: 2}


def test_what_the_relay_says_that_it_holds_is_read_from_its_api() -> None:
    archive = {"minScn": "100"}
    view = {"ring": {"prevScn": "300"}, "relayLog": {"prevScn": "200", "archive": archive}}
    assert Held.of(view) == HELD


@pytest.mark.parametrize(
    ("rung", "scn"), [(Rung.SOURCE, 100), (Rung.ARCHIVE, 200), (Rung.LOG, 300), (Rung.RING, 99)]
)
def test_a_consumer_that_another_rung_would_serve_is_a_problem(rung: Rung, scn: int) -> None:
    fitting = {Rung.SOURCE: 50, Rung.ARCHIVE: 150, Rung.LOG: 250, Rung.RING: 350, Rung.BOOTSTRAP: 1}
    assert misplaced(fitting, HELD) == []
    (problem,) = misplaced(fitting | {rung: scn}, HELD)
    assert problem.startswith(f"the next window of the consumer {rung} is on ")


def test_consumers_are_away_for_longer_from_rung_to_rung() -> None:
    assert list(AWAY.values()) == sorted(AWAY.values())
