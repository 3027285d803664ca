"""Maxwell's JSON: `database`, `table`, `type`, `ts`, `xid`, `commit`, `data` and `old`.

The SCN is `xid`: like Maxwell's it is the same in all rows of a transaction, and only there.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from databus.client.sinks.contract import Change, ChangeOp, Row
from databus.client.sinks.formats.message import Message
from databus.client.sinks.formats.source_names import split_source
from databus.client.sinks.formats.sql_texts import time_text
from databus.schemas.event.json import json_value

_TYPES = {
    ChangeOp.INSERT: "insert",
    ChangeOp.UPDATE: "update",
    ChangeOp.DELETE: "delete",
    ChangeOp.SNAPSHOT: "bootstrap-insert",
}


def maxwell_message(change: Change, now_ms: int) -> Message | None:  # noqa: ARG001
    """Return the message; None for a truncate and for statements, which Maxwell does not send."""
    if change.op not in _TYPES:
        return None
    name = split_source(change.source)
    fields: dict[str, Any] = {
        "database": name.database,
        "table": name.table,
        "type": _TYPES[change.op],
        "ts": change.timestamp_ns // 1_000_000_000,
    }
    if change.op is not ChangeOp.SNAPSHOT:
        fields["xid"] = change.scn
        # The last row of a transaction has `commit`, every other one its number.
        fields |= {"xoffset": change.index} if change.position is None else {"commit": True}
        if change.transaction.gtid is not None:
            fields["gtid"] = change.transaction.gtid
    fields["data"] = change.before if change.after is None else change.after
    if fields["data"] is None:
        fields["data"] = change.key  # of the deleted row no more is known
    if change.op is ChangeOp.UPDATE:
        fields["old"] = _changed(change.before, change.after)
    key = {"database": name.database, "table": name.table}
    key |= {f"pk.{column}": value for column, value in change.key.items()}
    return Message(_text(key).encode(), _text(fields).encode())


def _changed(before: Row | None, after: Row | None) -> Row:
    """Return the old values of the columns that have changed."""
    new, unknown = after or {}, object()
    return {
        column: value
        for column, value in (before or {}).items()
        if new.get(column, unknown) != value
    }


def _text(value: Any) -> str:
    """Return a value as JSON; a decimal is a number with all of its digits."""
    if isinstance(value, dict):
        members = (f"{json.dumps(k, ensure_ascii=False)}:{_text(v)}" for k, v in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, Decimal) and value.is_finite():
        return format(value, "f")
    if isinstance(value, date | timedelta):
        value = time_text(value)
    elif isinstance(value, bytes):
        value = b64encode(value).decode()
    return json.dumps(json_value(value), ensure_ascii=False)
