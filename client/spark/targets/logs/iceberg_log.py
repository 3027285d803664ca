"""The commit log of an Iceberg table: with each of its snapshots, and as a table property.

A table can be set back to an earlier snapshot, which leaves its properties as they are. So
each commit with entries has them in its snapshot's summary, too, and the rows have those of
the current snapshot, or of its nearest ancestor that has any: another writer's snapshot has
none. The property is for tables, and readers, of earlier versions. It counts if there is no
summary with entries among the ancestors since the commit that wrote it, as far as snapshots
are there: they expire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from pyiceberg.table import Table

LOG = "databus.log"
_SINCE = "databus.log.sequence"


class IcebergEntries(NamedTuple):
    """The entries of a table. `is_known`: False if its rows have earlier ones, not these."""

    entries: Mapping[str, int]
    is_known: bool = True


def entries_of(table: Table) -> IcebergEntries:
    """Return the entries that the rows of a table have."""
    snapshot = table.current_snapshot()
    oldest = -1
    while snapshot is not None:
        summary = snapshot.summary
        if summary is not None and (text := summary.additional_properties.get(LOG)):
            return IcebergEntries(json.loads(text))
        oldest, parent = snapshot.sequence_number or 0, snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)
    told = json.loads(table.properties.get(LOG) or "{}")
    return IcebergEntries(told, oldest >= int(table.properties.get(_SINCE, -1)))


def in_summary(entries: Mapping[str, int]) -> dict[str, str]:
    """Return what a snapshot whose rows have these entries says of them in its summary."""
    return {LOG: json.dumps(dict(entries))}


def in_properties(table: Table, entries: Mapping[str, int]) -> dict[str, str]:
    """Return the properties that come with that snapshot, as the table's next one."""
    return {**in_summary(entries), _SINCE: str(table.metadata.next_sequence_number())}
