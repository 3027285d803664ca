"""The delete event of a row whose deletion nobody saw: made from the row's last event."""

from __future__ import annotations

from databus.schemas.event.event import Opcode, Part
from databus.schemas.event.metadata import (
    METADATA_DIGESTS,
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import decode, encode


def make_tombstone(event: bytes, scn: int, timestamp_ns: int) -> bytes:
    """Return the event that says that a row, given as its last event, was gone at `scn`.

    It has the row as it was last known, and no place in the change log. Raises
    ProtocolError for an event that is damaged.
    """
    last, _ = decode(event)
    deleted = last._replace(
        scn=scn, timestamp_ns=timestamp_ns, opcode=Opcode.DELETE, metadata=_metadata(last.metadata)
    )
    return encode(deleted)


def _metadata(last: Part | None) -> Part | None:
    """Return metadata that says `delete`; none where the relay sends none of ours."""
    if last is None or last.digest not in METADATA_DIGESTS:
        return None
    told = decode_metadata(last.data, last.digest).notes
    notes = Notes(told.absent, (), told.raw) if told is not None else None
    return metadata_part(encode_metadata(EventMetadata(Op.DELETE, notes=notes)))
