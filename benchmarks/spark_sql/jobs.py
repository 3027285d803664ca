"""The three job files, and the expected result of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.spark_sql.shop import Shop

WIDE_VIEW = "wide_orders"

_HEAD = """\
-- target: delta:{folder}/{name}
-- checkpoint: {folder}/jobs/{name}
-- relays: {east.url}
-- bootstrap_servers: {east.bootstrap_url}
-- max_rows_per_trigger: {rows}
-- trigger_seconds: 0.5
"""
_WEST = """\
-- relays.west: {west.url}
-- bootstrap_servers.west: {west.bootstrap_url}
"""
_WHERE = "SELECT id, customer, total * 2 AS twice FROM {place}orders\n"
_WHERE += "WHERE status = 'open' AND total > 20\n"
_UNION = """\
SELECT 'east' AS shard, id, status, total FROM east.shop.orders
UNION ALL
SELECT 'west', id, status, total FROM west.shop.orders WHERE total IS NOT NULL
"""
_JOIN = """\
SELECT o.id, o.status, c.name AS customer, k.name AS country, o.total + 1 AS total
FROM {place}orders o
INNER JOIN {place}customers c ON c.id = o.customer
LEFT JOIN {place}countries k ON k.code = c.country
WHERE o.total > 10 OR k.name = 'country 1'
"""
JOBS = ("where", "union", "join")


def write_jobs(folder: Path, east: Any, west: Any, rows: int) -> dict[str, Path]:
    """Write the job files; `east` and `west` have their servers' URLs."""
    texts = {
        "where": _HEAD + _WHERE,
        "union": _HEAD + _WEST + _UNION,
        "join": _HEAD + _JOIN,
    }
    files = {}
    for name, text in texts.items():
        files[name] = folder / f"{name}.sql"
        values = {"folder": folder, "name": name, "east": east, "west": west, "rows": rows}
        files[name].write_text(text.format(**values, place="shop."), encoding="utf-8")
    return files


def make_view(shop: Shop) -> None:
    """Make the view that the wide table must equal."""
    shop.execute("CREATE VIEW {place}" + f"{WIDE_VIEW} AS {_JOIN}")


def expected(name: str, east: Shop, west: Shop) -> list[tuple[Any, ...]]:
    """Return the rows that a job's target must have, sorted."""
    if name == "where":
        rows = east.answer(_WHERE)
    elif name == "join":
        rows = east.answer("SELECT * FROM {place}" + WIDE_VIEW)
    else:
        select = "SELECT '{shard}', id, status, total FROM {{place}}orders"
        rows = east.answer(select.format(shard="east"))
        rows += west.answer(select.format(shard="west") + " WHERE total IS NOT NULL")
    return in_order(rows)


def in_order(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return rows in an order that is the same on both sides."""
    return sorted((tuple(row) for row in rows), key=repr)
