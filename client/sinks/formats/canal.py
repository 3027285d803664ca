"""Canal's flat message: rows as columns of text, with the old values of what an update changed.

`mysqlType` and `sqlType` are null: a change has the values of its columns and not their types.
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from databus.client.sinks.contract import Change, ChangeOp, Row
from databus.client.sinks.formats.message import Message
from databus.client.sinks.formats.plain import json_bytes, plain_key
from databus.client.sinks.formats.source_names import split_source
from databus.client.sinks.formats.sql_texts import time_text

_TYPES = {
    ChangeOp.INSERT: "INSERT",
    ChangeOp.UPDATE: "UPDATE",
    ChangeOp.DELETE: "DELETE",
    ChangeOp.SNAPSHOT: "INSERT",
    ChangeOp.TRUNCATE: "TRUNCATE",
    ChangeOp.DDL: "QUERY",
    ChangeOp.STATEMENT: "QUERY",
}
_DDL = (ChangeOp.TRUNCATE, ChangeOp.DDL)


def canal_message(change: Change, now_ms: int) -> Message:
    """Return the message of a change."""
    name = split_source(change.source)
    is_row = bool(change.key)
    message = {
        "data": [_texts(_row_of(change))] if is_row else None,
        "database": name.database,
        "es": change.timestamp_ns // 1_000_000,
        "gtid": change.transaction.gtid or "",
        "id": change.scn,
        "isDdl": change.op in _DDL,
        "mysqlType": None,
        "old": [_old(change.before, change.after)] if _has_old(change) else None,
        "pkNames": list(change.key) if is_row else None,
        "sql": change.statement,
        "sqlType": None,
        "table": name.table,
        "ts": now_ms,
        "type": _TYPES[change.op],
    }
    return Message(plain_key(change), json_bytes(message))


def _row_of(change: Change) -> Row:
    """Return the row after the change; of a deleted row the one before it, or its key."""
    row = change.before if change.after is None else change.after
    return change.key if row is None else row


def _has_old(change: Change) -> bool:
    return change.op is ChangeOp.UPDATE and change.before is not None


def _old(before: Row | None, after: Row | None) -> dict[str, str | None]:
    new, unknown = after or {}, object()
    changed = {
        column: value
        for column, value in (before or {}).items()
        if new.get(column, unknown) != value
    }
    return _texts(changed)


def _texts(row: Row) -> dict[str, str | None]:
    return {column: _text(value) for column, value in row.items()}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("latin-1")  # a character for each byte, as Canal does
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date | timedelta):
        return time_text(value)
    return str(value)
