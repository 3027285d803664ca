"""Reads a table of a store page by page as Spark does, with packs or without."""

from __future__ import annotations

from typing import Any, NamedTuple

from databus.bootstrap.packs.building import PackSizes
from databus.bootstrap.server.pages import read_page
from databus.bootstrap.server.parameters import parse_page_request
from databus.bootstrap.server.source_lookup import Stores
from databus.bootstrap.store.store import Store
from databus.client.spark.arrow.event_batches import EventBatches
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    arrow_schema,
    changes_schema,
    row_schema,
)
from databus.client.spark.planning.requests import snapshot
from databus.client.spark.planning.server_pool import Answer
from databus.client.spark.source.bootstrap_pages import take_answer
from databus.conf.settings import HttpSettings
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.packs import TAKES, packs_in
from databus.schemas.table_change import Versions, shape

SMALL = PackSizes(most_rows=2, fewest_rows=1, fewest_noted=1)
FEW = PackSizes(most_rows=100, fewest_rows=20, fewest_noted=3)
MOST_BYTES = 1 << 30
_LIMITS = HttpSettings(max_response_bytes=1 << 24)


class Read(NamedTuple):
    """What was read: each row's values and SCN, sorted; and how many rows came in packs.

    `pages` has the number of packs of each page.
    """

    rows: list[tuple[Any, ...]]
    packed: int
    pages: list[int]


def read_table(
    store: Store,
    source: str,
    scn: int,
    *,
    takes_packs: bool,
    after_row: int = 0,
    until_row: int = MAX_SCN,
    page_bytes: int = 1 << 22,
) -> Read:
    """Return the rows of a range of ids as of an SCN; the log's part of them is left out."""
    versions = _versions(store, source)
    target = arrow_schema(changes_schema({source: row_schema(versions, ())}, "columns", False))
    columns = EventBatches(target, versions, physical_source="", layout="columns", as_snapshot=True)
    checkpoint = snapshot(source, after_row, scn, 0, store.id)
    asked = {"sources": source, "output": "binary", "maxev": "2", "truncate": "true"}
    asked |= {"untilRow": str(until_row), "packs": TAKES if takes_packs else ""}
    asked["batchSize"] = str(page_bytes)
    packed, pages = 0, []
    while True:
        request = parse_page_request(asked | {"checkPoint": checkpoint.to_json()}, _LIMITS)
        page = read_page(request, Stores({"shop": store}), {"shop": [source]})
        before = columns.rows
        assert len(page.body) <= page_bytes
        packs = [pack for pack, _ in packs_in(memoryview(page.body))]
        packed += sum(pack.head.rows - len(pack.left_out) for pack in packs)
        pages.append(len(packs))
        take_answer(Answer("a server", {}, bytearray(page.body)), columns, list)
        assert columns.rows - before == page.rows
        if page.is_phase_over:
            break
        assert page.checkpoint.snapshot_offset > checkpoint.snapshot_offset
        checkpoint = page.checkpoint
    rows = []
    for batch in columns.flush():
        for row in batch.to_pylist():
            change = row.pop(CHANGE_COLUMN)
            assert change["op"] == "snapshot"
            rows.append((*row.values(), change["scn"]))
    return Read(sorted(rows, key=repr), packed, pages)


def _versions(store: Store, source: str) -> list[WriterSchema]:
    src_id = store.source(source).src_id
    found = [WriterSchema(source, *row) for row in store.schemas_until_now([src_id])]
    newest = Versions(version.text for version in found).at(MAX_SCN)
    assert newest is not None
    return [version for version in found if shape(version.text) == shape(newest)]
