"""The four orders of consumption, as rules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.sinks.contract import Change, ChangeOp
from databus.client.sinks.rules.key_values import folded, lane_of_key
from databus.client.sinks.rules.orders import Order, Scheduler, Step
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import SettingsError
from tests.client.sinks.changes import made, moved

SECOND_KEY = (("no",),)
OPS = st.sampled_from(["insert", "update", "delete", "truncate", "move"])
ROWS = st.tuples(OPS, st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 5))


def changes_of(row: tuple[str, str, int, int]) -> list[Change]:
    op, table, key, other = row
    source = f"shop.{table}"
    if op == "move":
        return moved(key, other, source) if key != other else []
    return [made(op, key, source)]


def executed(steps: Sequence[Step], rng: random.Random) -> list[Change]:
    """Return the changes in an order in which lanes may write them."""
    found: list[Change] = []
    queues: dict[int, list[Change]] = {}

    def run_some(must_finish: bool) -> None:
        while any(queues.values()) and (must_finish or rng.random() < 0.7):
            lane = rng.choice([lane for lane, held in queues.items() if held])
            found.append(queues[lane].pop(0))

    for step in steps:
        if step.is_barrier:
            run_some(must_finish=True)
        for lane, changes in step.parts:
            queues.setdefault(lane, []).extend(changes)
        run_some(must_finish=False)
    run_some(must_finish=True)
    return found


def ran(
    order: Order,
    transactions: Sequence[Sequence[Change]],
    seed: int,
    lanes: int = 4,
    **settings: Any,
) -> list[Change]:
    scheduler = Scheduler(order, lanes, **settings)
    steps = [step for one in transactions for step in scheduler.lanes_of(one)]
    return executed(steps, random.Random(seed))


TRANSACTIONS = st.lists(
    st.lists(ROWS, max_size=4).map(lambda rows: [c for row in rows for c in changes_of(row)]),
    max_size=12,
)

# Without moves, whose halves stay together.
PLAIN_TRANSACTIONS = TRANSACTIONS.map(
    lambda found: [[change for change in one if not change.is_move] for one in found]
)


def place(changes: Sequence[Change], change: Change) -> int:
    return next(at for at, one in enumerate(changes) if one is change)


@given(
    TRANSACTIONS, st.integers(), st.sampled_from(["transaction", "single-table", "table", "row"])
)
def test_every_change_is_written_once(
    transactions: list[list[Change]], seed: int, order: Order
) -> None:
    given_changes = [change for one in transactions for change in one]
    written = ran(order, transactions, seed)
    assert sorted(map(id, written)) == sorted(map(id, given_changes))


@given(
    TRANSACTIONS, st.integers(), st.sampled_from(["transaction", "single-table", "table", "row"])
)
def test_in_every_order_the_changes_of_a_key_stay_in_order(
    transactions: list[list[Change]], seed: int, order: Order
) -> None:
    written = ran(order, transactions, seed)
    by_key: dict[Any, list[Change]] = {}
    for change in [change for one in transactions for change in one]:
        if change.op is ChangeOp.TRUNCATE:
            continue
        by_key.setdefault((change.source, *change.key.values()), []).append(change)
    for changes in by_key.values():
        places = [place(written, change) for change in changes]
        assert places == sorted(places)


@given(TRANSACTIONS, st.integers(), st.sampled_from(["single-table", "table", "row"]))
def test_a_truncate_is_alone(transactions: list[list[Change]], seed: int, order: Order) -> None:
    sequence = [change for one in transactions for change in one]
    written = ran(order, transactions, seed)
    for at, change in enumerate(sequence):
        if change.op is ChangeOp.TRUNCATE:
            assert place(written, change) == at
            assert {id(one) for one in written[:at]} == {id(one) for one in sequence[:at]}


@given(
    PLAIN_TRANSACTIONS,
    st.lists(st.integers(1, 3)),
    st.sampled_from(["single-table", "table", "row"]),
)
def test_the_first_row_with_a_newer_schema_is_alone(
    transactions: list[list[Change]], versions: list[int], order: Order
) -> None:
    newest: dict[str, int] = {}
    numbers, news = iter(versions), []
    for held in transactions:
        for at, change in enumerate(held):
            version = next(numbers, 3)
            held[at] = replace(change, schema=WriterSchema(change.source, 1, version, str(version)))
            if version > newest.get(change.source, 0):
                newest[change.source] = version
                news.append(held[at])
    sequence = [change for one in transactions for change in one]
    written = ran(order, transactions, 7, follows_schemas=True)
    for change in news:
        at = place(sequence, change)
        assert place(written, change) == at
        assert {id(one) for one in written[:at]} == {id(one) for one in sequence[:at]}


@given(TRANSACTIONS, st.integers())
def test_in_order_transaction_all_are_in_commit_order(
    transactions: list[list[Change]], seed: int
) -> None:
    sequence = [change for one in transactions for change in one]
    assert list(map(id, ran("transaction", transactions, seed))) == list(map(id, sequence))


@given(TRANSACTIONS, st.integers())
def test_in_order_single_table_a_transaction_of_several_tables_is_alone(
    transactions: list[list[Change]], seed: int
) -> None:
    written = ran("single-table", transactions, seed)
    begin = 0
    for one in transactions:
        if len({change.source for change in one}) > 1:
            run = written[begin : begin + len(one)]
            assert list(map(id, run)) == list(map(id, one))
        begin += len(one)


@given(TRANSACTIONS, st.integers(), st.sampled_from(["table", "row"]))
def test_the_insert_of_a_changed_key_comes_after_its_delete(
    transactions: list[list[Change]], seed: int, order: Order
) -> None:
    written = ran(order, transactions, seed)
    halves = [change for one in transactions for change in one if change.is_move]
    for delete, insert in zip(halves[::2], halves[1::2], strict=True):
        assert place(written, delete) < place(written, insert)


def test_the_delete_of_a_changed_key_is_durable_before_the_insert_begins() -> None:
    # Two keys of different lanes.
    new = next(n for n in range(2, 50) if lane_of_key("shop.orders", {"id": n}, 4) != lane_one())
    scheduler = Scheduler("row", 4)
    steps = scheduler.lanes_of(moved(1, new))
    assert [step.is_barrier for step in steps] == [False, True]
    assert [step.parts[0].changes[0].op for step in steps] == ["delete", "insert"]


def lane_one() -> int:
    return lane_of_key("shop.orders", {"id": 1}, 4)


def test_single_tables_go_to_lanes_of_their_own() -> None:
    scheduler = Scheduler("single-table", 2)
    lanes = [scheduler.lanes_of([made("insert", 1, f"shop.t{n}")])[0] for n in (1, 2)]
    assert [(step.parts[0].lane, step.is_barrier) for step in lanes] == [(0, False), (1, False)]


def test_what_comes_after_something_alone_waits_for_it() -> None:
    scheduler = Scheduler("table", 2)
    (alone,) = scheduler.lanes_of([made("truncate", None)])
    (after,) = scheduler.lanes_of([made("insert", 1)])
    (later,) = scheduler.lanes_of([made("insert", 2, "shop.b")])
    assert [one.is_barrier for one in (alone, after, later)] == [True, True, False]


@pytest.mark.parametrize(
    ("one", "other"),
    [("Ada", "ADA"), ("ada", "ada  "), ("Zoe", "Zoë"), (1, 1.0), ("straße", "STRASSE")],
)
def test_keys_that_a_database_may_take_for_equal_share_a_lane(one: Any, other: Any) -> None:
    assert folded(one) == folded(other)
    lanes = {lane_of_key("shop.t", {"id": key}, 64) for key in (one, other)}
    assert len(lanes) == 1


def test_order_row_is_refused_for_a_target_with_a_second_unique_key() -> None:
    scheduler = Scheduler("row", 4, unique_keys=lambda _source: SECOND_KEY)
    with pytest.raises(SettingsError, match=r"shop.orders has another unique key \(no\)"):
        scheduler.check("shop.orders")
    with pytest.raises(SettingsError, match="writeset"):
        scheduler.lanes_of([made("insert", 1, no="a")])
    Scheduler("row", 4, "writeset", lambda _source: SECOND_KEY).check("shop.orders")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "swap", "swap", "delete", "move", "truncate"]),
            st.integers(0, 6),
            st.integers(0, 6),
        ),
        min_size=5,
        max_size=60,
    ),
    st.integers(),
    st.integers(2, 5),
)
def test_with_writesets_no_row_stands_in_the_way_of_another(
    steps: list[tuple[str, int, int]], seed: int, lanes: int
) -> None:
    transactions, rows = history(steps)
    scheduler = Scheduler("row", lanes, "writeset", lambda _source: SECOND_KEY)
    found = [step for one in transactions for step in scheduler.lanes_of(one)]
    target: dict[int, str] = {}
    for change in executed(found, random.Random(seed)):
        if change.op is ChangeOp.TRUNCATE:
            target.clear()
        elif change.after is None:
            target.pop(change.key["id"], None)
        else:
            key, no = change.key["id"], change.after["no"]
            holder = [other for other, held in target.items() if held == no and other != key]
            assert not holder, f"{change} while {holder} has {no}"
            target[key] = no
    assert target == rows


def history(steps: list[tuple[str, int, int]]) -> tuple[list[list[Change]], dict[int, str]]:
    """Return transactions that a database would allow, and its rows in the end."""
    rows: dict[int, str] = {}
    names = iter(f"n{number}" for number in range(1000))
    transactions = [[put(rows, key, next(names))] for key in range(7)]
    for op, one, other in steps:
        made_of: list[Change] = []
        if op == "put":
            no = next(names)
            made_of = [put(rows, one, no)]
        elif op == "swap" and one != other and one in rows and other in rows:
            # Through a third value, as a database needs it.
            first, second = rows[one], rows[other]
            made_of = [put(rows, one, "free"), put(rows, other, first), put(rows, one, second)]
        elif op == "delete" and one in rows:
            made_of = [made("delete", one, before_no=rows.pop(one))]
        elif op == "move" and one in rows and other not in rows:
            rows[other] = rows.pop(one)
            made_of = moved(one, other, no=rows[other])
        elif op == "truncate" and one == 0:
            rows.clear()
            made_of = [made("truncate", None)]
        transactions.append(made_of)
    return transactions, rows


def put(rows: dict[int, str], key: int, no: str) -> Change:
    before = rows.get(key)
    rows[key] = no
    if before is None:
        return made("insert", key, no=no)
    return made("update", key, no=no, before_no=before)


def test_a_change_whose_unique_values_are_not_known_is_alone() -> None:
    scheduler = Scheduler("row", 4, "writeset", lambda _source: SECOND_KEY)
    (step,) = scheduler.lanes_of([made("update", 1, no="a")])  # without the row before
    (after,) = scheduler.lanes_of([made("insert", 2, no="b")])
    assert step.is_barrier
    assert after.is_barrier
