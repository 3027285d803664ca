"""Converts a checkpoint's `windowOffset` to a place in a store's log, and back.

`windowOffset` counts the events of a window that belong to the requested sources,
filtered out or not: the same number means the same event in every store.
A store's own index counts the events of all its sources.
"""

from __future__ import annotations

from collections.abc import Sequence

from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import WHOLE_WINDOW, LogPlace

_INDEXES = "select idx from log_{src_id} indexed by log_{src_id}_place where scn = ?1"
_NTH = "{indexes} order by idx limit 1 offset ?2"
_COUNT = """
select count(*) from log_{src_id} indexed by log_{src_id}_place where scn = ?1 and idx <= ?2
"""


def place_of(store: Store, src_ids: Sequence[int], scn: int, offset: int) -> LogPlace | None:
    """Return the place after `offset` events of a window; None when it has fewer.

    An offset of -1 is the whole window. Finding the place counts the window's events in
    an index that has them side by side.
    """
    if offset == -1:
        return scn, WHOLE_WINDOW
    if offset == 0:
        # Nothing of the window is consumed: SCNs are integers, so the one before is its end.
        return scn - 1, WHOLE_WINDOW
    indexes = " union all ".join(_INDEXES.format(src_id=src_id) for src_id in src_ids)
    with store.file.reading("looking for a place in a window", scn=scn):
        sql = _NTH.format(indexes=indexes)
        found = store.file.connection.execute(sql, (scn, offset - 1)).fetchone()
    return None if found is None else (scn, found[0])


def offset_of(store: Store, src_ids: Sequence[int], place: LogPlace) -> int:
    """Return the number of its window's events before a place; -1 for the whole window."""
    scn, index = place
    if index == WHOLE_WINDOW:
        return -1
    with store.file.reading("counting the events of a window", scn=scn):
        execute = store.file.connection.execute
        return sum(execute(_COUNT.format(src_id=src_id), place).fetchone()[0] for src_id in src_ids)
