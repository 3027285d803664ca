"""CloudEvents 1.0 in their structured JSON form; `data` is the plain form of the change."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from databus.client.sinks.contract import Change
from databus.client.sinks.formats.message import Message
from databus.client.sinks.formats.plain import json_bytes, plain_json, plain_key

CONTENT_TYPE = b"application/cloudevents+json; charset=UTF-8"


def cloud_event(change: Change, now_ms: int) -> Message:  # noqa: ARG001
    """Return the event. `source` and `id` together name the change, also when it comes again."""
    event = {
        "specversion": "1.0",
        "id": change.id,
        "source": f"/databus/{quote(change.source, safe='')}",
        "type": f"databus.{change.op.value}",
        "time": _time(change.timestamp_ns),
        "datacontenttype": "application/json",
        "data": plain_json(change),
    }
    return Message(plain_key(change), json_bytes(event), {"content-type": CONTENT_TYPE})


def _time(timestamp_ns: int) -> str:
    seconds, rest = divmod(timestamp_ns, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return moment.isoformat().replace("+00:00", "Z")
