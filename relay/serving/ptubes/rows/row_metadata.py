"""What is read of a row's metadata for Ptubes' clients. Pure."""

from __future__ import annotations

from databus.schemas.event.event import Event
from databus.schemas.event.metadata import METADATA_DIGEST, EventMetadata, Op, metadata_of

try:
    from databus.relay.serving.ptubes.rows._row_columns import plain_metadata
except ImportError:  # not built: Python reads all
    is_compiled = False
else:
    is_compiled = True

_OPS = tuple(Op)


def row_metadata(event: Event) -> EventMetadata | None:
    """Return op, GTID, row number, row before, comment and notes; None if it has no metadata.

    The other members may be left out. Raises ProtocolError.
    """
    part = event.metadata
    if is_compiled and part is not None and part.digest == METADATA_DIGEST:
        found = plain_metadata(part.data)
        if found is not None:
            op, gtid, index, before, comment = found
            return EventMetadata(
                _OPS[op], _text(gtid), row_index=index, before=before, comment=_text(comment)
            )
    return metadata_of(event)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()
