"""What sinks that hold rows by key make of a change: its key as a text, and the whole row."""

from __future__ import annotations

from typing import Any

from databus.client.sinks.contract import Change, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.ready.templates import value_text
from databus.schemas.columns.avro_columns import columns_of


def key_text(change: Change) -> str:
    """Return the values of the primary key, joined by colons; different for different keys."""
    return ":".join(map(_part, change.key.values()))


def whole_row(change: Change) -> Row:
    """Return the row after a change; raise SinkRefusedError if columns of it are not known."""
    row = change.after
    assert row is not None
    if change.schema is not None and len(row) < len(columns_of(change.schema)):
        lacking = [one.name for one in columns_of(change.schema) if one.name not in row]
        raise SinkRefusedError(
            f"{change.source}: the database has not logged {', '.join(lacking)}, and the sink "
            "writes whole rows: binlog_row_image = FULL",
            change,
        )
    return row


def _part(value: Any) -> str:
    if value is None:
        return "%NULL"  # nothing else has a % that is not %25 or %3A
    return value_text(value).replace("%", "%25").replace(":", "%3A")
