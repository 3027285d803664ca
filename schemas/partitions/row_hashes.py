"""The hashes of an event from which its partitions are computed.

An event has the hash of its row and, if it is an update with the row before it, of that row too.
If the two are of different partitions, the row has moved from one partition to the other, and
both are told: one gains the row, the other one loses it.

By key, the hash is `filters.key_hash` of the event's key, and an event has one: an update that
changes the key is two events. By columns it is the hash of the key that these columns would make
(`event/keys.py`), so that an order by its `customer_id` is where the customer is by its `id`.
A value that was not logged is not guessed: InvalidParameterError says what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import InvalidParameterError, RowError
from databus.schemas.event.event import Event
from databus.schemas.event.keys import text_key
from databus.schemas.event.metadata import metadata_of
from databus.schemas.filters import key_hash
from databus.schemas.protocol import Parameter
from databus.schemas.rendering import SchemaText

_NOT_KNOWN = (
    "is not in the log for a row of {source}, so its partition is not known: let the source log "
    "whole rows (binlog_row_image = FULL), or partition by the primary key"
)


class RowHashes(NamedTuple):
    """The hash of an event's row, and of the row before an update; None without that row."""

    row: int
    before: int | None = None

    @property
    def each(self) -> tuple[int, ...]:
        """Both hashes, or the one that there is."""
        return (self.row,) if self.before is None else (self.row, self.before)


def hash_of_columns(source: str, by: tuple[str, ...], row: Mapping[str, Any]) -> int:
    """Return the hash of a row by columns.

    Raises InvalidParameterError if a column is not in the row.
    """
    try:
        return key_hash(text_key(source, by, row))
    except RowError as error:
        missing = [column for column in by if column not in row]
        rule = _NOT_KNOWN.format(source=source) if missing else f"cannot be hashed: {error}"
        raise InvalidParameterError(Parameter.FILTERS, ",".join(missing or by), rule) from error


def row_hashes(
    source: str,
    by: tuple[str, ...],
    key: int | bytes,
    row: Callable[[], Mapping[str, Any]],
    before: Callable[[], Mapping[str, Any] | None],
) -> RowHashes:
    """Return the hashes of an event, whose rows are only read if columns are hashed.

    Raises InvalidParameterError if a column was not logged.
    """
    if not by:
        return RowHashes(key_hash(key))
    former = before()
    return RowHashes(
        hash_of_columns(source, by, row()),
        None if former is None else hash_of_columns(source, by, former),
    )


class RowHasher:
    """Computes the hashes of events by columns; `schema_text` finds the schemas of their rows."""

    def __init__(self, by: tuple[str, ...], schema_text: SchemaText) -> None:
        self.by = by
        self.schema_text = schema_text

    def hashes(self, event: Event) -> RowHashes:
        """Return the hashes of an event with a row.

        Raises InvalidParameterError if a column is not in its table or was not logged, and
        SchemaNotFoundError if the row's schema is not known.
        """
        codec = row_codec(self.schema_text(event.schema_id))
        for column in self.by:
            if column not in codec.written_columns:
                raise InvalidParameterError(
                    Parameter.FILTERS,
                    column,
                    f"{codec.source} has no such column; it has {', '.join(codec.written_columns)}",
                )
        metadata = metadata_of(event)
        notes = None if metadata is None else metadata.notes
        former = None if metadata is None else metadata.before
        return row_hashes(
            codec.source,
            self.by,
            event.key,
            lambda: codec.decode(event.value, () if notes is None else notes.absent),
            lambda: (
                None
                if former is None
                else codec.decode(former, () if notes is None else notes.before_absent)
            ),
        )
