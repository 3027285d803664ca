"""One event as one line of JSON, for people, curl and the `json` outputs.

`json` has the value's Avro bytes in base64, as in Databus; `json_plain_value` has the row itself
and the metadata.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from databus.schemas.avro_rows import RowCodec
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import EventMetadata, Notes, metadata_of


def json_line(event: Event) -> bytes:
    """Return the event in the form of `output=json`, with the newline."""
    fields = _header(event, "JSON")
    fields["value"] = _base64(event.value)
    return _line(fields)


def json_plain_value_line(event: Event, codec: RowCodec | None) -> bytes:
    """Return the event in the form of `output=json_plain_value`, with the newline.

    `codec` is that of the payload's schema; None for an event without a row, and for a control
    event, whose value is its text. Absent columns are omitted. Raises ProtocolError if the value
    cannot be read.
    """
    fields = _header(event, "JSON_PLAIN_VALUE")
    if event.is_control:
        fields["value"] = event.value.decode("utf-8", "replace")
        return _line(fields)
    metadata = metadata_of(event)
    notes = (metadata and metadata.notes) or Notes()
    row = None if codec is None else codec.decode(event.value, notes.absent)
    fields["value"] = json_value(row)
    if metadata is not None:
        fields["metadata"] = _metadata_fields(metadata)
        if codec is not None and metadata.before is not None:
            fields["before"] = json_value(codec.decode(metadata.before, notes.before_absent))
    return _line(fields)


def json_value(value: Any) -> Any:
    """Return a row's value in a JSON form without loss.

    A Decimal becomes its digits, bytes become base64, dates and times ISO 8601, and a float that
    is not finite its name. A timedelta is a number of microseconds, as an SQL TIME in Avro is.
    """
    if isinstance(value, dict):
        return {key: json_value(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(held) for held in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value


def _metadata_fields(metadata: EventMetadata) -> dict[str, Any]:
    """Return the metadata without the row before, and with notes only if there are some."""
    fields = metadata._asdict()
    del fields["before"]
    notes = fields.pop("notes")
    if notes is not None:
        fields["notes"] = notes._asdict()
    return fields


def _header(event: Event, value_encoding: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if not event.is_control:
        fields["opcode"] = event.opcode.name
    if isinstance(event.key, int):
        fields["key"] = event.key
    else:
        fields["keyBytes"] = _base64(event.key)
    fields |= {
        "sequence": event.scn,
        "logicalPartitionId": event.partition_id,
        "physicalPartitionId": event.partition_id,
        "timestampInNanos": event.timestamp_ns,
        "srcId": event.src_id,
        "schemaId": _base64(event.schema_id),
        "valueEnc": value_encoding,
    }
    if event.is_eop:
        fields["endOfPeriod"] = True
    if event.is_traced:
        fields["traceEnabled"] = True
    return fields


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
