"""Partition filters by columns, for the rows of a store.

A row is where its columns say as it is served: in the table's current schema version. Only so it is
where the client, which computes the same, expects it.
"""

from __future__ import annotations

from databus.bootstrap.store.filter_sql import RowFilter, StoredFilter
from databus.bootstrap.store.rows_now import RowsNow
from databus.schemas.errors import SchemaNotFoundError
from databus.schemas.event.v2 import decode
from databus.schemas.filters import EventFilter, PartitionFilter
from databus.schemas.partitions.row_hashes import RowHasher
from databus.schemas.rendering import Render


def filter_of_rows(
    wanted: EventFilter | None, src_id: int, now: RowsNow, renew: Render
) -> StoredFilter | None:
    """Return a request's filter as a store applies it to a source.

    `renew` returns an event as it is served, with a schema that `now` has.
    """
    if isinstance(wanted, PartitionFilter) and wanted.by:
        return RowFilter(f"is_wanted_{src_id}", _WantedRows(wanted, now, renew).has)
    return wanted


class _WantedRows:
    def __init__(self, wanted: PartitionFilter, now: RowsNow, renew: Render) -> None:
        self._wanted, self._now, self._renew = wanted, now, renew
        self._hasher = RowHasher(wanted.by, self._schema_text)

    def has(self, data: bytes) -> bool:
        """Whether the partition of a row is wanted, or that of the row before its update.

        Events without a row are. Raises InvalidParameterError if a column was not logged.
        """
        event, _ = decode(self._renew(data))
        if event.is_control or event.payload is None:
            return True
        return any(map(self._wanted.wants, self._hasher.hashes(event).each))

    def _schema_text(self, digest: bytes) -> str:
        text = self._now.text(digest)
        if text is None:
            raise SchemaNotFoundError(f"no schema has the id {digest.hex()}")
        return text
