"""How the stamps of three processes become latencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.latency import (
    Run,
    Stamps,
    breakdown_of,
    figures_of,
    join,
    work_between,
    work_of,
)
from benchmarks.shared import traced_relay
from databus.relay.ring.ring import Ring
from databus.relay.serving.reading.stream import StreamJob
from tests.relay.ring.model import batch_of, make_window

MS = 1_000_000
COMMITS = [(0, 1 * MS), (10 * MS, 11 * MS)]
CALLS = [(1, 501, 3 * MS, 4 * MS), (2, 502, 13 * MS, 16 * MS)]
TRACE = [(501, 2 * MS, 2 * MS), (502, 12 * MS, 13 * MS)]
RUN = Run("sqlite", 5)


def test_a_latency_is_from_commit_returned_to_callback() -> None:
    values = {figure.name: figure.value for figure in figures_of(RUN, join(COMMITS, CALLS, []))}
    name = "sqlite, 500 transactions/s: commit to callback"
    assert values[f"{name}, p50"] == 3.0
    assert values[f"{name}, max"] == 5.0
    assert values[f"{name}, counted from INSERT sent, p99"] == 6.0


def test_the_targets_are_those_promised() -> None:
    targets = [str(figure.target) for figure in figures_of(RUN, join(COMMITS, CALLS, []))]
    assert targets[:3] == ["≤ 0.6", "≤ 3", "None"]


def test_cpu_time_is_per_transaction_of_the_time_between_and_a_share_of_a_core() -> None:
    commits = [(at, at + MS) for at in range(0, 4000 * MS, 2 * MS)]
    work = work_between((1000 * MS, 5.0, 1.0), (3000 * MS, 5.3, 1.2), commits)
    assert work.transactions == 1000
    shown = {figure.name.split(": ")[1]: figure for figure in work_of(RUN, work)}
    assert [round(figure.value) for figure in shown.values()] == [500, 300, 200, 500, 25]
    assert shown["share of a core, both"].is_met is False


def test_a_callback_that_never_came_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="2 transactions committed, 1 callbacks"):
        join(COMMITS, CALLS[:1], [])


def test_callbacks_in_another_order_are_no_measurement() -> None:
    with pytest.raises(ValueError, match="not the same"):
        join(COMMITS, CALLS[::-1], [])


def test_sessions_may_be_called_back_in_any_order_but_each_in_its_own() -> None:
    commits = [*COMMITS, (20 * MS, 21 * MS)]
    calls = [(2, 501, 12 * MS, 13 * MS), (1, 502, 14 * MS, 15 * MS), (3, 503, 22 * MS, 23 * MS)]
    found = [stamps.called - stamps.committed for stamps in join(commits, calls, [], sessions=2)]
    assert found == [14 * MS, 2 * MS, 2 * MS]
    with pytest.raises(ValueError, match="not the same"):
        join(commits, [calls[2], *calls[:2]], [], sessions=2)


def test_a_rate_that_is_too_high_for_a_session_has_several() -> None:
    assert [Run("mysql", 5, rate).sessions for rate in (500, 1000, 5000)] == [1, 1, 5]
    assert Run("sqlite", 5, 5000).sessions == 1


def test_the_steps_of_the_breakdown_add_up_to_the_latency() -> None:
    stamps = join(COMMITS, CALLS, TRACE)
    assert stamps[1] == Stamps(10 * MS, 11 * MS, 13 * MS, 16 * MS, (12 * MS, 13 * MS))
    assert stamps[1].steps == [1 * MS, 1 * MS, 0, 3 * MS]
    assert sum(stamps[1].steps) == stamps[1].called - stamps[1].committed


def test_the_breakdown_has_a_median_and_a_p99_of_each_step() -> None:
    figures = breakdown_of(RUN, join(COMMITS, CALLS, TRACE))
    assert len(figures) == 8
    assert figures[-1].name == "sqlite, where it goes: decoded → callback, p99"
    assert figures[-1].value == 3.0


def test_the_warm_up_is_not_counted() -> None:
    run = Run("sqlite", 5, rate=100)
    assert (run.transactions, run.warm_up) == (800, 300)


def test_a_traced_relay_notes_windows_however_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((Ring, "append"), (Ring, "append_batch"), (StreamJob, "step")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # as it was, afterwards
    trace = traced_relay.Trace()
    traced_relay.wrap(trace)
    windows = [make_window(scn) for scn in (1, 2, 3, 4)]
    ring = Ring.open(tmp_path / "a.ring", "a", 1 << 16)
    ring.append(windows[:2])
    ring.append_batch(batch_of(windows[2:]))
    ring.close()
    assert [scn for scn, _ in trace.published] == [1, 2, 3, 4]
