from __future__ import annotations

from typing import Any

from databus.registry.registry import SchemaRegistry
from databus.relay.admin.models import RowView
from databus.relay.admin.newest_rows import NewestRows
from databus.relay.sources.source import Origin, RowChange, TableEmptied, Transaction
from databus.schemas.event.metadata import Op
from tests.relay.fakes import ORDERS, PERSON, ServedRelay, insert, transaction


def newest(relay: ServedRelay, source: str = "shop.person", limit: int = 3, **options: Any):  # type: ignore[no-untyped-def]
    physical = relay.relay.physical_sources["shop"]
    registry: SchemaRegistry = relay.relay.registry
    src_id = relay.relay.catalog.ids[source]
    job = NewestRows(physical.reader, source, src_id, limit, registry.by_id, **options)
    found: list[RowView] | None = None
    while found is None:
        found = job.step()
    return found


def test_the_newest_rows_come_in_their_order(relay: ServedRelay) -> None:
    for scn in range(1, 8):
        relay.put(transaction(scn, insert(scn, "tea", ORDERS), insert(scn, f"Ann {scn}")))
    rows = newest(relay)
    assert [(row.scn, row.index, row.row["name"]) for row in rows] == [
        (5, 1, "Ann 5"),
        (6, 1, "Ann 6"),
        (7, 1, "Ann 7"),
    ]
    assert {(row.op, row.schema_version, row.source) for row in rows} == {
        ("insert", 1, "shop.person")
    }


def test_an_update_has_the_row_before_it(relay: ServedRelay) -> None:
    old, new = {"id": 1, "name": "Ann"}, {"id": 1, "name": "Eve"}
    relay.put(transaction(1, RowChange(PERSON, Op.UPDATE, new, old)))
    (row,) = newest(relay)
    assert (row.op, row.row, row.before) == ("update", new, old)


def test_an_emptied_table_is_a_row_without_values(relay: ServedRelay) -> None:
    relay.put(transaction(1, insert(1)), Transaction(2, 2, (TableEmptied(PERSON),), Origin()))
    assert [(row.op, row.row) for row in newest(relay)] == [
        ("insert", {"id": 1, "name": "x"}),
        ("truncate", {}),
    ]


def test_an_empty_ring_has_none(relay: ServedRelay) -> None:
    assert newest(relay) == []


def test_only_so_many_bytes_at_the_end_are_looked_at(relay: ServedRelay) -> None:
    relay.put(transaction(1, insert(1)))
    for scn in range(2, 50):
        relay.put(transaction(scn, *(insert(n, "y" * 900, ORDERS) for n in range(40))))
    assert newest(relay, max_bytes=100_000) == []
    assert [row.scn for row in newest(relay, max_bytes=10 << 20)] == [1]
    assert len(newest(relay, "shop.orders", limit=200, max_bytes=100_000)) in range(60, 110)


def test_what_is_long_is_cut_and_what_javascript_cannot_count_is_text(relay: ServedRelay) -> None:
    relay.put(transaction(1, insert(1 << 60, "z" * 5000)))
    (row,) = newest(relay)
    assert row.row["id"] == str(1 << 60)
    assert row.row["name"] == "z" * 1000 + "… (5000 characters)"
