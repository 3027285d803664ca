"""Output of `databus tail`: a coloured line for people, JSON for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from databus.client.consumer import DataEvent, Op, StatementEvent
from databus.schemas.event.json import json_value

_STYLES = {
    Op.INSERT: "green",
    Op.UPDATE: "yellow",
    Op.DELETE: "red",
    Op.SNAPSHOT: "cyan",
    Op.TRUNCATE: "magenta",
}
MAX_VALUE_CHARS = 60


def line_of(event: DataEvent | StatementEvent) -> Text:
    """Return one line: time, SCN, operation, source and columns, or a statement.

    Long values are shortened; an update shows the old value of a changed column.
    """
    if isinstance(event, StatementEvent):
        line = _begin(event, "rows unknown", "bold red", ", ".join(event.sources))
        return line.append(_shown(event.statement))
    before = event.before or {}
    line = _begin(event, f"{event.op.value:<8}", _STYLES[event.op], event.source)
    for column, value in event.row.items():
        line.append(f" {column}=", "dim")
        if column in before and before[column] != value:
            line.append(_shown(before[column]), "strike dim")
            line.append("→")
        line.append(_shown(value))
    return line


def _begin(event: DataEvent | StatementEvent, op: str, style: str, source: str) -> Text:
    time = datetime.fromtimestamp(event.timestamp_ns / 1e9, UTC).astimezone()
    return Text.assemble(
        (f"{time:%H:%M:%S.%f}"[:-3], "dim"),
        f" {event.scn} ",
        (op, style),
        (f" {source} ", "bold"),
    )


def json_of(event: DataEvent | StatementEvent) -> str:
    """Return the whole event as one line of JSON; values as in `output=json_plain_value`."""
    if isinstance(event, StatementEvent):
        return json.dumps({"op": "statement", **event._asdict()}, ensure_ascii=False)
    key = event.wire_key
    fields: dict[str, Any] = {
        "scn": event.scn,
        "index": event.index,
        "source": event.source,
        "op": event.op.value,
        "key": key if isinstance(key, int) else key.decode("utf-8", "replace"),
        "timestamp_ns": event.timestamp_ns,
        "row": json_value(event.row),
    }
    if event.before is not None:
        fields["before"] = json_value(event.before)
    if event.gtid is not None:
        fields["gtid"] = event.gtid
    if event.absent:
        fields["absent"] = event.absent
    if event.raw:
        fields["raw"] = event.raw
    return json.dumps(fields, ensure_ascii=False)


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, str | bytes) else json.dumps(json_value(value))
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"
