"""Filters as SQL text."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.dispatcher.data_window import DataWindow
from databus.client.events.row_condition import row_condition
from databus.client.machines.states import Lifecycle
from databus.schemas.errors import RowError, SettingsError
from databus.schemas.event.metadata import Op
from databus.testing import change, make_event
from tests.client.fake_relay import FakeRelay
from tests.client.shop import customer, order, orders, read, wait_until
from tests.client.test_client import Keeper, make_client

ROW = {"id": 7, "item": "tea", "price": Decimal("9.90"), "note": None, "day": date(2026, 2, 3)}
AT = datetime(2026, 2, 3, 4, 5, tzinfo=UTC)


def wants(text: str, row: dict[str, Any] = ROW, **options: Any) -> bool:
    return row_condition(text).wants(make_event(change("shop.orders", row, **options)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 7", True),
        ("7 < id", False),
        ("id IN (1, 7)", True),
        ("id NOT IN (1, 7)", False),
        ("id NOT IN (1, NULL)", False),
        ("item = 'tea' AND price > 9.5", True),
        ("item = 'milk' OR price BETWEEN 9.9 AND 10", True),
        ("NOT (item = 'milk')", True),
        ("item LIKE 't%' AND item LIKE '_ea'", True),
        (r"item LIKE 't\\%'", False),
        ("note IS NULL", True),
        ("note IS NOT NULL", False),
        ("note = 'x'", False),
        ("NOT note = 'x'", False),
        ("note = 'x' OR id = 7", True),
        ("day >= '2026-02-03'", True),
        ("'2026-02-02' > day", False),
        ("id = -7", False),
        ("`item` = 'it''s'", False),
    ],
)
def test_a_condition_is_that_of_sql(text: str, expected: bool) -> None:
    assert wants(text) is expected


@pytest.mark.parametrize("text", ["at = '2026-02-03T04:05:00'", "at < '2026-02-03 06:00+01:00'"])
def test_times_are_compared_as_moments(text: str) -> None:
    assert wants(text, {"id": 1, "at": AT})


def test_a_double_is_compared_as_a_double() -> None:
    row = {"id": 1, "share": 0.1}
    assert wants("share = 0.1 AND share IN (0.1, 7) AND share >= 0.1", row)
    assert not wants("share <> 0.1 OR share > 0.1", row)


def test_texts_are_compared_exactly() -> None:
    assert not wants("item = 'Tea' OR item = 'tea '")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("day >= '2026-02-03 12:00'", "is a time, and the column has dates"),
        ("at > '2026-02-03 12:00+01:00'", "has a zone, and the column has none"),
    ],
)
def test_a_literal_of_another_kind_of_time_is_an_error_and_not_cut(text: str, problem: str) -> None:
    with pytest.raises(RowError, match=problem):
        wants(text, ROW | {"at": AT.replace(tzinfo=None)})


def test_a_time_of_sql_is_compared_as_a_span() -> None:
    row = {"id": 1, "lasts": timedelta(hours=-30, microseconds=-500_000)}
    assert wants("lasts = '-30:00:00.5' AND lasts < '-29:59' AND '00:00:00' > lasts", row)
    with pytest.raises(RowError, match="'soon' is no time"):
        wants("lasts > 'soon'", row)


CONDITIONS = st.recursive(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["=", "<>", "<", ">="]),
        st.sampled_from(["a", "b", "0", "1", "-2", "NULL"]),
    )
    | st.sampled_from(["a IS NULL", "b IS NOT NULL", "a IN (1, 2)", "b NOT IN (0, NULL)"])
    | st.just("a BETWEEN 0 AND b"),
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner)
        | st.builds("NOT ({})".format, inner)
    ),
    max_leaves=6,
)
VALUES = st.none() | st.integers(-3, 3)


@pytest.fixture(scope="module")
def sqlite() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


@given(text=CONDITIONS, a=VALUES, b=VALUES)
def test_three_valued_logic_is_that_of_a_database(
    sqlite: sqlite3.Connection, text: str, a: int | None, b: int | None
) -> None:
    found = sqlite.execute(f"SELECT ({text}) IS TRUE FROM (SELECT ? AS a, ? AS b)", (a, b))
    row = {"id": 1, "a": a, "b": b}
    event = make_event(change("s.t", row))
    assert row_condition(text).wants(event) is bool(found.fetchone()[0])


def test_an_update_that_takes_a_row_out_of_the_filter_or_into_it_is_wanted() -> None:
    tea, milk = {"id": 7, "item": "tea"}, {"id": 7, "item": "milk"}
    assert wants("item = 'tea'", milk, op="update", before=tea)
    assert wants("item = 'tea'", tea, op="update", before=milk)
    assert not wants("item = 'tea'", milk, op="update", before=milk)


def test_what_cannot_be_known_is_wanted() -> None:
    assert wants("item = 'tea'", {"id": 7, "item": "milk"}, op="update"), "the row before"
    assert wants("item = 'tea'", {}, op="truncate")


def test_a_delete_is_wanted_by_the_row_that_was_there() -> None:
    assert wants("item = 'tea'", {"id": 7, "item": "tea"}, op="delete")
    assert not wants("item = 'tea'", {"id": 7, "item": "milk"}, op="delete")


@pytest.mark.parametrize(
    "text",
    ["upper(item) = 'TEA'", "item", "1 = 1", "id = (SELECT 1)", "id >", "t.id = 1", "id + 1 = 2"],
)
def test_what_is_not_understood_is_refused_when_it_is_given(text: str) -> None:
    with FakeRelay([]) as relay, pytest.raises(SettingsError, match="filter"):
        make_client(relay).register(Keeper(), ["shop.orders"], filters={"shop.orders": text})


def test_values_that_cannot_be_compared_are_an_error() -> None:
    with pytest.raises(RowError, match="str 'tea' cannot be compared with Decimal"):
        wants("item > 5")


def test_a_column_that_the_table_does_not_have_is_an_error_that_names_those_it_has() -> None:
    with pytest.raises(SettingsError, match=r"has 'itm', and shop\.orders has the columns day, id"):
        wants("itm = 'tea'")


def test_a_client_gets_the_rows_of_its_filter_and_its_checkpoint_passes_the_others() -> None:
    windows = [[order(1, 1, "tea"), customer(1)], [order(2, 2, "milk")], [order(3, 3, "tea")]]
    with FakeRelay(windows) as relay:
        keeper, client = Keeper(), make_client(relay)
        filters = {"shop.orders": "item = 'tea'"}
        client.register(keeper, ["shop.orders", "shop.customers"], filters=filters)
        with client:
            wait_until(lambda: client.status()[0].scn == 3)
        assert (keeper.keys, keeper.scns) == ([1, 1, 3], [1, 3])
        with make_client(relay) as client:
            found = client.windows("shop.orders", filters=filters)
            assert [next(found).scn, next(found).scn] == [1, 3]


def test_a_filter_that_does_not_fit_the_table_stops_the_registration_and_says_so() -> None:
    with FakeRelay(orders([1])) as relay, make_client(relay) as client:
        client.register(Keeper(), ["shop.orders"], filters={"shop.orders": "itm = 'tea'"})
        wait_until(lambda: client.state is Lifecycle.SUSPENDED)
        assert isinstance(client.error, SettingsError)


def test_an_events_kind_without_metadata_is_not_taken_for_an_update_with_a_row_before() -> None:
    bare = order(7, 1, "milk")._replace(metadata=None)
    (event,) = DataWindow(read(7, bare)).events
    assert event.op is Op.UPDATE
    assert row_condition("item = 'tea'").wants(event), "the row before is unknown"
