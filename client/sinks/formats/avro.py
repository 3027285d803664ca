"""Rows in Avro: the row after a change, and nothing where it is gone."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from databus.client.sinks.contract import Change, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.message import AvroMessage, AvroPart
from databus.schemas.avro_rows import RowCodec, row_codec
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.columns.taken_columns import taken_schema
from databus.schemas.errors import RowError


def avro_row(change: Change, now_ms: int) -> AvroMessage | None:  # noqa: ARG001
    """Return the message of a row: its key, and the row, or None where it was deleted.

    What is no change of a row has no message. Raises SinkRefusedError for a row of which some
    columns were not logged, SchemaError.
    """
    if change.schema is None:
        return None
    key, row = _record(change.schema, tuple(change.key)), _record(change.schema, None)
    try:
        value = None if change.after is None else row.part(change.after)
        return AvroMessage(key.part(change.key), value)
    except RowError as error:
        raise SinkRefusedError(f"format avro has whole rows: {error}", change) from error


class _Record(NamedTuple):
    text: str
    codec: RowCodec

    def part(self, row: Row) -> AvroPart:
        return AvroPart(self.text, self.codec.encode(dict(row)))


@lru_cache(maxsize=4096)
def _record(schema: WriterSchema, columns: tuple[str, ...] | None) -> _Record:
    """Return the record of some columns, or of the row."""
    if columns is not None:
        schema = taken_schema(schema, frozenset(columns), (), frozenset())
    record = json.loads(schema.text)
    if columns is not None:
        record["name"] += "_key"
    return _Record(json.dumps(_plain(record), separators=(",", ":")), _codec(schema))


def _codec(schema: WriterSchema) -> RowCodec:
    return row_codec(schema.text, has_durations=True)


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what only databus reads, such as the places of columns."""
    fields = [_without_meta(one) | {"type": _plain_type(one["type"])} for one in record["fields"]]
    return _without_meta(record) | {"fields": fields}


def _without_meta(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if name != "meta"}


def _plain_type(avro_type: Any) -> Any:
    """Return a type that other readers can read: an SQL TIME may be longer than a day."""
    if isinstance(avro_type, list):
        return [_plain_type(branch) for branch in avro_type]
    is_time = isinstance(avro_type, dict) and avro_type.get("logicalType") == "time-micros"
    return avro_type["type"] if is_time else avro_type
