"""What a sink gets of the events of a window."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.dispatcher.data_window import DataWindow
from databus.client.events.row_condition import row_condition
from databus.client.sinks.contract import Change, Position
from databus.client.sinks.rules.changes import TableRule, changes_of, place_last
from databus.client.sinks.rules.masks import make_mask
from databus.relay.sources.masks import MaskKey
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from databus.testing import change, make_window
from databus.testing.recorder import Recorder
from tests.client.sinks.changes import plan_of

SECRET = MaskKey(b"the key of these tests")
FULL = {"id": 1, "v": 1, "s": "tea"}


def passed(window: DataWindow, rule: TableRule | None = None) -> list[Change]:
    return changes_of(window, lambda _source: rule or TableRule(), with_statements=True)


def update(before: dict[str, Any], after: dict[str, Any], rule: TableRule) -> list[Change]:
    return passed(make_window(change("shop.t", after, "update", before=before)), rule)


def images(changes: list[Change]) -> list[tuple[str, Any, Any]]:
    return [(one.op.value, one.before, one.after) for one in changes]


def test_a_change_has_place_key_and_both_rows() -> None:
    before, after = {"id": 7, "v": 1}, {"id": 7, "v": 2}
    described = change("shop.t", after, "update", before=before)
    window = make_window(change("shop.t", {"id": 6, "v": 0}), described, scn=40)
    first, second = passed(window)
    assert (first.op, first.key, first.before, first.after) == (
        "insert",
        {"id": 6},
        None,
        {"id": 6, "v": 0},
    )
    assert (second.op, second.before, second.after, second.index) == ("update", before, after, 1)
    assert (second.scn, second.id, second.transaction.rows) == (40, "40:1", 2)
    assert second.timestamp_ns == window.timestamp_ns


def test_a_delete_has_the_row_before_and_none_after() -> None:
    (one,) = passed(make_window(change("shop.t", FULL, "delete")))
    assert (one.op, one.key, one.before, one.after) == ("delete", {"id": 1}, FULL, None)


def test_a_change_of_the_key_is_a_delete_and_an_insert_with_ids_of_their_own() -> None:
    moved = {**FULL, "id": 2}
    delete, insert = update(FULL, moved, TableRule())
    assert images([delete, insert]) == [("delete", FULL, None), ("insert", None, moved)]
    assert (delete.key, insert.key) == ({"id": 1}, {"id": 2})
    assert delete.id != insert.id
    assert delete.is_move
    assert insert.is_move


def test_the_last_change_of_a_transaction_has_its_position() -> None:
    position = Position("shop", Checkpoint.at(40))
    window = make_window(change("shop.t", FULL), change("shop.t", {**FULL, "id": 2}), scn=40)
    changes = passed(window)
    place_last(changes, position)
    assert [one.position for one in changes] == [None, position]
    place_last([], position)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (5, 6, "update"),
        (5, 1, "delete"),
        (1, 5, "insert"),
        (1, 2, None),
    ],
)
def test_an_update_that_moves_a_row_out_of_the_filter_is_a_delete(
    before: int, after: int, expected: str | None
) -> None:
    rule = TableRule(where=row_condition("v > 4"))
    found = update({**FULL, "v": before}, {**FULL, "v": after}, rule)
    assert [one.op.value for one in found] == ([expected] if expected else [])


def test_each_half_of_a_changed_key_is_filtered_by_its_own_row() -> None:
    rule = TableRule(where=row_condition("id > 4"))
    rows = {**FULL, "id": 5}, {**FULL, "id": 1}
    assert [one.op.value for one in update(*rows, rule)] == ["delete"]
    assert [one.op.value for one in update(rows[1], rows[0], rule)] == ["insert"]


def test_an_update_without_the_row_before_that_is_not_wanted_is_a_delete() -> None:
    rule = TableRule(where=row_condition("v > 4"))
    (one,) = passed(make_window(change("shop.t", FULL, "update")), rule)
    assert (one.op, one.after) == ("delete", None)


def test_deletes_and_inserts_are_filtered_by_their_row_and_a_truncate_is_not() -> None:
    rule = TableRule(where=row_condition("v > 4"))
    window = make_window(
        change("shop.t", FULL),
        change("shop.t", {**FULL, "v": 5}),
        change("shop.t", FULL, "delete"),
        change("shop.t", {**FULL, "v": 5}, "delete"),
        change("shop.t", {}, "truncate"),
    )
    assert [one.op.value for one in passed(window, rule)] == ["insert", "delete", "truncate"]


def test_only_chosen_columns_come_and_an_update_of_none_of_them_is_no_change() -> None:
    rule = TableRule(columns={"id", "v"})
    assert update(FULL, {**FULL, "s": "milk"}, rule) == []
    (one,) = update(FULL, {**FULL, "v": 2}, rule)
    assert (one.before, one.after) == ({"id": 1, "v": 1}, {"id": 1, "v": 2})


def test_columns_that_are_left_out_do_not_come_in_the_row_nor_in_the_key() -> None:
    rule = TableRule(without={"s"})
    assert update(FULL, {**FULL, "s": "milk"}, rule) == []
    (one,) = passed(make_window(change("shop.t", FULL)), rule)
    assert one.after == {"id": 1, "v": 1}
    with pytest.raises(SettingsError, match="id is of the primary key"):
        passed(make_window(change("shop.t", FULL)), TableRule(without={"id"}))


def test_columns_get_new_names_in_key_and_rows() -> None:
    rule = TableRule(names={"id": "number", "s": "item"})
    (one,) = passed(make_window(change("shop.t", FULL)), rule)
    assert (one.key, one.after) == ({"number": 1}, {"number": 1, "v": 1, "item": "tea"})


def test_masks_hide_values_in_the_row_before_too() -> None:
    masks = {"s": make_mask("redact", None), "v": make_mask("hash", SECRET)}
    (one,) = update(FULL, {**FULL, "s": "milk", "v": 2}, TableRule(masks=masks))
    assert one.after is not None
    assert one.before is not None
    assert (one.after["s"], one.before["s"]) == ("redacted", "redacted")
    assert len(one.after["v"]) == 64
    assert one.after["v"] != one.before["v"]


@pytest.mark.parametrize("where", ["columns", "without", "mask", "rename"])
def test_a_column_that_is_misspelt_in_the_settings_is_an_error_and_not_shown(where: str) -> None:
    by_form: dict[str, Any] = {"mask": {"ss": "redact"}, "rename": {"ss": "x"}}
    table = {"sources": ["shop.t"], where: by_form.get(where, ["ss"])}
    plan = plan_of(Recorder(), tables=[table])
    with pytest.raises(SettingsError, match=r"shop\.t has no column ss, .* it has .*s"):
        passed(make_window(change("shop.t", FULL)), plan.rule_of("shop.t"))
    # Tables that a pattern matches need not all have it.
    plan = plan_of(Recorder(), tables=[{**table, "sources": ["shop.*"]}])
    assert plan.rule_of("shop.t").needed == frozenset()


def test_a_key_may_be_hashed_and_not_removed_or_cut() -> None:
    rule = TableRule(masks={"id": make_mask("hash", SECRET)})
    (one,) = passed(make_window(change("shop.t", FULL)), rule)
    assert one.after is not None
    assert one.key == {"id": one.after["id"]} != {"id": 1}
    rule = TableRule(masks={"id": make_mask("redact", None)}, blurred={"id"})
    with pytest.raises(SettingsError, match="different rows equal: use hash"):
        passed(make_window(change("shop.t", FULL)), rule)


@given(st.one_of(st.integers(), st.text(), st.binary(), st.decimals(allow_nan=False)))
def test_a_hash_is_the_same_for_equal_values_and_hides_them(value: Any) -> None:
    mask = make_mask("hash", SECRET)
    assert mask(value) == mask(value) != make_mask("hash", MaskKey(b"another"))(value)
    if len(str(value)) > 8:
        assert str(value) not in mask(value)


def test_a_hash_does_not_depend_on_the_digits_of_a_decimal() -> None:
    mask = make_mask("hash", SECRET)
    assert mask(Decimal("1.50")) == mask(Decimal("1.5")) == SECRET.hash(1.5)


def test_null_stays_null_and_a_cut_is_of_texts_and_bytes() -> None:
    for text in ("hash", "redact", "truncate:2"):
        assert make_mask(text, SECRET)(None) is None
    cut = make_mask("truncate:2", None)
    assert [cut(value) for value in ("tea", b"tea", 123)] == ["te", b"te", None]
    assert make_mask("redact", None)(5) is None


@pytest.mark.parametrize("text", ["blur", "truncate", "truncate:x", "hash:1", "redact:2"])
def test_an_unknown_mask_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="write hash, redact or truncate:LENGTH"):
        make_mask(text, SECRET)


def test_a_hash_needs_a_key() -> None:
    with pytest.raises(SettingsError, match="mask_key_file"):
        make_mask("hash", None)
