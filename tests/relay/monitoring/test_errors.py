from __future__ import annotations

from databus.relay.monitoring.errors import MOST_KEPT, ErrorLog
from databus.schemas.errors import ScnNotFoundError, SourceStoppedError


def test_a_problem_has_its_position() -> None:
    log = ErrorLog()
    log.note(1.0, "shop", SourceStoppedError("shop", 7, "a row does not fit", "bin.01:99"))
    (noted,) = log.newest_first()
    assert (noted.scn, noted.place, noted.count, noted.at) == (7, "bin.01:99", 1, 1.0)
    assert "a row does not fit" in noted.text


def test_the_same_again_is_counted_and_comes_first() -> None:
    log = ErrorLog()
    log.note(1.0, "shop", ScnNotFoundError(3, 9), client="ann")
    log.note(2.0, "shop", ValueError("other"))
    log.note(3.0, "shop", ScnNotFoundError(3, 9), client="ann")
    first, second = log.newest_first()
    assert (first.count, first.at, first.client, first.scn) == (2, 3.0, "ann", 3)
    assert (second.text, second.scn) == ("other", None)


def test_only_so_many_are_kept() -> None:
    log = ErrorLog()
    for number in range(MOST_KEPT + 50):
        log.note_text(float(number), "shop", f"problem {number}" + "x" * 9000)
    kept = log.newest_first()
    assert len(kept) == MOST_KEPT
    assert kept[0].at == MOST_KEPT + 49
    assert len(kept[0].text) == 2000
