"""What the commits of a job's Delta tables tell: each batch once, each transaction in one batch."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from databus.client.spark.targets.changes import AS_OF, SCN

TX = "databus:batch:"
# Apps with batch numbers that are not those of a query.
OTHERS = ("shape:", "reload:", "load-", "catch-up:")
MOST_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Batch:
    """One commit of a table. `number` is None for one that is not of the query.

    `scns`: of the changes that are in the table since this commit; `snapshot_scn`: the newest SCN
    as of which it took rows of a snapshot.
    """

    version: int
    app: str
    number: int | None
    scns: frozenset[int] = field(default_factory=frozenset)
    snapshot_scn: int = -1


def batches_of(folder: Path) -> list[Batch]:
    """Return the commits of a Delta table, oldest first."""
    found, known = list[Batch](), set[int]()
    for version, entries in _entries(folder):
        app, number = _query_of(entries)
        scns, snapshot_scn = set[int](), -1
        for path in [entry["add"]["path"] for entry in entries if "add" in entry]:
            rows = pq.read_table(folder / path, partitioning=None)
            if {SCN, AS_OF} <= {*rows.column_names}:
                for scn, as_of in zip(rows[SCN].to_pylist(), rows[AS_OF].to_pylist(), strict=True):
                    if as_of is not None and as_of != scn:
                        snapshot_scn = max(snapshot_scn, as_of)
                    if scn is not None:
                        scns.add(scn)
        found.append(Batch(version, app, number, frozenset(scns - known), snapshot_scn))
        known |= scns
    return found


def twice_committed(tables: Mapping[str, Sequence[Batch]]) -> list[str]:
    """Return the batches that a table has in two commits: of a query, batches rise."""
    found = []
    for table, batches in tables.items():
        last: dict[str, int] = {}
        for one in batches:
            if one.number is None:
                continue
            if one.number <= last.get(one.app, -1):
                found.append(f"{table}: batch {one.number} again in version {one.version}")
            last[one.app] = one.number
    return found


def torn_transactions(tables: Mapping[str, Sequence[Batch]]) -> tuple[int, list[str]]:
    """Return how many transactions are in several tables, and those that are in several batches.

    What a table may have from a snapshot, or from a reload, does not count.
    """
    places: dict[int, dict[str, int]] = defaultdict(dict)
    for table, batches in tables.items():
        begun = max((one.snapshot_scn for one in batches), default=-1)
        for one in batches:
            for scn in one.scns if one.number is not None else ():
                if scn > begun:
                    places[scn][table] = one.number or 0
    several = {scn: of for scn, of in places.items() if len(of) > 1}
    torn = [
        f"scn {scn} is in batches {of}" for scn, of in several.items() if len({*of.values()}) > 1
    ]
    return len(several), torn[:MOST_PROBLEMS]


def _entries(folder: Path) -> Iterator[tuple[int, list[dict[str, dict[str, str]]]]]:
    for file in sorted((folder / "_delta_log").glob("*.json")):
        yield int(file.stem), [json.loads(line) for line in file.read_text().splitlines()]


def _query_of(entries: Sequence[Mapping[str, Mapping[str, object]]]) -> tuple[str, int | None]:
    for entry in entries:
        one = entry.get("txn", {})
        app = str(one.get("appId", ""))
        if app.startswith(TX) and not app.removeprefix(TX).startswith(OTHERS):
            return app, int(str(one["version"]))
    return "", None
