"""The rules of comparing a store with its database.

The producer must have passed everything that was visible to the read; `verify` ensures
that. The store's rows are compared as they are served: converted through every ALTER since
they were written. Rows of the same schema are equal when their bytes are; rows of
different schemas are equal when they have the same columns with the same values. A table
that is altered during the comparison is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, StoreRow
from databus.bootstrap.verify.scratch_table import Candidate
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.errors import BootstrapError
from databus.schemas.event.event import Event
from databus.schemas.event.v2 import decode

Row = Mapping[str, Any]


class Kind(StrEnum):
    """The kind of a difference."""

    DIFFERS = "differs"
    MISSING = "missing"  # in the store
    SURPLUS = "surplus"  # in the store


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs; `scn` is the store's, -1 when it does not have the row."""

    key: int | bytes
    kind: Kind
    scn: int
    in_source: Row | None
    in_store: Row | None


@dataclass(slots=True)
class Comparison:
    """The result for one source. `examples` are the first differences.

    `moving` rows changed in every pass and are counted neither as equal nor as different.
    """

    source: str
    has_key: bool = True
    rows: int = 0
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    moving: int = 0
    is_whole: bool = True  # False when it was stopped early
    examples: list[Difference] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether the whole table was compared and no row differs."""
        return self.is_whole and not any(self.counts.values())


class RowComparer:
    """Compares the rows of one source and records the result. One thread."""

    def __init__(
        self, store: Store, state: SourceState, found: Comparison, most_examples: int
    ) -> None:
        self.source = state.name
        self.found = found
        self._store = store
        self._src_id = state.src_id
        self._most_examples = most_examples
        self._texts: dict[bytes, str] = {}
        self._now = store.rows_now([state.src_id])

    @property
    def changed_scn(self) -> int:
        """The SCN of the table's last change, as of the rows that are compared now."""
        return self._now.changed_scn(self._src_id)

    def renew(self) -> None:
        """Read the store's rows as of its current position from now on."""
        self._now = self._store.rows_now([self._src_id])

    def _stored(self, row: StoreRow) -> Event:
        with self._store.file.explained("reading rows", self.source):
            return decode(self._now.renew(row.event))[0]

    def learn(self, text: str) -> bytes:
        """Add a schema of the database's rows; return its digest."""
        digest = schema_id(text)
        self._texts[digest] = text
        return digest

    def is_same(self, row: StoreRow | None, payload: bytes | None, digest: bytes) -> bool:
        """Return whether the store agrees with what was read; no payload: there was no row."""
        if row is None or row.is_deleted:
            return payload is None
        if payload is None:
            return False
        stored = self._stored(row)
        # Equal schemas write equal rows as equal bytes.
        if stored.schema_id == digest:
            return stored.value == payload
        return _same_values(self._row(payload, digest), self._row(stored.value, stored.schema_id))

    def judge(self, candidates: list[Candidate]) -> Iterator[Candidate]:
        """Yield the candidates that are moving; record those that differ."""
        self.renew()
        rows = self._store.rows_by_key(self.source, [found.key for found in candidates])
        for candidate in candidates:
            row = rows.get(candidate.key)
            if self.is_same(row, candidate.payload, candidate.digest):
                continue
            # It changed after the read saw everything: it cannot be judged yet.
            if row is not None and row.scn > candidate.scn:
                yield candidate
            elif candidate.payload is None:
                self.differs(Kind.SURPLUS, candidate.key, row, candidate)
            elif row is None or row.is_deleted:
                self.differs(Kind.MISSING, candidate.key, row, candidate)
            else:
                self.differs(Kind.DIFFERS, candidate.key, row, candidate)

    def has_live(self, keys: Iterable[int | bytes]) -> bool:
        """Return whether the store has one of these rows, and not as a tombstone."""
        rows = self._store.rows_by_key(self.source, list(keys))
        return any(not row.is_deleted for row in rows.values())

    def differs(
        self, kind: Kind, key: int | bytes, row: StoreRow | None, read: Candidate | None = None
    ) -> None:
        """Record a difference."""
        self.found.counts[kind] += 1
        if len(self.found.examples) >= self._most_examples:
            return
        in_source = in_store = None
        if read is not None and read.payload is not None:
            in_source = self._row(read.payload, read.digest)
        if row is not None and not row.is_deleted:
            stored = self._stored(row)
            in_store = self._row(stored.value, stored.schema_id)
        scn = -1 if row is None else row.scn
        self.found.examples.append(Difference(key, kind, scn, in_source, in_store))

    def _row(self, payload: bytes, digest: bytes) -> Row:
        if digest not in self._texts:
            for _, _, text in self._store.schemas([self._src_id]):
                self.learn(text)
        if digest not in self._texts:
            raise BootstrapError(
                f"{self.source}: the store has a row of schema {digest.hex()} and not the schema: "
                f"seed it again (`databus bootstrap seed --source {self.source}`)"
            )
        return row_codec(self._texts[digest]).decode(payload)


def _same_values(one: Row, other: Row) -> bool:
    return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)  # both NaN
