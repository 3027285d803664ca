"""Rows in Avro: the row after a change, by a schema that any reader of Avro knows."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.avro import avro_row
from databus.client.sinks.formats.message import AvroPart
from tests.client.sinks.changes import made, mysql_schema

SCHEMA = mysql_schema(
    price="decimal(10,2)",
    made="date",
    at="timestamp",
    seen="datetime",
    long="time",
    **{"first name": "varchar(9)"},
)
ROW = {
    "id": 1,
    "price": Decimal("1.50"),
    "made": date(2026, 11, 29),
    "at": datetime(2026, 11, 29, 1, 2, 3, tzinfo=UTC),
    "seen": datetime(2026, 11, 29, 1, 2, 3, 4),
    "long": timedelta(hours=30),
    "first name": None,
}


def change(op: str = "insert", **more: Any) -> Change:
    after: dict[str, Any] = {} if op == "delete" else {"after": ROW}
    return replace(made(op, 1), schema=SCHEMA, **{**after, **more})


def read(part: AvroPart | None) -> Any:
    assert part is not None
    return fastavro.schemaless_reader(io.BytesIO(part.data), json.loads(part.schema), None)


def test_a_row_is_read_back_by_its_schema() -> None:
    message = avro_row(change(), 0)
    assert message is not None
    assert read(message.key) == {"id": 1}
    found = read(message.value)
    assert found.pop("long") == 30 * 3600 * 10**6  # no time of a day: a number of microseconds
    wanted = {"first_name" if name == "first name" else name: ROW[name] for name in ROW}
    assert found == {name: wanted[name] for name in wanted if name != "long"}


def test_the_schema_says_nothing_that_changes_when_a_column_moves() -> None:
    message = avro_row(change(), 0)
    assert message is not None
    assert message.value is not None
    schema = json.loads(message.value.schema)
    assert (schema["namespace"], schema["name"]) == ("shop", "orders")
    assert "meta" not in message.value.schema
    assert schema["fields"][1] == {
        "name": "price",
        "type": [
            "null",
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        ],
        "default": None,
    }
    assert message.key is not None
    assert json.loads(message.key.schema)["name"] == "orders_key"


def test_a_delete_is_a_key_without_a_value_and_a_truncate_no_message() -> None:
    message = avro_row(change("delete"), 0)
    assert message is not None
    assert read(message.key) == {"id": 1}
    assert message.value is None
    assert avro_row(made("truncate", 1), 0) is None


def test_a_row_that_is_not_whole_is_refused() -> None:
    part = change(after={"id": 1})
    with pytest.raises(SinkRefusedError, match="format avro has whole rows") as refused:
        avro_row(part, 0)
    assert refused.value.change is part
