"""A change as an object of JSON, the plain form of the sinks that write JSON."""

from __future__ import annotations

import json
from typing import Any

from databus.client.sinks.contract import Change, Row
from databus.schemas.event.json import json_value


def plain_json(change: Change) -> dict[str, Any]:
    """Return a change as JSON: `op`, `source`, `key`, `before`, `after` and its place."""
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


def json_line(change: Change) -> str:
    """Return a change as one line of JSON, with its end."""
    return json.dumps(plain_json(change), ensure_ascii=False, separators=(",", ":")) + "\n"


def _row(row: Row | None) -> Any:
    return None if row is None else json_value(dict(row))
