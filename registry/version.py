"""One version of one source's schema, as an immutable value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from databus.schemas.avro_rows import schema_id


class StoredVersion(NamedTuple):
    """A version without its source's id, which a hand-made file does not have."""

    source: str
    version: int
    text: str
    start_scn: int


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The schema of a source's rows from `start_scn` on.

    `version` counts from 1 within the source. Two versions of a source may have the same
    text and so the same `schema_id`: a column added and dropped again leaves the table as
    it was.
    """

    source: str
    src_id: int
    version: int
    text: str
    start_scn: int
    schema_id: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema_id", schema_id(self.text))
