"""The net change of each key."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from databus.client.sinks.contract import Change, ChangeOp
from databus.client.sinks.rules.compaction import compacted
from tests.client.sinks.changes import made, moved

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "truncate", "move"]),
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    max_size=40,
)


def history(steps: list[tuple[str, int, int]]) -> list[Change]:
    """Return changes that a table may have had."""
    rows: dict[int, int] = {}
    found: list[Change] = []
    for at, (op, key, other) in enumerate(steps):
        if op == "put":
            before: dict[str, Any] = {"before_v": rows[key]} if key in rows else {}
            found.append(made("update" if key in rows else "insert", key, v=at, **before))
            rows[key] = at
        elif op == "delete" and key in rows:
            found.append(made("delete", key, before_v=rows.pop(key)))
        elif op == "truncate" and key == 0:
            rows.clear()
            found.append(made("truncate", None))
        elif op == "move" and key in rows and other not in rows:
            rows[other] = rows.pop(key)
            found += moved(key, other, v=rows[other])
    return found


def applied(changes: list[Change]) -> dict[Any, Any]:
    rows: dict[Any, Any] = {}
    for change in changes:
        if change.op is ChangeOp.TRUNCATE:
            rows.clear()
        elif change.after is None:
            rows.pop(change.key["id"], None)
        else:
            rows[change.key["id"]] = {**rows.get(change.key["id"], {}), **change.after}
    return rows


@given(STEPS)
def test_the_net_changes_do_what_all_changes_do(steps: list[tuple[str, int, int]]) -> None:
    changes = history(steps)
    short = compacted(changes)
    assert applied(short) == applied(changes)
    keys: list[Any] = []
    for change in short:
        if change.op is ChangeOp.TRUNCATE:
            keys.clear()
        else:
            assert change.key["id"] not in keys
            keys.append(change.key["id"])


def test_insert_delete_insert_and_update_are_one_change() -> None:
    (one,) = compacted(
        [
            made("insert", 1, v=1),
            made("delete", 1, before_v=1),
            made("insert", 1, v=2),
            made("update", 1, before_v=2, v=3),
        ]
    )
    assert one.after == {"id": 1, "v": 3}


def test_an_update_of_some_columns_keeps_the_others() -> None:
    (one,) = compacted([made("insert", 1, v=1, w=1), made("update", 1, v=2)])
    assert (one.op, one.after) == ("insert", {"id": 1, "v": 2, "w": 1})


def test_two_updates_have_the_row_before_the_first() -> None:
    (one,) = compacted([made("update", 1, before_v=1, v=2), made("update", 1, before_v=2, v=3)])
    assert (one.op, one.before, one.after) == ("update", {"id": 1, "v": 1}, {"id": 1, "v": 3})


def test_a_row_that_came_and_went_is_deleted_for_a_target_that_may_have_it() -> None:
    (one,) = compacted([made("insert", 1, v=1), made("delete", 1, before_v=1)])
    assert one.op == "delete"
