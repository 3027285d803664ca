"""The GTIDs of the windows in a ring, after an SCN."""

from __future__ import annotations

from collections.abc import Iterator

from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.reader import RingReader
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.metadata import metadata_of
from databus.schemas.event.v2 import SMALLEST_BYTES, decode, peek


def gtids_after(reader: RingReader, scn: int) -> list[str] | None:
    """Return the GTIDs of the windows after `scn`, in order; None if the ring lacks some of them.

    Windows without rows have none.
    """
    try:
        position = reader.find(scn, WINDOW_DONE)
        if position is None or scn < reader.prev_scn:
            return None
        found: list[str] = []
        for gtid in _gtids_from(reader, position):
            if not found or found[-1] != gtid:
                found.append(gtid)
    except ScnNotFoundError:
        return None
    return found


def _gtids_from(reader: RingReader, position: int) -> Iterator[str]:
    _, tail = reader.newest()
    while position < tail:
        length = peek(reader.read(position, SMALLEST_BYTES)).length
        event, _ = decode(reader.read(position, length))
        metadata = metadata_of(event)
        if metadata is not None and metadata.gtid is not None:
            yield metadata.gtid
        position += length
