"""A change as an object of JSON, the plain form of the sinks that write JSON."""

from __future__ import annotations

import json
from typing import Any

from databus.client.sinks.contract import Change, Row
from databus.client.sinks.formats.json_bytes import encoder
from databus.client.sinks.formats.message import Message
from databus.schemas.event.json import json_value


def plain_json(change: Change) -> dict[str, Any]:
    """Return a change as JSON: `op`, `source`, `key`, `before`, `after` and its place."""
    found: dict[str, Any] = json_value(_plain(change))
    return found


def json_line(change: Change) -> bytes:
    """Return a change as one line of JSON, with its end."""
    return json_bytes(_plain(change)) + b"\n"


def plain_message(change: Change, now_ms: int) -> Message:  # noqa: ARG001
    """Return the message: the key as an object of JSON, the change as another one."""
    return Message(plain_key(change), json_bytes(_plain(change)))


def plain_key(change: Change) -> bytes | None:
    """Return the key as an object of JSON; None for a change of a whole table."""
    return json_bytes(_row(change.key)) if change.key else None


def _exact(value: Any) -> str:
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


_to_bytes = encoder(json_value, _exact)


def json_bytes(value: Any) -> bytes:
    """Return JSON without blanks, in UTF-8. Values of rows are as `json_value` has them."""
    return _to_bytes(value)


def _plain(change: Change) -> dict[str, Any]:
    found: dict[str, Any] = {
        "op": change.op.value,
        "source": change.source,
        "key": _row(change.key),
        "before": _row(change.before),
        "after": _row(change.after),
        "scn": change.scn,
        "index": change.index,
        "committedNs": change.timestamp_ns,
        "gtid": change.transaction.gtid,
        "phase": change.transaction.phase,
    }
    if change.statement:
        found["statement"] = change.statement
    return found


def _row(row: Row | None) -> Any:
    return row if row is None or isinstance(row, dict) else dict(row)
