"""Formats a comparison: tables for the terminal, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from databus.bootstrap.verify.comparison import Comparison, Difference, Kind, Row
from databus.schemas.event.json import json_value

MOST_VALUE_CHARS = 40
_NO_KEY = "has no key: distinct rows were compared, not how often each is there"


def shown(comparisons: Sequence[Comparison]) -> Iterator[RenderableType]:
    """Yield a table of the counts, then a table of differing rows for each source."""
    table = Table("source", "rows compared", *(str(kind) for kind in Kind), "moving", "result")
    for found in comparisons:
        counts = (f"{found.counts[kind]:,}" for kind in Kind)
        table.add_row(found.source, f"{found.rows:,}", *counts, f"{found.moving:,}", _result(found))
    yield table
    for found in comparisons:
        if not found.has_key:
            yield Text(f"{found.source} {_NO_KEY}")
        if found.examples:
            yield _differences(found)


def json_of(comparisons: Sequence[Comparison]) -> str:
    """Return the comparisons as one JSON object, by source."""
    return json.dumps({found.source: _json(found) for found in comparisons}, ensure_ascii=False)


def _result(found: Comparison) -> str:
    if not found.is_whole:
        return "stopped"
    return "the same" if found.is_same else "differs"


def _differences(found: Comparison) -> Table:
    title = f"{found.source}: the first differing rows"
    table = Table("key", "store", "scn", "in the database", "in the store", title=title)
    for one in found.examples:
        sides = (_values(one.in_source, one.in_store), _values(one.in_store, one.in_source))
        table.add_row(_key(one.key), str(one.kind), str(one.scn) if one.scn >= 0 else "", *sides)
    return table


def _values(row: Row | None, other: Row | None) -> str:
    """Return the values in which two rows differ; all values when there is only one row."""
    if row is None:
        return ""
    differing = [name for name in row if other is None or row[name] != other.get(name)]
    return ", ".join(f"{name}={_short(row[name])}" for name in differing)


def _short(value: Any) -> str:
    text = json.dumps(json_value(value), ensure_ascii=False)
    return text if len(text) <= MOST_VALUE_CHARS else f"{text[: MOST_VALUE_CHARS - 1]}…"


def _key(key: int | bytes) -> str:
    return str(key) if isinstance(key, int) else key.decode("utf-8", "replace")


def _json(found: Comparison) -> dict[str, Any]:
    return {
        "isSame": found.is_same,
        "isWhole": found.is_whole,
        "hasKey": found.has_key,
        "rows": found.rows,
        **{str(kind): found.counts[kind] for kind in Kind},
        "moving": found.moving,
        "differences": [_json_difference(one) for one in found.examples],
    }


def _json_difference(one: Difference) -> dict[str, Any]:
    return {
        "key": one.key if isinstance(one.key, int) else _key(one.key),
        "kind": str(one.kind),
        "scn": one.scn,
        "inSource": json_value(one.in_source),
        "inStore": json_value(one.in_store),
    }
