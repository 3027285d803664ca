"""Checkpoints: their JSON, and where each step leads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.schemas.checkpoint import Checkpoint, CheckpointMult, ConsumptionMode
from databus.schemas.errors import CheckpointError, ProtocolError
from databus.schemas.event.control import (
    checkpoint_event,
    checkpoint_of,
    end_of_period,
    error_event,
    scn_regress,
)
from databus.schemas.scn import MAX_SCN

SCNS = st.integers(-1, MAX_SCN)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    start = draw(SCNS)
    window_scn = draw(SCNS)
    return Checkpoint(
        mode=draw(st.sampled_from(ConsumptionMode)),
        window_scn=window_scn,
        window_offset=draw(st.integers(-1, 10)) if window_scn >= 0 else -1,
        prev_scn=draw(SCNS),
        ts_ns=draw(SCNS),
        snapshot_source=draw(st.text(max_size=8)),
        snapshot_offset=draw(SCNS),
        catchup_source=draw(st.text(max_size=8)),
        bootstrap_since_scn=draw(SCNS),
        bootstrap_start_scn=start,
        bootstrap_target_scn=draw(st.just(-1) | st.integers(max(start, 0), MAX_SCN)),
        snapshot_source_index=draw(st.integers(-1, 9)),
        catchup_source_index=draw(st.integers(-1, 9)),
        server_info=draw(st.text(max_size=8)),
        extra=draw(st.dictionaries(st.text(min_size=1, max_size=4), JSON_VALUES, max_size=3)),
    )


@given(checkpoints())
def test_a_checkpoint_comes_back_from_its_json_with_the_keys_nobody_knows(
    checkpoint: Checkpoint,
) -> None:
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


@given(st.dictionaries(st.text(min_size=1, max_size=4), checkpoints(), max_size=3))
def test_checkpoints_of_many_partitions_come_back(by_partition: dict[str, Checkpoint]) -> None:
    text = CheckpointMult(by_partition).to_json()
    assert CheckpointMult.from_json(text).by_partition == by_partition


def test_the_keys_are_those_of_databus() -> None:
    text = """{"consumption_mode": "BOOTSTRAP_CATCHUP", "windowScn": 7, "windowOffset": -1,
        "prevScn": 6, "tsNsecs": 5, "snapshot_source": "a", "catchup_source": "b",
        "snapshot_offset": -1, "bootstrap_since_scn": 1, "bootstrap_start_scn": 2,
        "bootstrap_target_scn": 3, "bootstrap_snapshot_source_index": 0,
        "bootstrap_catchup_source_index": 1, "bootstrap_server_info": "host", "novel": [1]}"""
    checkpoint = Checkpoint.from_json(text)
    assert checkpoint == Checkpoint(
        mode=ConsumptionMode.CATCHUP,
        window_scn=7,
        prev_scn=6,
        ts_ns=5,
        snapshot_source="a",
        catchup_source="b",
        bootstrap_since_scn=1,
        bootstrap_start_scn=2,
        bootstrap_target_scn=3,
        snapshot_source_index=0,
        catchup_source_index=1,
        server_info="host",
        extra={"novel": [1]},
    )
    assert json.loads(checkpoint.to_json()).keys() == json.loads(text).keys() - {"snapshot_offset"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"consumption_mode": "SOMETIMES"}',
        '{"consumption_mode": []}',
        '{"consumption_mode": "ONLINE_CONSUMPTION", "windowScn": "7"}',
        '{"consumption_mode": "ONLINE_CONSUMPTION", "windowScn": 1.5}',
        '{"consumption_mode": "ONLINE_CONSUMPTION", "windowScn": true}',
        '{"consumption_mode": "ONLINE_CONSUMPTION", "windowScn": -2}',
        '{"consumption_mode": "ONLINE_CONSUMPTION", "windowScn": 9223372036854775808}',
        '{"consumption_mode": "ONLINE_CONSUMPTION", "windowScn": -1, "windowOffset": 3}',
        '{"consumption_mode": "INIT", "snapshot_source": 3}',
        '{"consumption_mode": "INIT", "bootstrap_start_scn": 9, "bootstrap_target_scn": 8}',
        "[" * 20_000,
        '{"consumption_mode": "INIT", "x": "' + "y" * 70_000 + '"}',
        b"\xff\xfe{",
    ],
)
def test_a_bad_checkpoint_is_refused(text: str | bytes) -> None:
    with pytest.raises(CheckpointError):
        Checkpoint.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", '{"p": {}}', '{"p": "{}"}', "[" * 20_000])
def test_a_bad_check_point_mult_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        CheckpointMult.from_json(text)


@pytest.mark.parametrize(("over", "is_read"), [(0, True), (1, False)])
def test_a_check_point_mult_may_be_as_long_as_64_checkpoints(over: int, is_read: bool) -> None:
    text = CheckpointMult({"p": Checkpoint.at(5)}).to_json()
    text = text.ljust((64 << 16) + over)
    if is_read:
        assert CheckpointMult.from_json(text).by_partition == {"p": Checkpoint.at(5)}
    else:
        with pytest.raises(CheckpointError, match="too long"):
            CheckpointMult.from_json(text)


def test_flexible_is_online_without_a_place_and_a_time() -> None:
    assert Checkpoint.flexible().is_flexible
    assert Checkpoint.from_json(Checkpoint.flexible().to_json()).is_flexible
    assert not Checkpoint.at(0).is_flexible
    assert not Checkpoint().is_flexible
    with pytest.raises(CheckpointError):
        Checkpoint.at(-1)


def test_what_is_not_known_is_not_written_but_for_the_place() -> None:
    nowhere = {"consumption_mode": "INIT", "windowScn": -1, "windowOffset": -1}
    assert json.loads(Checkpoint().to_json()) == nowhere
    assert Checkpoint() == Checkpoint.from_json(json.dumps(nowhere))
    assert Checkpoint() == Checkpoint.from_json('{"consumption_mode": "INIT"}')


@pytest.mark.parametrize(
    "take",
    [
        Checkpoint.at,
        lambda scn: Checkpoint().start_bootstrap().with_start_scn(scn),
        lambda scn: _snapshot_since(0).end_snapshot().with_target_scn(scn),
    ],
)
def test_an_scn_is_any_from_0_to_the_greatest_and_no_other(
    take: Callable[[int], Checkpoint],
) -> None:
    for scn in (0, 1, MAX_SCN):
        assert Checkpoint.from_json(take(scn).to_json()) == take(scn)
    for scn in (-2, -1, MAX_SCN + 1):
        with pytest.raises(CheckpointError, match=f"scn {scn} is "):
            take(scn)


def _snapshot_since(scn: int) -> Checkpoint:
    return Checkpoint().start_bootstrap().with_start_scn(scn).start_snapshot("a", 0)


@given(SCNS, SCNS)
def test_the_newest_time_known_is_kept_whatever_a_step_knows_of_its_own(
    known_ns: int, told_ns: int
) -> None:
    online = Checkpoint.at(5, known_ns)
    log = replace(CATCHUP, ts_ns=known_ns)
    assert online.after_window(6, told_ns).ts_ns == max(known_ns, told_ns)
    assert log.after_log_rows(6, 1, told_ns).ts_ns == max(known_ns, told_ns)
    for silent in (online.after_window(6), online.after_event(6), log.after_log_rows(6, 1)):
        assert silent.ts_ns == known_ns
    done = log.after_log_rows(9, -1)
    assert done.online_at(9) == Checkpoint.at(9, known_ns)
    assert Checkpoint.at(5).ts_ns == -1


def test_a_bootstrap_comes_after_what_was_consumed_whole() -> None:
    half = Checkpoint.at(5).after_event(8)
    for checkpoint, since_scn in (
        (Checkpoint(), 0),
        (Checkpoint.flexible(), 0),
        (Checkpoint.flexible().after_event(8), 0),
        (Checkpoint.at(0), 0),
        (half, 5),
        (half.after_window(8), 8),
        (Checkpoint(ConsumptionMode.ONLINE, 8, -1, 5), 8),
    ):
        begun = checkpoint.start_bootstrap()
        assert (begun.bootstrap_since_scn, begun.window_scn, begun.prev_scn) == (since_scn, -1, -1)


def test_rows_of_a_snapshot_come_in_the_order_of_their_ids() -> None:
    read = SNAPSHOT.after_snapshot_row(17)
    for row_id in (17, 16, 0, -1):
        with pytest.raises(CheckpointError, match=f"snapshot row {row_id} after row 17"):
            read.after_snapshot_row(row_id)
    with pytest.raises(CheckpointError, match="snapshot row 18 after row -1"):
        read.end_snapshot().after_snapshot_row(18)
    assert read.after_snapshot_row(18).snapshot_offset == 18


@given(st.integers(5, 20), st.integers(-1, 3))
def test_a_catch_up_is_over_behind_all_of_its_target_and_nowhere_else(
    scn: int, offset: int
) -> None:
    log = replace(CATCHUP, window_scn=scn, window_offset=offset)
    assert log.is_caught_up == ((scn, offset) == (9, -1))
    assert not replace(log, mode=ConsumptionMode.ONLINE).is_caught_up


def test_events_and_windows_move_a_checkpoint_on() -> None:
    start = Checkpoint.at(5, ts_ns=50)
    half = start.after_event(8).after_event(8)
    assert (half.window_scn, half.window_offset, half.prev_scn) == (8, 2, 5)
    assert not half.is_whole_window
    whole = half.after_window(8, 80)
    assert whole == Checkpoint.at(8, ts_ns=80)
    assert whole.after_window(9).ts_ns == 80  # a window without a time leaves the newest known


def test_a_flexible_checkpoint_moves_to_the_first_window_it_gets() -> None:
    assert Checkpoint.flexible().after_window(3, 30) == Checkpoint.at(3, ts_ns=30)


def test_a_checkpoint_never_goes_back() -> None:
    steps: tuple[Callable[[], Checkpoint], ...] = (
        lambda: Checkpoint.at(5).after_event(5),
        lambda: Checkpoint.at(5).after_event(4),
        lambda: Checkpoint.at(5).after_window(4),
        lambda: Checkpoint().after_event(4),
    )
    for step in steps:
        with pytest.raises(CheckpointError):
            step()


def test_a_bootstrap_from_start_to_end() -> None:
    asked = Checkpoint.at(5).start_bootstrap("host:1")
    assert (asked.mode, asked.bootstrap_since_scn) == (ConsumptionMode.SNAPSHOT, 5)
    started = asked.with_start_scn(10).start_snapshot("shop.a", 0)
    assert started.snapshot_offset == 0
    read = started.after_snapshot_row(17).end_snapshot()
    assert read.is_snapshot_done
    caught = read.with_target_scn(12).start_catch_up("shop.a", 0)
    assert (caught.mode, caught.window_scn) == (ConsumptionMode.CATCHUP, 10)
    second = caught.after_window(12, 99).start_snapshot("shop.b", 1).end_snapshot()
    done = second.with_target_scn(15).start_catch_up("shop.b", 1).online_at(15)
    assert done == Checkpoint.at(15, ts_ns=99)
    assert "bootstrap" not in done.to_json()


def test_a_bootstrap_keeps_the_keys_nobody_knows() -> None:
    online = Checkpoint(ConsumptionMode.ONLINE, 1, extra={"novel": 1})
    assert online.start_bootstrap().extra == {"novel": 1}


def test_what_a_consumer_adds_about_its_bootstrap_ends_with_it() -> None:
    online = Checkpoint(ConsumptionMode.ONLINE, 1, extra={"novel": 1, "bootstrap_store_id": "old"})
    begun = online.start_bootstrap()
    assert begun.extra == {"novel": 1}
    kept = begun.with_extra(bootstrap_store_id="new")
    assert Checkpoint.from_json(kept.to_json()).extra == {"novel": 1, "bootstrap_store_id": "new"}
    log = kept.with_start_scn(5).start_snapshot("shop.a", 0).end_snapshot().with_target_scn(9)
    assert log.start_catch_up("shop.a", 0).online_at(9).extra == {"novel": 1}


def test_a_bootstrap_begins_anew_after_the_same_scn() -> None:
    begun = Checkpoint.at(3).start_bootstrap().with_start_scn(10).start_snapshot("shop.a", 0)
    log = begun.end_snapshot().with_target_scn(20).start_catch_up("shop.a", 0)
    for checkpoint in (begun, log.after_log_rows(15, -1)):
        again = checkpoint.start_bootstrap()
        assert again == replace(Checkpoint.at(3).start_bootstrap(), seen_scn=10)
        # Rows of the first attempt may still be in the target, however many there were.
        assert again.with_start_scn(15).start_bootstrap().seen_scn == 10
    assert log.online_at(20).start_bootstrap().seen_scn == -1


def test_a_catch_up_goes_by_window_and_rows_of_it() -> None:
    begun = Checkpoint.at(3).start_bootstrap().with_start_scn(10).start_snapshot("shop.a", 0)
    log = begun.end_snapshot().with_target_scn(20).start_catch_up("shop.a", 0)
    within = log.after_log_rows(12, 3, 99)
    assert (within.window_scn, within.window_offset, within.ts_ns) == (12, 3, 99)
    assert within.after_log_rows(12, -1).is_whole_window
    assert log.after_log_rows(20, -1).is_caught_up
    assert not log.after_log_rows(20, 4).is_caught_up
    assert begun.end_snapshot().with_target_scn(20).start_catch_up("a", 0, 15).window_scn == 15
    for scn, offset in ((21, -1), (10, -1), (9, 5), (10, 4)):
        with pytest.raises(CheckpointError):
            log.after_log_rows(scn, offset)
    with pytest.raises(CheckpointError):
        within.after_log_rows(12, 3)
    with pytest.raises(CheckpointError):
        begun.after_log_rows(12, 3)


SNAPSHOT = Checkpoint.at(3).start_bootstrap().with_start_scn(5).start_snapshot("a", 0)
CATCHUP = SNAPSHOT.end_snapshot().with_target_scn(9).start_catch_up("a", 0)


@pytest.mark.parametrize(
    ("step", "modes"),
    [
        (lambda c: replace(c, bootstrap_start_scn=5).start_snapshot("a", 0), "SNAPSHOT CATCHUP"),
        (lambda c: replace(c, snapshot_offset=0).after_snapshot_row(5), "SNAPSHOT"),
        (lambda c: replace(c, snapshot_source="a").end_snapshot(), "SNAPSHOT"),
        (
            lambda c: replace(c, bootstrap_target_scn=9).start_catch_up("a", 0),
            "SNAPSHOT CATCHUP",
        ),
        (lambda c: replace(c, bootstrap_target_scn=9).after_log_rows(8, -1), "CATCHUP"),
    ],
)
def test_each_step_of_a_bootstrap_is_refused_in_any_other_mode(
    step: Callable[[Checkpoint], Checkpoint], modes: str
) -> None:
    for checkpoint in (Checkpoint.at(3), SNAPSHOT, CATCHUP):
        if checkpoint.mode.name in modes.split():
            step(checkpoint)
        else:
            with pytest.raises(CheckpointError, match="in mode"):
                step(checkpoint)


def test_a_checkpoint_says_which_server_holds_its_session() -> None:
    held = SNAPSHOT.held_by("host:1")
    assert (held.server_info, held.snapshot_source) == ("host:1", "a")
    with pytest.raises(FrozenInstanceError):
        held.server_info = "host:2"  # type: ignore[misc]


def test_a_bootstrap_out_of_order_is_refused() -> None:
    asked = Checkpoint.flexible().start_bootstrap()
    started = asked.with_start_scn(10).start_snapshot("shop.a", 0)
    steps: tuple[Callable[[], Checkpoint], ...] = (
        lambda: asked.start_snapshot("shop.a", 0),  # before the start SCN
        lambda: started.with_start_scn(11),  # twice
        lambda: asked.with_start_scn(-2),
        lambda: asked.end_snapshot(),  # that never began
        lambda: started.with_target_scn(12),  # in mid-snapshot
        lambda: started.end_snapshot().with_target_scn(9),  # below the start
        lambda: started.end_snapshot().start_catch_up("shop.a", 0),  # to where?
        lambda: started.after_snapshot_row(4).after_snapshot_row(4),
        lambda: started.after_window(11),
        lambda: Checkpoint.at(1).online_at(1),
        lambda: started.end_snapshot().with_target_scn(12).start_catch_up("a", 0).online_at(13),
    )
    for step in steps:
        with pytest.raises(CheckpointError):
            step()


@given(checkpoints())
def test_control_events_carry_a_checkpoint(checkpoint: Checkpoint) -> None:
    for event in (checkpoint_event(checkpoint), scn_regress(checkpoint)):
        assert checkpoint_of(event) == checkpoint
        assert event.is_control
        assert (event.scn, event.key) == (0, 0)


def test_control_events_say_what_they_are() -> None:
    assert end_of_period(5, 6).is_eop
    assert end_of_period(5, 6).payload is None
    assert checkpoint_event(Checkpoint.flexible()).is_checkpoint
    assert scn_regress(Checkpoint.flexible()).is_scn_regress
    assert error_event(-4, "it broke").is_error
    assert error_event(-49, "it broke").value == b"it broke"


def test_src_ids_beyond_the_error_range_are_no_error_events() -> None:
    for src_id in (-3, -50, 4):
        with pytest.raises(ProtocolError):
            error_event(src_id, "it broke")


def test_an_end_of_period_carries_no_checkpoint() -> None:
    with pytest.raises(ProtocolError, match="carries no checkpoint"):
        checkpoint_of(end_of_period(5, 6))


def test_the_mark_is_the_last_window_with_rows_and_outlives_a_bootstrap() -> None:
    checkpoint = Checkpoint.at(3).after_window(5, 50, has_rows=True).after_window(6, 60)
    assert (checkpoint.mark, checkpoint.window_scn, checkpoint.ts_ns) == ((5, 50), 6, 60)
    assert checkpoint.after_window(7, -1, has_rows=True).mark == (5, 50)  # its time is not known
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint
    begun = checkpoint.start_bootstrap().with_start_scn(10).start_snapshot("a", 0).end_snapshot()
    online = begun.with_target_scn(12).start_catch_up("a", 0).after_log_rows(12, -1).online_at(12)
    assert (online.mark, online.window_scn) == ((5, 50), 12)
    assert online.with_mark(None).mark is None
    assert online.with_mark((9, 90)).mark == (9, 90)


def test_the_end_of_a_window_leaves_every_other_field_as_it_was() -> None:
    values: dict[str, Any] = {
        field.name: f"text {at}" if isinstance(field.default, str) else at
        for at, field in enumerate(fields(Checkpoint))
    }
    before = Checkpoint(**{**values, "mode": ConsumptionMode.ONLINE, "extra": {"key": "value"}})
    changed: dict[str, Any] = {"window_scn": 90, "window_offset": -1, "prev_scn": 90, "ts_ns": 95}
    assert before.after_window(90, 95) == replace(before, **changed)
    mark: dict[str, Any] = {"mark_scn": 90, "mark_ts_ns": 95}
    assert before.after_window(90, 95, has_rows=True) == replace(before, **changed, **mark)
