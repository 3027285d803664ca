"""The sink `mongodb`, at least once: an older change never wins, and a replay is harmless."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError
from tests.client.sinks.changes import made, moved
from tests.client.sinks.ready.mongodb.conftest import Target
from tests.client.sinks.ready.sql.targets import Source

pytestmark = pytest.mark.mongodb

SCN = (1 << 62) + 7  # as large as SCNs become
ORDERS = Source({"id": "int", "v": "int"}, "shop.orders")


def test_rows_are_documents_of_a_collection_for_each_table(target: Target) -> None:
    items = Source({"order": "int", "n": "int", "s": "varchar(9)"}, "other.items", keys=2)
    target.put(ORDERS.insert(1, None, scn=SCN), items.insert(7, 1, "ä", scn=SCN))
    assert target.documents("orders") == {1: {"id": 1, "v": None, "databus_scn": SCN}}
    row = {"order": 7, "n": 1, "s": "ä", "databus_scn": SCN}
    assert target.documents("items", "other") == {(1, 7): row}
    target.put(ORDERS.update(1, 5, scn=SCN + 1), ORDERS.insert(2, 1, scn=SCN + 1))
    assert target.documents("orders")[1] == {"id": 1, "v": 5, "databus_scn": SCN + 1}
    target.put(ORDERS.delete(1, 5, scn=SCN + 2), ORDERS.delete(99, 5, scn=SCN + 2))
    assert list(target.documents("orders")) == [2]


def test_a_column_that_came_or_went_is_there_or_not_with_the_next_change(target: Target) -> None:
    altered = ORDERS.altered({"id": "int", "name": "varchar(9)"})
    target.put(ORDERS.insert(1, 5), ORDERS.insert(2, 5), altered.update(1, "a", scn=2))
    assert target.documents("orders") == {
        1: {"id": 1, "name": "a", "databus_scn": 2},
        2: {"id": 2, "v": 5, "databus_scn": 1},
    }


def test_a_change_of_the_key_moves_the_document(target: Target) -> None:
    target.put(*(made("insert", key, "shop.t", v=key) for key in (1, 2)))
    swap = [*moved(1, 99, "shop.t", v=1), *moved(2, 1, "shop.t", v=2), *moved(99, 2, "shop.t", v=1)]
    target.put(*swap)
    assert {key: one["v"] for key, one in target.documents().items()} == {1: 2, 2: 1}


def test_what_comes_again_or_too_late_changes_nothing(target: Target) -> None:
    changes = [
        ORDERS.insert(1, 1, scn=10),
        ORDERS.update(1, 2, scn=12),
        ORDERS.update(1, 3, scn=15),
        ORDERS.update(1, 4, scn=15, index=1),  # of the same transaction
    ]
    target.put(*changes)
    wanted = {1: {"id": 1, "v": 4, "databus_scn": 15}}
    assert target.documents("orders") == wanted
    for change in (*changes[:2], ORDERS.delete(1, 1, scn=11)):
        target.put(change)
        assert target.documents("orders") == wanted
    target.put(*changes)
    assert target.documents("orders") == wanted


def test_a_document_of_another_program_is_taken_for_older(target: Target) -> None:
    target.client.shop.orders.insert_many([{"_id": 1, "note": "mine"}, {"_id": 2}, {"_id": 3}])
    target.put(ORDERS.update(1, 5), ORDERS.delete(2, 5))
    wanted: dict[int, Any] = {1: {"id": 1, "v": 5, "databus_scn": 1}, 3: {}}
    assert target.documents("orders") == wanted
    target.put(ORDERS.made("truncate", scn=9))
    assert target.documents("orders") == {3: {}}


def test_a_truncate_deletes_what_was_there_and_nothing_newer(target: Target) -> None:
    target.put(ORDERS.made("truncate", scn=9))  # there is no such collection yet
    rows = [ORDERS.insert(key, 1, scn=10) for key in range(20)]
    others = Source({"id": "int"}, "shop.others")
    truncate, later = ORDERS.made("truncate", scn=11), ORDERS.insert(5, 2, scn=12)
    target.put(*rows, others.insert(1))
    target.put(ORDERS.insert(20, 1, scn=10), truncate, later)
    wanted = {5: {"id": 5, "v": 2, "databus_scn": 12}}
    for _ in range(2):
        assert target.documents("orders") == wanted
        assert list(target.documents("others")) == [1]
        target.put(*rows, truncate, later)  # after a restart
    target.put(truncate)  # by another process, which is late
    assert target.documents("orders") == wanted


@pytest.mark.parametrize("collection", ["all", "{table}-{year}", "{table}"])
def test_a_truncate_of_part_of_a_collection_is_refused(target: Target, collection: str) -> None:
    truncate = ORDERS.made("truncate", scn=11)
    with pytest.raises(SinkRefusedError, match="do not say that one collection") as refused:
        target.put(truncate, database="copy", collection=collection)
    assert refused.value.change is truncate


def test_names_are_templates_and_a_row_leaves_its_old_place(target: Target) -> None:
    options = {"database": "copy", "collection": "{table}-{year}", "id": "{table}/{id}"}
    options["scn_field"] = "_scn"
    columns = {"id": "int", "year": "int"}
    source = Source(columns, "shop.orders")
    target.put(source.insert(1, 2025), source.insert(2, 2025), **options)
    row = {"id": 1, "year": 2025, "_scn": 1}
    assert target.documents("orders-2025", "copy")["orders/1"] == row
    update = replace(source.update(1, 2026, scn=2), before={"id": 1, "year": 2025})
    target.put(update, **options)
    assert list(target.documents("orders-2025", "copy")) == ["orders/2"]
    assert list(target.documents("orders-2026", "copy")) == ["orders/1"]
    target.put(source.delete(1, 2026, scn=3), **options)
    assert target.documents("orders-2026", "copy") == {}


def test_a_row_of_which_columns_were_not_logged_is_refused(target: Target) -> None:
    partial = ORDERS.update(1)
    with pytest.raises(SinkRefusedError, match=r"has not logged v.*binlog_row_image") as refused:
        target.put(partial)
    assert refused.value.change is partial


def test_several_lanes_may_write(target: Target) -> None:
    with target.opened() as first, target.opened() as second:
        for sink, change in ((first, ORDERS.insert(1, 2, scn=5)), (second, ORDERS.insert(1, 1))):
            sink.write([change])
            sink.flush()
    assert target.documents("orders")[1]["v"] == 2


def test_more_than_a_request_holds_is_sent_in_several(target: Target) -> None:
    source = Source({"id": "int", "v": "longtext"})
    with target.opened() as sink:
        sink.write([source.insert(key, "x" * (4 << 20)) for key in range(15)])  # 60 MB
        assert len(target.documents()) == 12  # the rest waits for the flush
        sink.flush()
    assert len(target.documents()) == 15


def test_a_flush_of_many_rows_is_no_matter_of_seconds_for_each(target: Target) -> None:
    rows = [ORDERS.insert(key, 1) for key in range(5000)]
    begun = time.monotonic()
    target.put(*rows)
    assert len(target.documents("orders")) == 5000
    assert time.monotonic() - begun < 60  # one by one, with a journal, they take minutes


KEYS = st.integers(0, 3)
ONE = st.tuples(st.sampled_from(["put", "put", "delete", "truncate"]), KEYS, st.integers(0, 99))
TRANSACTIONS = st.lists(st.lists(ONE, min_size=1, max_size=4), min_size=1, max_size=8)
AT = st.integers(0, 100)


def changes_of(transactions: list[list[tuple[str, int, int]]]) -> list[Change]:
    """Return changes: a transaction has one SCN, and a TRUNCATE is one of its own."""
    found: list[Change] = []
    for scn, transaction in enumerate(transactions, 1):
        for index, (op, key, value) in enumerate(transaction):
            if op == "put":
                found.append(ORDERS.update(key, value, scn=scn * 10, index=index))
            elif op == "delete":
                found.append(ORDERS.delete(key, value, scn=scn * 10, index=index))
            elif index == len(transaction) - 1:
                found.append(ORDERS.made("truncate", scn=scn * 10 + 1))
    return found


def rows_of(changes: Sequence[Change]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for change in changes:
        if change.op == "truncate":
            found = {}
        elif change.after is None:
            found.pop(change.key["id"], None)
        else:
            found[change.key["id"]] = change.after["v"]
    return found


@given(TRANSACTIONS, st.lists(st.tuples(AT, AT), max_size=3))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_part_may_come_again_and_the_documents_end_as_the_rows(
    target: Target, transactions: list[list[tuple[str, int, int]]], crashes: list[tuple[int, int]]
) -> None:
    target.client.shop.orders.delete_many({})
    changes = changes_of(transactions)
    wanted = rows_of(changes)
    places = [(one % (len(changes) + 1), two % (len(changes) + 1)) for one, two in crashes]
    for begin, end in places:  # written, and no position stored
        target.put(*changes[begin:end])
    target.put(*changes)
    assert held(target) == wanted
    for begin, end in places:  # by a process that hung; then again from a position before
        target.put(*changes[begin:end])
        target.put(*changes[min(begin, end) :])
        assert held(target) == wanted


def held(target: Target) -> dict[int, Any]:
    return {key: one["v"] for key, one in target.documents("orders").items()}
