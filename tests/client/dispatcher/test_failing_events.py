"""What becomes of an event that fails each time."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from databus.client.consumer import Consumer, DataEvent, OnFailure, Result
from databus.client.dead_letters import DeadLetterFile
from databus.client.dispatcher.callbacks import Dispatch
from databus.client.puller.buffer_items import ReadWindow
from databus.schemas.errors import ConsumerError
from tests.client.shop import FakeClock, change, customer, order, read

WINDOW = (order(7, 1), order(7, 2), customer(7, 5), order(7, 3))


class Choosy(Consumer):
    """Takes all rows but those with some keys; remembers the windows that it took."""

    def __init__(self, *refused: int) -> None:
        self.refused = refused
        self.windows: list[list[object]] = []
        self._rows: list[object] = []

    def on_start_data_event_sequence(self, scn: int) -> None:
        self._rows = []

    def on_data_event(self, event: DataEvent) -> Result | None:
        if event.wire_key in self.refused:
            raise ValueError(f"no {event.wire_key}")
        self._rows.append(event.wire_key)
        return None

    def on_end_data_event_sequence(self, scn: int) -> None:
        self.windows.append(self._rows)


class ChoosyInRuns(Choosy):
    """Takes the rows of a run together."""

    def on_data_events(self, events: Sequence[DataEvent]) -> None:
        for event in events:
            self.on_data_event(event)


def deliver(dispatch: Dispatch, window: ReadWindow) -> ConsumerError | None:
    """Deliver a window as the dispatcher does, until it is taken or the registration stops."""
    for _ in range(100):
        failure = dispatch.deliver(window).failure
        if failure is None:
            return None
        dispatch.roll_back(window.window.scn - 1)
        if (error := dispatch.judge(failure)) is not None:
            return error
    raise AssertionError("it is tried for ever")


def make_dispatch(consumer: Consumer, on_failure: OnFailure, retries: int = 1) -> Dispatch:
    return Dispatch([consumer], 1.0, retries, FakeClock(), on_failure)


@pytest.mark.parametrize("kind", [Choosy, ChoosyInRuns])
def test_a_failing_event_is_kept_elsewhere_and_the_rest_of_its_window_is_delivered(
    kind: type[Choosy],
) -> None:
    consumer, kept = kind(2), []
    dispatch = make_dispatch(consumer, lambda event, error: kept.append((event.row, str(error))))
    assert deliver(dispatch, read(7, *WINDOW)) is None
    assert consumer.windows == [[1, 5, 3]]
    ((row, problem),) = kept
    assert row == {"id": 2, "item": "tea"}
    assert "ValueError('no 2')" in problem
    assert "(2 tries)" in problem
    assert dispatch.failing.count == 1
    assert deliver(dispatch, read(8, order(8, 4))) is None
    assert consumer.windows[1:] == [[4]], "the next window is whole"


@pytest.mark.parametrize("kind", [Choosy, ChoosyInRuns])
def test_several_failing_events_of_a_window_are_found_one_after_the_other(
    kind: type[Choosy],
) -> None:
    consumer, kept = kind(1, 5, 3), []
    dispatch = make_dispatch(consumer, lambda event, _: kept.append(event.wire_key), retries=0)
    assert deliver(dispatch, read(7, *WINDOW)) is None
    assert (consumer.windows, kept) == ([[2]], [1, 5, 3])


def test_a_window_of_which_nothing_is_left_is_consumed() -> None:
    consumer = Choosy(1)
    assert deliver(make_dispatch(consumer, "skip"), read(7, order(7, 1))) is None
    assert consumer.windows == []


def test_skip_is_logged_with_the_event(caplog: pytest.LogCaptureFixture) -> None:
    assert deliver(make_dispatch(Choosy(2), "skip"), read(7, *WINDOW)) is None
    (record,) = caplog.records
    assert "insert shop.orders key=2 scn=7 #1> is skipped" in record.getMessage()


def test_without_a_wish_the_registration_stops() -> None:
    error = deliver(make_dispatch(Choosy(2), "stop"), read(7, *WINDOW))
    assert error is not None
    assert error.scn == 7


def test_what_the_application_says_is_fatal_is_never_set_aside() -> None:
    class Strict(Consumer):
        def on_data_event(self, event: DataEvent) -> Result:
            return Result.ERROR_FATAL

    assert deliver(make_dispatch(Strict(), "skip"), read(7, *WINDOW)) is not None


def test_a_failure_that_is_no_events_stops_the_registration() -> None:
    class Broken(Consumer):
        def on_end_data_event_sequence(self, scn: int) -> None:
            raise OSError("the target is away")

    error = deliver(make_dispatch(Broken(), "skip"), read(7, *WINDOW))
    assert "the target is away" in str(error)


def test_a_dead_letter_that_cannot_be_kept_stops_the_registration(tmp_path: Path) -> None:
    letters = DeadLetterFile(tmp_path / "missing" / "letters.jsonl")
    error = deliver(make_dispatch(Choosy(2), letters), read(7, *WINDOW))
    assert error is not None
    assert "no 2" in str(error)
    assert "FileNotFoundError" in str(error)


def test_a_dead_letter_file_has_the_row_the_error_and_is_private(tmp_path: Path) -> None:
    letters = DeadLetterFile(tmp_path / "letters.jsonl")
    old, new = {"id": 2, "item": "tea"}, {"id": 2, "item": "milk"}
    window = read(7, order(7, 1), change(7, new, before=old), customer(7, 5))
    dispatch = make_dispatch(Choosy(2, 5), letters)
    assert deliver(dispatch, window) is None
    found: list[dict[str, Any]] = [
        json.loads(line) for line in letters.path.read_text("utf-8").splitlines()
    ]
    assert [(one["source"], one["key"], one["scn"], one["index"]) for one in found] == [
        ("shop.orders", {"id": 2}, 7, 1),
        ("shop.customers", {"id": 5}, 7, 2),
    ]
    assert (found[0]["row"], found[0]["before"]) == (new, old)
    assert "no 2" in found[0]["error"]
    assert "Traceback" in found[0]["trace"]
    assert stat.S_IMODE(letters.path.stat().st_mode) == 0o600
