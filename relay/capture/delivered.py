"""The GTIDs of the windows in a ring, after an SCN."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.events import decoded_events
from databus.relay.ring.reader import RingReader
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.metadata import metadata_of


def gtids_after(reader: RingReader, scn: int) -> list[str] | None:
    """Return the GTIDs of the windows after `scn`, in order; None if one of them is not known.

    Such as one that the ring lacks, or a transaction that MySQL logs without a GTID. Windows
    without rows have none.
    """
    try:
        position = reader.find(scn, WINDOW_DONE)
        if position is None or scn < reader.prev_scn:
            return None
        found: list[str] = []
        for event in decoded_events(reader, position):
            if event.is_control:
                continue
            metadata = metadata_of(event)
            gtid = None if metadata is None else metadata.gtid
            if gtid is None:
                return None
            if found[-1:] != [gtid]:
                found.append(gtid)
    except ScnNotFoundError:
        return None
    return found


def gtids_in(path: Path, scn: int) -> list[str] | None:
    """Return the GTIDs of a ring's windows after an SCN; see `gtids_after`."""
    with closing(RingReader.open(path)) as reader:
        return gtids_after(reader, scn)
