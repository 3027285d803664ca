"""Output of `databus tail`: a coloured line for people, JSON for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from databus.client.consumer import DataEvent, Op
from databus.schemas.event.json import json_value

_STYLES = {
    Op.INSERT: "green",
    Op.UPDATE: "yellow",
    Op.DELETE: "red",
    Op.SNAPSHOT: "cyan",
    Op.TRUNCATE: "magenta",
}
MAX_VALUE_CHARS = 60


def line_of(event: DataEvent) -> Text:
    """Return one line: time, SCN, operation, source and columns.

    Long values are shortened; an update shows the old value of a changed column.
    """
    time = datetime.fromtimestamp(event.timestamp_ns / 1e9, UTC).astimezone()
    before = event.before or {}
    line = Text.assemble(
        (f"{time:%H:%M:%S.%f}"[:-3], "dim"),
        f" {event.scn} ",
        (f"{event.op.value:<8}", _STYLES[event.op]),
        (f" {event.source} ", "bold"),
    )
    for column, value in event.row.items():
        line.append(f" {column}=", "dim")
        if column in before and before[column] != value:
            line.append(_shown(before[column]), "strike dim")
            line.append("→")
        line.append(_shown(value))
    return line


def json_of(event: DataEvent) -> str:
    """Return the whole event as one line of JSON; values as in `output=json_plain_value`."""
    key = event.key
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
