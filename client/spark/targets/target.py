"""What every target can do, and how one is opened by its URI.

`delta:<path or url>` a Delta table, `parquet:<folder>` Parquet files of this
project's own layout, `<SQLAlchemy URL>#<table>` a table of a database. The
rules by which changes are applied are those of `targets.changes`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from databus.client.spark.targets.changes import SOURCE, Changes
from databus.client.spark.targets.places import as_pattern
from databus.client.spark.targets.reshaping import Reshaping
from databus.schemas.errors import ConsumerError, SettingsError

# Imported when asked for: each needs a library of its own.
_FORMS = {
    "delta": "databus.client.spark.targets.delta:DeltaTarget",
    "parquet": "databus.client.spark.targets.parquet:ParquetTarget",
}
_SQL = "databus.client.spark.targets.sql:SqlTarget"
_KNOWN = "known are delta:<path or url>, parquet:<folder> and <SQLAlchemy URL>#<table>"


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a batch."""

    # Rows of the target that were written, and removed (by deletes, truncates, ends of snapshots).
    upserts: int = 0
    deletes: int = 0
    # It had been applied before: nothing was done.
    is_skipped: bool = False
    # Of the target, after the batch: everything up to this SCN is applied.
    positions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Put:
    """What became of rows that were put as of one SCN."""

    written: int
    deleted: int
    # False: the target was past that SCN, where a row that is missing may have been
    # deleted since; rows that it did not have were left out. Put them as of a newer SCN.
    took_new_rows: bool


class Target(Protocol):
    """A table that changes are applied to; one writer of a source at a time, besides `put`."""

    uri: str
    source_column: bool

    @property
    def keys(self) -> tuple[str, ...]:
        """Name the columns that make a row unique; () while nobody has said so."""
        ...

    def applied(self, app_id: str) -> int | None:
        """Return the last batch of an app that is applied, or None."""
        ...

    def positions(self) -> dict[str, int]:
        """Return the SCN per physical source up to which everything is applied."""
        ...

    def sources(self) -> list[str]:
        """Name the source that the rows are of, as far as it was noted; [] of several sources."""
        ...

    def schema(self) -> pa.Schema | None:
        """Return the table's columns, bookkeeping included; None while there is no table."""
        ...

    def version(self) -> int | None:
        """Return the number of the newest state; None where states have none."""
        ...

    def apply(self, app_id: str, batch_id: int, changes: Changes) -> Applied:
        """Apply a batch whole, with the note that it is applied, or not at all."""
        ...

    def put(
        self,
        rows: pa.Table | None = None,
        deletes: pa.Table | None = None,
        *,
        physical_source: str,
        scn: int,
        source: str | None = None,
    ) -> Put:
        """Make rows, and keys to delete, what the source had at an SCN, whole or not at all.

        Rows of the target that are newer stay. A row that the target does not
        have is written only if the target's position of that physical source is
        not past `scn`. `source` fills `_databus_source` where the table has it.
        """
        ...

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Give the table other columns, in one commit with the note that it has them.

        Done over it changes nothing where there is a note; without an app none is made.
        """

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Have the rows, columns and key of another target of this kind in place of all, at once.

        The other one is gone then. Noted and done over as a batch is.
        """

    def forget_as_of(self, source: str | None = None) -> None:
        """Take no row of a source for known to be there, before a snapshot tells anew.

        A snapshot of another selection of rows, or by another query, may be as of
        the same SCN as one before it. Nothing else changes; no table is no row.
        """

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table as it is now, with its bookkeeping columns.

        Raises SettingsError while there is no table.
        """
        ...

    def close(self) -> None:
        """Let go of connections; a target without any has nothing to do."""


def open_target(
    uri: str, keys: Sequence[str] | None = None, *, source_column: bool = False, **options: Any
) -> Target:
    """Open a target; a table that is not there is made by the first batch.

    `keys`: the columns that make a row unique; without them those of the table,
    or of the first batch's schema. `source_column`: several sources go into the
    table, told apart by the column `_databus_source`, which is then part of the
    key. `options`: those of the target's class (`DeltaTarget`, `ParquetTarget`,
    `SqlTarget`).

    Raises SettingsError for a form or an option that is not known.
    """
    scheme, _, rest = uri.partition(":")
    if scheme in _FORMS and rest:
        place = _FORMS[scheme]
    elif "://" in uri and "#" in uri:
        place = _SQL
    else:
        raise SettingsError(f"target {uri!r} is of no known form; {_KNOWN}")
    module, _, name = place.partition(":")
    cls = getattr(importlib.import_module(module), name)
    unknown = sorted(set(options) - set(cls.OPTIONS))
    if unknown:
        raise SettingsError(
            f"target {uri!r} has no option {', '.join(unknown)}; "
            f"it takes {', '.join(cls.OPTIONS) or 'none'}"
        )
    target: Target = cls(uri, keys, source_column=source_column, **options)
    return target


def whole_key(keys: Sequence[str] | None, source_column: bool) -> tuple[str, ...]:
    """Return the key as it is in the table: with the source's name where rows have it."""
    if not keys:
        return ()
    return tuple(dict.fromkeys([*keys, SOURCE] if source_column else keys))


def check_same_keys(uri: str, held: Sequence[str], given: Sequence[str]) -> None:
    """Raise SettingsError if a table is asked to take changes by another key than before."""
    if held and set(held) != set(given):
        raise SettingsError(
            f"target {uri!r} has the key ({', '.join(held)}), changes come with "
            f"({', '.join(given)}): give the same keys=[…] and source_column, or a new target"
        )


def check_same_source(target: Target, source: str) -> None:
    """Raise SettingsError for a table of one source that is asked to take another's changes."""
    known = target.sources()
    if target.source_column or not known or source in known:
        return
    raise SettingsError(
        f"target {target.uri!r} has the rows of {' and '.join(known)}, and these are of {source}: "
        f"give {source} a target of its own; to put its rows in place of all that are there, "
        "databus spark load … --again; for several sources in one table open a new target with "
        "source_column=True"
    )


def no_table(uri: str) -> SettingsError:
    """Return the error for reading a target that has no table yet."""
    return SettingsError(f"target {uri!r} has no table yet: its first batch makes it")


def lost_every_time(uri: str, scn: int, attempts: int, why: object = None) -> ConsumerError:
    """Return the error for a commit that other writers got ahead of, as often as it was tried."""
    reason = "" if why is None else f" ({why})"
    return ConsumerError(
        scn,
        f"{uri}: other writers won {attempts} times{reason}; let fewer write at once, or raise "
        "attempts",
    )


def read_files(spark: SparkSession, schema: pa.Schema, files: Sequence[str]) -> DataFrame:
    """Return Parquet files of a schema as a DataFrame; none = no row."""
    columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if not files:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*map(as_pattern, files))
