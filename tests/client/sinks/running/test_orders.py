"""The orders of consumption on a recorder (T41 to T44)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from databus.client.dispatcher.data_window import DataWindow
from databus.client.sinks.contract import Change
from databus.client.sinks.running.feed import Feed, SinkState
from databus.schemas.errors import SettingsError
from databus.testing import Change as Described, change, make_window
from databus.testing.recorder import Recorder, Written
from tests import PATIENCE_S
from tests.client.shop import wait_until
from tests.client.sinks.changes import ListedStream, plan_of, window


def run(recorder: Recorder, windows: Sequence[DataWindow], **settings: object) -> Feed:
    """Run a sink over all windows, to the end."""
    stream = ListedStream(*windows)
    feed = Feed(plan_of(recorder, until=windows[-1].scn, **settings), stream)
    feed.start()
    try:
        assert feed.wait(PATIENCE_S), feed.status
        assert feed.state is SinkState.DONE, feed.status
        assert stream.position is not None
        assert stream.position.scn == windows[-1].scn
    finally:
        feed.stop()
    return feed


def scns(written: Written) -> list[int]:
    return [one.scn for one in written.changes]


def test_transactions_come_one_at_a_time_in_commit_order() -> None:
    recorder = Recorder(sleep_s=0.005)
    windows = [window(scn, ("a", scn), ("b", scn)) for scn in range(1, 21)]
    run(recorder, windows)
    assert [scns(one) for one in recorder.writes] == [[scn, scn] for scn in range(1, 21)]
    ends = [one.ended_s for one in recorder.writes]
    assert all(one.began_s >= end for one, end in zip(recorder.writes[1:], ends, strict=False))
    assert len({one.thread for one in recorder.writes}) == 1


def test_single_tables_overlap_and_a_transaction_of_several_is_alone() -> None:
    recorder = Recorder(sleep_s=0.1)
    windows = [
        window(1, ("t1", 1)),
        window(2, ("t2", 1)),
        window(3, ("t1", 2), ("t2", 2)),
        window(4, ("t1", 3)),
        window(5, ("t2", 3)),
    ]
    run(recorder, windows, order="single-table", lanes=2)
    a, b, c, d, e = sorted(recorder.writes, key=lambda one: one.changes[0].scn)
    assert a.overlaps(b)
    assert d.overlaps(e)
    assert not any(c.overlaps(one) for one in (a, b, d, e))
    assert max(a.ended_s, b.ended_s) <= c.began_s
    assert c.ended_s <= min(d.began_s, e.began_s)
    # Three times 0.1 s, and not five times.
    assert 0.3 <= max(d.ended_s, e.ended_s) - min(a.began_s, b.began_s) < 0.45


def test_four_tables_have_four_lanes_and_each_keeps_its_order() -> None:
    recorder = Recorder(sleep_s=0.01)
    rng = random.Random(1)
    windows = [
        window(scn, *((rng.choice("abcd"), scn * 10 + at) for at in range(4)))
        for scn in range(1, 31)
    ]
    run(recorder, windows, order="table", lanes=4)
    for table in "abcd":
        keys = [one.key["id"] for one in recorder.changes if one.source == f"shop.{table}"]
        assert keys == sorted(keys)
        assert len(keys) > 10
    threads = {one.thread for one in recorder.writes}
    assert len(threads) == 4
    overlapping = {
        frozenset((one.thread, other.thread))
        for one in recorder.writes
        for other in recorder.writes
        if one.thread != other.thread and one.overlaps(other)
    }
    assert len(overlapping) == 6  # each with each other


def versions_of(changes: Sequence[Change]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for one in changes:
        row = one.after if one.after is not None else one.before
        assert row is not None
        found.setdefault(one.key["id"], []).append(row["v"])
    return found


def test_a_hundred_thousand_rows_in_eight_lanes_keep_the_order_of_each_key() -> None:
    recorder, rng = Recorder(), random.Random(2)
    rows: dict[int, int] = {}
    windows, version = [], 0
    for scn in range(1, 1001):
        described: list[Described] = []
        for _ in range(100):
            key, version = rng.randrange(5000), version + 1
            row = {"id": key, "v": version}
            before = {"id": key, "v": rows[key]} if key in rows else None
            described.append(change("shop.t", row, "update" if before else "insert", before=before))
            rows[key] = version
        windows.append(make_window(*described, scn=scn))
    run(recorder, windows, order="row", lanes=8, flush={"rows": 500})
    assert len(recorder.changes) == 100_000
    assert {one.thread for one in recorder.writes} == {
        f"databus-sink-test-{lane}" for lane in range(8)
    }
    for versions in versions_of(recorder.changes).values():
        assert versions == sorted(versions)
    assert {row["id"]: row["v"] for row in recorder.rows("shop.t")} == rows


@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_a_key_that_changes_and_is_changed_again_ends_right(lanes: int) -> None:
    for new in range(2, 12):
        recorder = Recorder(sleep_s=0.001)
        old, moved = {"id": 1, "v": 1}, {"id": new, "v": 1}
        windows = [
            make_window(change("shop.t", old), scn=1),
            make_window(change("shop.t", moved, "update", before=old), scn=2),
            make_window(change("shop.t", {"id": new, "v": 2}, "update", before=moved), scn=3),
        ]
        run(recorder, windows, order="row", lanes=lanes)
        assert recorder.rows("shop.t") == [{"id": new, "v": 2}]


def test_order_row_stops_for_a_target_with_a_second_unique_key() -> None:
    recorder = Recorder(unique={"shop.ord": [["no"]]})
    stream = ListedStream(window(1, ("ord", 1), no="a"))
    feed = Feed(plan_of(recorder, order="row", lanes=2), stream)
    feed.start()
    try:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        assert isinstance(feed.error, SettingsError)
        assert "shop.ord has another unique key (no)" in str(feed.error)
        assert recorder.changes == []
    finally:
        feed.stop()


def test_compaction_is_refused_for_a_target_with_a_second_unique_key() -> None:
    recorder = Recorder(unique={"shop.ord": [["no"]]})
    stream = ListedStream(window(1, ("ord", 1), no="a"))
    feed = Feed(plan_of(recorder, flush={"compact": True}), stream)
    feed.start()
    try:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        assert "set compact = false" in str(feed.error)
    finally:
        feed.stop()


def test_a_flush_with_compaction_has_one_change_of_each_key_and_reaches_as_far() -> None:
    recorder = Recorder(keeps_position=True)
    rows = [{"id": key % 3, "v": key} for key in range(30)]
    windows = [
        make_window(change("shop.t", row, "update" if at > 2 else "insert"), scn=at + 1)
        for at, row in enumerate(rows)
    ]
    run(recorder, windows, flush={"rows": 10, "compact": True})
    assert [len(one.changes) for one in recorder.writes] == [3, 3, 3]
    assert recorder.rows("shop.t") == rows[-3:]
    assert recorder.position is not None
    assert recorder.position.scn == 30


def test_with_writesets_rows_that_swap_a_unique_value_end_as_in_the_source() -> None:
    rng = random.Random(3)
    rows = {key: f"n{key}" for key in range(20)}
    windows = [make_window(*(change("shop.ord", row(*one)) for one in rows.items()), scn=1)]
    for scn in range(2, 402):
        one, other = rng.sample(range(20), 2)
        described = []
        for key, no in ((one, "free"), (other, rows[one]), (one, rows[other])):
            before = row(key, rows[key])
            described.append(change("shop.ord", row(key, no), "update", before=before))
            rows[key] = no
        # The second update took the old value of the first row.
        windows.append(make_window(*described, scn=scn))
    recorder = Recorder(unique={"shop.ord": [["no"]]})
    # The target refuses a duplicate, and one refusal stops the sink.
    run(recorder, windows, order="row", lanes=4, unique="writeset", flush={"rows": 7})
    assert {held["id"]: held["no"] for held in recorder.rows("shop.ord")} == rows
    assert len({one.thread for one in recorder.writes}) > 1


def row(key: int, no: str) -> dict[str, object]:
    return {"id": key, "no": no}
