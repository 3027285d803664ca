"""What comes next in a bootstrap, by the checkpoint alone: against the two orders written out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.machines.bootstrap_steps import (
    CAUGHT_UP_KEY,
    CLASSIC,
    Step,
    after_page,
    begin,
    check_resumable,
    has_snapshots_left,
    settle,
    since_scn,
    sources_asked,
    step_of,
)
from databus.schemas.checkpoint import LINEAR, ORDER_KEY, Checkpoint, ConsumptionMode
from databus.schemas.errors import CheckpointError

SOURCES = ("a", "b", "c", "d")
SNAPSHOT_PAGE = Checkpoint(ConsumptionMode.SNAPSHOT)
# A step; the sources it is about; what its pages come after, and what they lead to.
Asked = tuple[Any, ...]


def linear(sources: Sequence[str], since: int, start: int, targets: Sequence[int]) -> list[Asked]:
    """Return all that is asked for in the linear order."""
    read = [(Step.SNAPSHOT, (source,), max(since, start)) for source in sources]
    log = [(Step.CATCH_UP, tuple(sources), start)] if targets[0] > start else []
    return [(Step.START_SCN,), *read, (Step.TARGET_SCN, sources[-1]), *log]


def classic(sources: Sequence[str], since: int, start: int, targets: Sequence[int]) -> list[Asked]:
    """Return all that is asked for in the classic order."""
    asked: list[Asked] = [(Step.START_SCN,)]
    for index, (source, target) in enumerate(zip(sources, targets, strict=False)):
        asked += [(Step.SNAPSHOT, (source,), max(since, start)), (Step.TARGET_SCN, source)]
        before = targets[index - 1]
        begins = [(one, before) for one in sources[:index]] + [(source, start)]
        asked += [(Step.CATCH_UP, (one,), scn) for one, scn in begins if scn < target]
    return asked


def walk(
    order: str, sources: Sequence[str], since: int, start: int, targets: Sequence[int]
) -> Iterator[tuple[Asked, Checkpoint]]:
    """Yield what is asked for, and the checkpoint; each step begins with what a file has."""
    left = list(targets)
    checkpoint = begin(Checkpoint.at(since), order)
    while True:
        check_resumable(checkpoint, sources)
        checkpoint = settle(Checkpoint.from_json(checkpoint.to_json()), sources)
        match step := step_of(checkpoint):
            case Step.ONLINE:
                yield (step,), checkpoint
                return
            case Step.START_SCN:
                yield (step,), checkpoint
                checkpoint = checkpoint.with_start_scn(start)
            case Step.TARGET_SCN:
                yield (step, checkpoint.snapshot_source), checkpoint
                checkpoint = checkpoint.with_target_scn(left.pop(0))
            case _:
                asked = tuple(sources_asked(checkpoint, sources))
                yield (step, asked, since_scn(checkpoint)), checkpoint
                checkpoint = after_page(checkpoint, SNAPSHOT_PAGE, True, -1)


@given(
    st.sampled_from([linear, classic]),
    st.integers(1, len(SOURCES)),
    st.integers(0, 9),
    st.lists(st.integers(0, 2), min_size=1 + len(SOURCES), max_size=1 + len(SOURCES)),
)
def test_each_order_asks_for_what_it_says_and_ends_at_its_last_target(
    model: Any, count: int, since: int, steps: list[int]
) -> None:
    sources = SOURCES[:count]
    start, *targets = accumulate(steps, initial=since)
    targets = targets[: count if model is classic else 1]
    walked = list(walk(model.__name__, sources, since, start, targets))
    assert [asked for asked, _ in walked[:-1]] == model(sources, since, start, targets)
    last = walked[-1][1]
    assert last.is_caught_up
    assert last.online_at(targets[-1]) == Checkpoint.at(targets[-1])
    # While there are rows to be read by their ids, and no longer.
    held = [has_snapshots_left(checkpoint, sources) for _, checkpoint in walked]
    until = max(n for n, (asked, _) in enumerate(walked) if asked[0] is Step.SNAPSHOT)
    assert held == [0 < n <= until for n in range(len(walked))]


def test_the_classic_order_is_over_with_the_last_of_very_many_sources() -> None:
    sources = [f"s{number}" for number in range(400)]
    checkpoint = begin(Checkpoint.at(3), CLASSIC).with_start_scn(5)
    read = checkpoint.start_snapshot(sources[-1], 399).end_snapshot().with_target_scn(9)
    text = read.with_extra(**{CAUGHT_UP_KEY: 8}).start_catch_up(sources[398], 398, 9).to_json()
    last = settle(Checkpoint.from_json(text), sources)
    assert (step_of(last), sources_asked(last, sources)) == (Step.CATCH_UP, ("s399",))
    assert since_scn(last) == 5
    done = after_page(last, SNAPSHOT_PAGE, True, -1)
    assert step_of(settle(Checkpoint.from_json(done.to_json()), sources)) is Step.ONLINE


@pytest.mark.parametrize("index", [0, 1])
def test_a_linear_catch_up_is_over_at_its_target_whichever_source_it_is_called_by(
    index: int,
) -> None:
    read = begin(Checkpoint.at(3), LINEAR).with_start_scn(5).start_snapshot("b", 1).end_snapshot()
    log = read.with_target_scn(9).start_catch_up(SOURCES[index], index)
    assert sources_asked(log, SOURCES[:2]) == SOURCES[:2]
    done = after_page(log, SNAPSHOT_PAGE, True, -1)
    assert settle(done, SOURCES[:2]) is done
    assert step_of(done) is Step.ONLINE


def of_classic(**changes: Any) -> Checkpoint:
    """Return a checkpoint in the catch-up of the second of two sources, changed."""
    begun = begin(Checkpoint.at(3), CLASSIC).with_start_scn(5).start_snapshot("b", 1)
    read = begun.end_snapshot().with_target_scn(9).with_extra(**{CAUGHT_UP_KEY: 8})
    return replace(read.start_catch_up("b", 1), **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"extra": {}}, "bootstrap_order is None"),
        ({"extra": {ORDER_KEY: "novel"}}, "bootstrap_order is 'novel'"),
        ({"extra": {ORDER_KEY: CLASSIC}}, "no bootstrap_caught_up_scn"),
        ({"extra": {ORDER_KEY: CLASSIC, CAUGHT_UP_KEY: "8"}}, "no bootstrap_caught_up_scn"),
        ({"bootstrap_start_scn": -1}, "without its start and target"),
        ({"bootstrap_target_scn": -1}, "without its start and target"),
        ({"snapshot_source": "a"}, "'a' is not source 1 of a, b"),
        ({"snapshot_source_index": 2}, "'b' is not source 2 of a, b"),
        ({"snapshot_source_index": -1}, "'b' is not source -1 of a, b"),
        ({"catchup_source": ""}, "'' is not source 1 of a, b"),
        ({"catchup_source_index": 0}, "'b' is not source 0 of a, b"),
        ({"mode": ConsumptionMode.SNAPSHOT, "snapshot_source": "c"}, "'c' is not source 1"),
    ],
)
def test_a_checkpoint_that_cannot_be_gone_on_with_is_refused_with_why(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        check_resumable(of_classic(**changes), SOURCES[:2])


def test_what_a_step_does_not_need_is_not_asked_of_its_checkpoint() -> None:
    check_resumable(of_classic(), SOURCES[:2])
    begun = begin(Checkpoint.at(3), CLASSIC)
    first = begun.with_start_scn(5).start_snapshot("a", 0)
    of_linear = of_classic(extra={ORDER_KEY: LINEAR})
    in_snapshot = replace(of_classic(mode=ConsumptionMode.SNAPSHOT), bootstrap_target_scn=-1)
    for checkpoint in (begun, begun.with_start_scn(5), first, of_linear, in_snapshot):
        check_resumable(checkpoint, SOURCES[:2])
    check_resumable(of_classic(bootstrap_start_scn=0, bootstrap_target_scn=0), SOURCES[:2])


def test_a_page_leads_on_as_it_says_or_to_the_end_of_its_phase() -> None:
    log = of_classic()
    answered = Checkpoint(ConsumptionMode.CATCHUP, 7, 2)
    within = after_page(log, answered, False, 70)
    assert within == replace(log, window_scn=7, window_offset=2, ts_ns=70)
    assert after_page(within, answered, True, 80) == replace(log, window_scn=9, ts_ns=80)
    rows = begin(Checkpoint.at(3), LINEAR).with_start_scn(5).start_snapshot("a", 0)
    for source in ("", "a"):
        at_7 = Checkpoint(ConsumptionMode.SNAPSHOT, snapshot_source=source, snapshot_offset=7)
        assert after_page(rows, at_7, False, 70) == replace(rows, snapshot_offset=7)
        assert after_page(rows, at_7, True, 70) == replace(rows, snapshot_offset=-1)
    for answered, words in (
        (replace(SNAPSHOT_PAGE, snapshot_source="b", snapshot_offset=7), "of b, not of a"),
        (SNAPSHOT_PAGE, "row -1 after row 0"),
    ):
        with pytest.raises(CheckpointError, match=words):
            after_page(rows, answered, False, 70)
