"""A change as an object of JSON, the plain form of the sinks that write JSON."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from databus.client.sinks.contract import Change, Row
from databus.client.sinks.formats.json_bytes import encoder
from databus.client.sinks.formats.message import Message
from databus.schemas.event.json import json_value


def plain_json(change: Change) -> dict[str, Any]:
    """Return a change as JSON: `op`, `source`, `key`, `before`, `after` and its place."""
    found: dict[str, Any] = json.loads(_change_bytes(change, _row_bytes(change.key), b"}"))
    return found


def json_line(change: Change) -> bytes:
    """Return a change as one line of JSON, with its end."""
    return _change_bytes(change, _row_bytes(change.key), b"}\n")


def plain_message(change: Change, now_ms: int) -> Message:  # noqa: ARG001
    """Return the message: the key as an object of JSON, the change as another one."""
    key = _row_bytes(change.key)
    return Message(key if change.key else None, _change_bytes(change, key, b"}"))


def plain_key(change: Change) -> bytes | None:
    """Return the key as an object of JSON; None for a change of a whole table."""
    return _row_bytes(change.key) if change.key else None


def _exact(value: Any) -> str:
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


_to_bytes = encoder(json_value, _exact)


def json_bytes(value: Any) -> bytes:
    """Return JSON without blanks, in UTF-8. Values of rows are as `json_value` has them."""
    return _to_bytes(value)


def _change_bytes(change: Change, key: bytes, end: bytes) -> bytes:
    """Return an object; hot path: only rows are new, and the key is written once."""
    before, after, transaction = change.before, change.after, change.transaction
    return b"".join(
        (
            _begin(change.op, change.source),
            key,
            b',"before":',
            b"null" if before is None else _row_bytes(before),
            b',"after":',
            b"null" if after is None else _row_bytes(after),
            b',"scn":%d,"index":%d,"committedNs":%d,'
            % (change.scn, change.index, change.timestamp_ns),
            _transaction_bytes(transaction.gtid, transaction.phase),
            b',"statement":' + json_bytes(change.statement) if change.statement else b"",
            end,
        )
    )


def _row_bytes(row: Row) -> bytes:
    return _to_bytes(row if isinstance(row, dict) else dict(row))


@lru_cache(maxsize=1024)
def _begin(op: str, source: str) -> bytes:
    return b'{"op":%b,"source":%b,"key":' % (json_bytes(str(op)), json_bytes(source))


@lru_cache(maxsize=64)
def _transaction_bytes(gtid: str | None, phase: str) -> bytes:
    return b'"gtid":%b,"phase":%b' % (json_bytes(gtid), json_bytes(phase))
