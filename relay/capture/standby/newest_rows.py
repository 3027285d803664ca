"""The newest window with rows in a ring: by it, a log that is read next proves to be the same.

Empty windows will not do: each relay writes some of its own while nothing is committed.
"""

from __future__ import annotations

import sys
from collections.abc import Container
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.events import decoded_events
from databus.relay.ring.reader import RingReader
from databus.relay.sources.upstream.source import mark_of_window
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import MAX_SCN


class RowsWindow(NamedTuple):
    """A window with rows. `src_id`: the source of its last row that was looked for."""

    scn: int
    timestamp_ns: int
    src_id: int


def newest_rows_in(path: Path) -> LogMark | None:
    """Return the mark of the newest window with rows in a ring; None without one."""
    with closing(RingReader.open(path)) as reader:
        newest = newest_rows(reader)
    if newest is None:
        return None
    return mark_of_window(newest.scn, newest.scn, newest.timestamp_ns)


def newest_rows(
    reader: RingReader,
    until_scn: int = MAX_SCN - 1,
    most_blocks: int = sys.maxsize,
    src_ids: Container[int] | None = None,
) -> RowsWindow | None:
    """Return the newest window with rows up to `until_scn`; None without one.

    No more than `most_blocks` of the ring's index are read. `src_ids`: the rows' sources; None =
    any.
    """
    behind_scn = until_scn + 1
    try:
        position = reader.find(until_scn, WINDOW_DONE)
        begin = reader.tail if position is None else position
        for _ in range(most_blocks):
            found = reader.block_before_position(begin)
            if found is None:
                return None
            begin, first_scn, newest = found, None, None
            for event in decoded_events(reader, begin):
                if event.scn >= behind_scn:
                    break  # the blocks after that have none
                first_scn = event.scn if first_scn is None else first_scn
                if not event.is_control and (src_ids is None or event.src_id in src_ids):
                    newest = RowsWindow(event.scn, event.timestamp_ns, event.src_id)
            if newest is not None:
                return newest
            behind_scn = behind_scn if first_scn is None else first_scn
    except ScnNotFoundError:
        return None
    return None
