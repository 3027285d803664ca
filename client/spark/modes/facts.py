"""What a batch tells of each key, in the order of the log.

A fact is a row that is there as of an SCN, or that there is none. A truncate and the end
of a snapshot are facts of every key of their source that the table holds or the batch has.
Within a window only the last change of a key counts; a row of a snapshot is the state at
the end of its window, and the end of a snapshot comes behind that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.client.spark.modes.every_change import (
    GONE,
    INDEX,
    MOMENT,
    OP,
    REMEDY,
    TIME,
    EveryChange,
)
from databus.client.spark.targets.changes import (
    AS_OF,
    DELETE,
    SCN,
    SOURCE,
    cast_to,
    key_codes,
    unified_schema,
)

_NEWEST = 2**62
NEVER = -1  # an SCN, or a time, that is not known; also of what has not ended


class Kind(IntEnum):
    """What a fact tells, in the order in which those of one SCN count."""

    CHANGE = 0  # the row was written
    DELETE = 1
    TRUNCATE = 2
    SNAPSHOT = 3  # the row was read: it had been written at that SCN or before
    END = 4  # a snapshot is complete: rows that it did not have are gone


class Fact(NamedTuple):
    """One fact of one key. `place`: within its window; times are in microseconds, or NEVER.

    `row`: the place in `Values`; NEVER without a row.
    """

    code: int
    scn: int
    rank: int
    place: int
    kind: Kind
    row: int
    as_of: int
    time: int
    source: str


@dataclass(frozen=True, slots=True)
class Values:
    """The rows of the table, then those of a batch, in the types of the table.

    `codes` tells which rows have one key. `held`: how many rows are the table's.
    """

    rows: pa.Table
    held: int
    codes: np.ndarray
    columns: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, held: pa.Table, batch: EveryChange, extras: pa.Schema, uri: str) -> Values:
        """Put the rows of a table and of a batch together.

        `extras`: the columns of the table that the source does not have. Raises
        IncompatibleSchemaError for a column of the batch that does not fit the table's.
        """
        names = [*batch.columns, *([SOURCE] if SOURCE in batch.keys else [])]
        plain = pa.schema([batch.rows.schema.field(name).remove_metadata() for name in names])
        known = pa.schema([one for one in held.schema if one.name not in extras.names])
        schema = pa.schema([*unified_schema(known, plain, uri, REMEDY), *extras])
        of_table = cast_to(held, schema)
        # A column that the batch does not have keeps its value in versions, and rows, that go on.
        of_batch = cast_to(batch.rows.select(names), schema)
        keys = list(batch.keys)
        pair = [of_table.select(keys), of_batch.select(keys)]
        codes = np.concatenate(key_codes(pair, keys))
        rows = pa.concat_tables([of_table, of_batch]).combine_chunks()
        columns = tuple(name for name in schema.names if name not in extras.names)
        return cls(rows, of_table.num_rows, codes, columns, batch.keys)

    def taken(self, places: Sequence[int]) -> pa.Table:
        """Return rows in the columns of the source, by their places."""
        return self.rows.select(self.columns).take(pa.array(places, pa.int64()))

    def value_codes(self, columns: Sequence[str]) -> np.ndarray:
        """Return a number for each row, equal where some columns are equal."""
        others = [name for name in columns if name not in self.keys]
        if not others:
            return np.zeros(self.rows.num_rows, dtype=np.int64)
        return key_codes([self.rows], others)[0]

    def numbers(self, name: str) -> list[int]:
        """Return a column of SCNs, places or times in the table's rows; NEVER for null."""
        column = self.rows[name].slice(0, self.held)
        if pa.types.is_timestamp(column.type):
            column = column.cast(MOMENT).cast(pa.int64())
        found: list[int] = pc.fill_null(column.cast(pa.int64()), NEVER).to_pylist()
        return found


def facts_of(batch: EveryChange, values: Values) -> Iterator[tuple[int, list[Fact]]]:
    """Yield the facts of each key, by its code, the oldest first."""
    found = [*_row_facts(batch, values), *_told_facts(batch, values)]
    found.sort()
    for code, facts in groupby(found, attrgetter("code")):
        yield code, _net(facts)


def _net(facts: Iterator[Fact]) -> list[Fact]:
    """Return the last fact of each window, of those that the log tells; all others."""
    kept: list[Fact] = []
    for fact in facts:
        # Ranks are 0 for what the log tells.
        if kept and fact.rank == 0 and kept[-1].scn == fact.scn:
            kept.pop()
        kept.append(fact)
    return kept


def _row_facts(batch: EveryChange, values: Values) -> Iterator[Fact]:
    rows = batch.rows
    places = range(values.held, values.held + rows.num_rows)
    times = pc.fill_null(rows[TIME].cast(MOMENT).cast(pa.int64()), NEVER).to_pylist()
    columns = (rows[name].to_pylist() for name in (SCN, INDEX, DELETE, OP, AS_OF, SOURCE))
    codes = values.codes[values.held :].tolist()
    for code, place, time, scn, index, is_delete, op, as_of, source in zip(
        codes, places, times, *columns, strict=True
    ):
        if op == GONE:
            kind, rank, as_of, time = Kind.END, 2, _NEWEST, batch.newest_us
        elif is_delete:
            kind, rank = Kind.DELETE, 0
        elif op == "snapshot":
            kind, rank = Kind.SNAPSHOT, 1
        else:
            kind, rank = Kind.CHANGE, 0
        yield Fact(code, scn, rank, index, kind, place, as_of, time, source)


def _told_facts(batch: EveryChange, values: Values) -> Iterator[Fact]:
    if not batch.told:
        return
    codes, firsts = np.unique(values.codes, return_index=True)
    sources: list[str | None] = [None] * len(codes)
    if SOURCE in values.keys:
        sources = values.rows[SOURCE].take(pa.array(firsts)).to_pylist()
    for one in batch.told:
        kind, rank = (Kind.TRUNCATE, 0) if one.is_truncate else (Kind.END, 2)
        time = batch.newest_us if one.time is None else microseconds(one.time)
        for code, source in zip(codes.tolist(), sources, strict=True):
            if source is None or source == one.source:
                yield Fact(code, one.scn, rank, one.place, kind, NEVER, one.scn, time, one.source)


def microseconds(moment: datetime) -> int:
    """Return a time in microseconds since 1970."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moments(times: Sequence[int]) -> pa.Array:
    """Return times as a column; null for NEVER."""
    numbers = np.array(times, dtype=np.int64)
    return pa.array(numbers, pa.int64(), mask=numbers == NEVER).cast(MOMENT)


def scns(numbers: Sequence[int]) -> pa.Array:
    """Return SCNs, or places, as a column; null for NEVER."""
    found = np.array(numbers, dtype=np.int64)
    return pa.array(found, pa.int64(), mask=found == NEVER)
