"""Streams that LinkedIn's relay sent, as Spark's records."""

from __future__ import annotations

import json

import pytest

from databus.client.spark.arrow.row_types import WriterSchema
from tests.client.spark.arrow.made_events import WAYS, make_columns, read_by, rows_of
from tests.promises.stock_databus.recordings import CODE, PERSON, recorded, row_of_record

SOURCES = {101: PERSON, 102: CODE}


def schemas(stream: str) -> list[WriterSchema]:
    told = json.loads(recorded(f"{stream}.register.json"))
    return [WriterSchema(SOURCES[one["id"]], one["id"], 1, one["schema"]) for one in told]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", ["v1", "v2"])
def test_records_are_the_rows_that_were_put_in(stream: str, way: str) -> None:
    data = recorded(f"{stream}.stream.bin")
    with read_by(way):
        columns = make_columns(schemas(stream), layout="structs")
        assert columns.take(data) == len(data)
        rows = list(map(row_of_record, rows_of(columns.flush())))
    expected = [json.loads(line) for line in recorded(f"{stream}.expected.jsonl").splitlines()]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    assert [row["scn"] for row in rows] == sorted(row["scn"] for row in expected)
