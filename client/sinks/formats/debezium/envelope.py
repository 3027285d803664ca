"""Debezium's envelope, as its MySQL connector 2.x sends it, by one of Kafka Connect's converters.

`json` is the JSON converter without schemas, `json-schemas` the same with them, and `avro`
Confluent's Avro converter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from databus import __version__
from databus.client.sinks.contract import Change, ChangeOp, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.debezium.columns import (
    Column,
    Datetimes,
    Decimals,
    connect_columns,
    fits,
)
from databus.client.sinks.formats.debezium.connect import Schema
from databus.client.sinks.formats.debezium.converters import Form
from databus.client.sinks.formats.message import AvroMessage, Message
from databus.client.sinks.formats.source_names import split_source
from databus.schemas.columns.avro_columns import WriterSchema

Converter = Literal["json", "json-schemas", "avro"]

_OPS = {
    ChangeOp.INSERT: "c",
    ChangeOp.UPDATE: "u",
    ChangeOp.DELETE: "d",
    ChangeOp.SNAPSHOT: "r",
    ChangeOp.TRUNCATE: "t",
}
_TEXT, _OPTIONAL_TEXT = Schema("string"), Schema("string", True)
_LONG, _OPTIONAL_LONG = Schema("int64"), Schema("int64", True)
_SNAPSHOT = Schema(
    "string",
    True,
    "io.debezium.data.Enum",
    1,
    {"allowed": "true,last,false,incremental"},
    default="false",
)
# `server_id` and `file` are required in the connector's own schema; here they may be unknown.
_SOURCE = Schema(
    "struct",
    False,
    "io.debezium.connector.mysql.Source",
    fields=(
        *(("version", _TEXT), ("connector", _TEXT), ("name", _TEXT), ("ts_ms", _LONG)),
        *(("snapshot", _SNAPSHOT), ("db", _TEXT), ("sequence", _OPTIONAL_TEXT)),
        *(("table", _OPTIONAL_TEXT), ("server_id", _OPTIONAL_LONG), ("gtid", _OPTIONAL_TEXT)),
        *(("file", _OPTIONAL_TEXT), ("pos", _LONG), ("row", Schema("int32"))),
        *(("thread", _OPTIONAL_LONG), ("query", _OPTIONAL_TEXT)),
    ),
)
_TRANSACTION = Schema(
    "struct",
    True,
    "event.block",
    1,
    fields=(("id", _TEXT), ("total_order", _LONG), ("data_collection_order", _LONG)),
)


_NO_COLUMNS = '{"type":"record","name":"none","fields":[]}'


class _Plan(NamedTuple):
    """What is made of a table's schema once."""

    columns: Mapping[str, Column]
    key: Form
    envelope: Form

    def row(self, row: Row | None) -> dict[str, Any] | None:
        """Return a row with the connector's values."""
        if row is None:
            return None
        columns = self.columns
        return {
            name: None if value is None else columns[name].convert(value)
            for name, value in row.items()
        }


@dataclass(frozen=True, slots=True)
class DebeziumFormat:
    """Makes messages. `name` is the connector's `topic.prefix`.

    `decimals` is `decimal.handling.mode`. With `datetimes` = "auto" a DATETIME has microseconds
    from DATETIME(4) on, as the connector sends it.
    """

    name: str = "databus"
    decimals: Decimals = "precise"
    datetimes: Datetimes = "auto"
    converter: Converter = "json"

    def __call__(self, change: Change, now_ms: int) -> Message | AvroMessage | None:
        """Return the message of a change; None for statements.

        Raises SinkRefusedError if a value would lose digits, SchemaError.
        """
        if change.op not in _OPS:
            return None
        # Without a schema all rows of the table are gone, and the message has none.
        plan = _plan(self, change.schema or WriterSchema(change.source, 0, 0, _NO_COLUMNS))
        try:
            return self._message(change, plan, now_ms)
        except (ValueError, ArithmeticError) as error:
            raise SinkRefusedError(f"{change.source}: {error}", change) from error

    def _message(self, change: Change, plan: _Plan, now_ms: int) -> Message | AvroMessage:
        before, after = plan.row(change.before), plan.row(change.after)
        if self.converter != "json":
            before = _checked(plan, before) if _is_whole(plan, before) else None
            after = _checked(plan, after)
        envelope = {
            "before": before,
            "after": after,
            "source": self._source(change),
            "op": _OPS[change.op],
            "ts_ms": now_ms,
            "transaction": None,  # as without `provide.transaction.metadata`
        }
        key = plan.row(change.key) if change.key else None
        if self.converter == "avro":
            held = None if key is None else plan.key.avro(key)
            return AvroMessage(held, plan.envelope.avro(envelope))
        to_json = Form.json if self.converter == "json-schemas" else Form.plain_json
        held_key = None if key is None else to_json(plan.key, key)
        return Message(held_key, to_json(plan.envelope, envelope))

    def _source(self, change: Change) -> dict[str, Any]:
        """Return where the change comes from. What is not known is null."""
        name, gtid = split_source(change.source), change.transaction.gtid
        return {
            "version": __version__,
            "connector": "mysql",
            "name": self.name,
            "ts_ms": change.timestamp_ns // 1_000_000,
            "snapshot": "true" if change.op is ChangeOp.SNAPSHOT else "false",
            "db": name.database,
            "sequence": None,
            "table": name.table,
            "server_id": _server_id(gtid),
            "gtid": gtid,
            "file": None,
            "pos": change.scn,  # grows as a place in the log does
            "row": change.index,
            "thread": None,
            "query": None,
        }


@lru_cache(maxsize=4096)
def _plan(form: DebeziumFormat, schema: WriterSchema) -> _Plan:
    columns = connect_columns(schema, form.decimals, form.datetimes)
    name = f"{form.name}.{schema.source}"
    key = [
        (one.name, replace(one.schema, is_optional=False)) for one in columns.values() if one.is_key
    ]
    if not key:  # of a table without a primary key the whole row
        key = [(one.name, one.schema) for one in columns.values()]
    rows = [(one.name, one.schema) for one in columns.values()]
    return _Plan(
        columns, Form(Schema("struct", name=f"{name}.Key", fields=key)), _envelope(name, rows)
    )


def _envelope(name: str, columns: Sequence[tuple[str, Schema]]) -> Form:
    row = Schema("struct", True, f"{name}.Value", fields=columns)
    fields = (
        *(("before", row), ("after", row), ("source", _SOURCE), ("op", _TEXT)),
        *(("ts_ms", _OPTIONAL_LONG), ("transaction", _TRANSACTION)),
    )
    return Form(Schema("struct", False, f"{name}.Envelope", 1, fields=fields))


def _is_whole(plan: _Plan, row: Row | None) -> bool:
    return row is not None and row.keys() == plan.columns.keys()


def _checked(plan: _Plan, row: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a row that is one of its schema; raise ValueError for another."""
    for name, column in plan.columns.items() if row is not None else ():
        assert row is not None
        if name not in row:
            raise ValueError(f"{name} was not logged, and a schema has all columns")
        if not fits(column.schema, row[name]):
            raise ValueError(f"{name} = {row[name]} is larger than an int64")
    return row


def _server_id(gtid: str | None) -> int | None:
    """Return the server that MariaDB's GTID names; MySQL's has none."""
    parts = (gtid or "").split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None
