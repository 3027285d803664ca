"""The compiled caller does what Python's does: the same calls, results and failures."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

import pytest

from databus.client.consumer import DdlEvent, Result, StatementEvent
from databus.client.dispatcher._calls import Caller
from databus.client.dispatcher.calls import Callbacks, FailedError, Failure, PythonCaller
from databus.client.dispatcher.data_window import Group

BUDGET_S = 1e6
DDL = DdlEvent(("shop.orders",), "shop", "ALTER TABLE orders", 7, 9)
DML = StatementEvent(*DDL)
GROUPS: list[Group] = [
    *(("shop.orders", ["a", "b"]), (None, [DDL])),
    *(("shop.customers", ["c"]), (None, [DML])),
]
ANSWERS = (
    *(None, Result.SUCCESS, Result.CHECKPOINT, Result.SKIP_CHECKPOINT),
    *(Result.ERROR, Result.ERROR_FATAL, "done", ValueError("no")),
)


def told(
    kind: type[Any], missing: Sequence[str], failing: str, answer: object, budget_s: float
) -> tuple[list[Any], Result | Failure]:
    """Deliver a window and return the calls, and what came of it."""
    calls: list[Any] = []

    def of(name: str) -> Any:
        def callback(*arguments: object) -> object:
            calls.append((name, *arguments))
            if name != failing:
                return None
            if isinstance(answer, Exception):
                raise answer
            return answer

        return None if name in missing else callback

    caller = kind(budget_s, monotonic)
    try:
        result: Result = caller.deliver(Callbacks(*map(of, Callbacks._fields)), 7, GROUPS)
    except FailedError as failed:
        return calls, failed.failure
    return calls, result


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
@pytest.mark.parametrize("missing", [(), ("on_data_events",), ("on_start_source", "on_checkpoint")])
@pytest.mark.parametrize("failing", Callbacks._fields)
def test_calls_and_results_are_the_same(
    failing: str, missing: tuple[str, ...], answer: object
) -> None:
    found = told(Caller, missing, failing, answer, BUDGET_S)
    assert found == told(PythonCaller, missing, failing, answer, BUDGET_S)
    assert found[0], "something was called"


@pytest.mark.parametrize("kind", [Caller, PythonCaller])
def test_the_systems_clock_finds_a_late_callback(kind: type[Any]) -> None:
    calls, failure = told(kind, ("on_data_events",), "", None, -1.0)  # less than no time
    assert calls == [("on_start_data_event_sequence", 7)]
    assert isinstance(failure, Failure)
    assert "callback_budget_s = -1" in failure.problem


@pytest.mark.parametrize("kind", [Caller, PythonCaller])
def test_the_systems_clock_says_for_how_long_a_callback_runs(kind: type[Any]) -> None:
    caller, found = kind(BUDGET_S, monotonic), []

    def look(_: object) -> None:
        found.append(caller.running())

    began_s = monotonic()
    caller.call_each(look, ["a"])
    caller.call(look, "b")
    caller.end()
    assert [callback for callback, _ in found] == [look, look]
    assert all(0 <= for_s <= monotonic() - began_s for _, for_s in found)
    assert caller.running() is None
