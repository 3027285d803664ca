"""What every target can do, and how to open one by its URI.

`delta:<path or url>` is a Delta table, `<SQLAlchemy URL>#<table>` is a table of a
database. `iceberg:<catalog>.<namespace>.<table>` is an Iceberg table.
`delta+spark:` and `iceberg+spark:` are the same tables, with merges on Spark's executors.
`targets.changes` holds the rules by which changes are applied.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from databus.client.spark.targets.changes import SOURCE, Changes, changes_of, put_changes
from databus.client.spark.targets.commit_log import CommitLog, mode_note
from databus.client.spark.targets.executors import ChangesFrame
from databus.client.spark.targets.merge_plan import Condition
from databus.client.spark.targets.places import as_pattern
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.sql.modes import WriteMode
from databus.conf.addresses import shown_uri
from databus.schemas.errors import ConsumerError, SettingsError

# Imported on demand: each needs a library of its own.
_DELTA = "databus.client.spark.targets.delta:DeltaTarget"
_ICEBERG = "databus.client.spark.targets.iceberg:IcebergTarget"
_FORMS = {
    "delta": _DELTA,
    "delta+spark": _DELTA,
    "iceberg": _ICEBERG,
    "iceberg+spark": _ICEBERG,
}
_ON_EXECUTORS = "+spark"
_SQL = "databus.client.spark.targets.sql:SqlTarget"
_MODES = "databus.client.spark.modes.target:ModeTarget"
_KNOWN = (
    "known are delta:<path or url>, iceberg:<catalog>.<namespace>.<table>, with merges on "
    "executors delta+spark: and iceberg+spark:, and <SQLAlchemy URL>#<table>"
)
_REMOVED = (
    "this form was removed: Delta tables are files in a folder, too, and every engine reads them. "
    "Load the table again into delta:<path or url>, and follow it with a new checkpoint; then the "
    "old folder can be removed"
)
# What a target may hold.
MODES = tuple(str(one) for one in WriteMode if one is not WriteMode.LOG_UPDATE)
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of applying a batch."""

    # Rows of the target that were written, and removed (by deletes, truncates, ends of snapshots).
    upserts: int = 0
    deletes: int = 0
    # The batch had been applied before: nothing was done.
    is_skipped: bool = False
    # The target's positions after the batch: everything up to this SCN is applied.
    positions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Put:
    """The result of putting rows as of one SCN."""

    written: int
    deleted: int
    # False: the target is past that SCN, so a missing row may have been deleted since.
    # Rows that the target did not have were left out. Put them as of a newer SCN.
    took_new_rows: bool


class PutRequest(NamedTuple):
    """The arguments of `Target.put`."""

    rows: pa.Table | None
    deletes: pa.Table | None
    physical_source: str
    scn: int
    source: str | None

    def changes(self, keys: Sequence[str]) -> Changes:
        """Return the request as changes to a table with this key."""
        return put_changes(self.rows, self.deletes, keys, self.scn, self.source)


class LostCommitError(Exception):
    """Another writer has committed since this one read the table; its text says what was found."""


class OtherRowsError(Exception):
    """Another writer has committed since the rows were read of which changes were made."""


class Target(ABC):
    """A table that changes are applied to; one writer of a source at a time, besides `put`."""

    # Whether a batch may come as a `ChangesFrame`, which the driver does not collect.
    merges_on_executors = False
    # What the table holds. Others than the rows of the source are those of `modes.ModeTarget`.
    mode = WriteMode.MIRROR

    def __init__(self, uri: str, keys: Sequence[str] | None, source_column: bool) -> None:
        self.uri = uri
        self.source_column = source_column
        self._given_keys = whole_key(keys, source_column)
        self._notes: Mapping[str, int] = {}

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """The columns that make a row unique; () as long as they are not known."""

    def commit_log(self) -> CommitLog:
        """Return the commit log, for who asks it several things: each reading may ask a catalog."""
        return self._read_commit_log()

    def applied(self, app_id: str) -> int | None:
        """Return the number of an app's last applied batch, or None."""
        return self._read_commit_log().applied(app_id)

    def positions(self) -> dict[str, int]:
        """Return the SCN per physical source up to which everything is applied."""
        return self._read_commit_log().positions()

    def sources(self) -> list[str]:
        """Return the source whose rows the table holds, if recorded; [] with several sources."""
        return self._read_commit_log().sources()

    def is_part(self, source: str) -> bool:
        """Return whether a load brought only some rows or columns of a source."""
        return self._read_commit_log().is_part(source)

    def recorded_mode(self) -> WriteMode | None:
        """Return what the table holds; None while that is not decided."""
        commit_log = self._read_commit_log()
        return commit_log.mode() if commit_log.entries else None

    def changes_of(
        self, batch: pa.Table, keys: Sequence[str], source: str | None = None
    ) -> Changes:
        """Return a batch's changes in the form that `apply` takes; see `changes.changes_of`.

        `source`: the source of the rows, if the target shall record that it holds only this one.
        """
        return replace(changes_of(batch, keys, source_column=self.source_column), source=source)

    @abstractmethod
    def find(self, keys: pa.Table, others: Sequence[Condition], least: Condition = ()) -> pa.Table:
        """Return rows with all columns: those with one of some keys, and those of `others`.

        `others`: a row must fulfil one of these. `least`: rows that do not fulfil this may be
        left out. Other rows may be among them. Without a table there are no columns either.
        """

    def live_rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows that the source has; raises SettingsError if the table cannot tell."""
        return self.rows(spark)

    @abstractmethod
    def _read_commit_log(self) -> CommitLog:
        """Return the commit log; it is empty while there is no table."""

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """Return the table's columns, bookkeeping included; None while there is no table."""

    @abstractmethod
    def version(self) -> int | None:
        """Return the number of the newest version; None if there is no table or no versions."""

    def apply(self, app_id: str, batch_id: int, changes: Changes | ChangesFrame) -> Applied:
        """Apply a whole batch and record it in the commit log, in one commit.

        Raises SettingsError for another key than the table's,
        IncompatibleSchemaError for a column of another type, RowError for a value
        that a database cannot store, ConsumerError if other writers win every time.
        """
        if changes.is_nothing():
            return Applied(positions=self.positions())
        if self._notes:
            changes = replace(changes, notes={**(changes.notes or {}), **self._notes})
        return self._apply(app_id, batch_id, changes)

    @contextmanager
    def noting(self, notes: Mapping[str, int]) -> Iterator[None]:
        """Put entries into the commit log with whatever is applied in the `with` block."""
        self._notes = notes
        try:
            yield
        finally:
            self._notes = {}

    @abstractmethod
    def _apply(self, app_id: str, batch_id: int, changes: Any) -> Applied:
        """Apply a batch that is not empty; a `ChangesFrame` if `merges_on_executors`."""

    def put(
        self,
        rows: pa.Table | None = None,
        deletes: pa.Table | None = None,
        *,
        physical_source: str,
        scn: int,
        source: str | None = None,
    ) -> Put:
        """Write `rows` and remove the keys in `deletes`, as of an SCN, in one commit.

        Newer rows of the target stay. A row that the target does not have is
        written only if the target's position of that physical source is not past
        `scn`. `source` fills `_databus_source` if the table has that column.
        """
        return self._put(PutRequest(rows, deletes, physical_source, scn, source))

    @abstractmethod
    def _put(self, request: PutRequest) -> Put:
        """Put rows and deletes in one commit."""

    @abstractmethod
    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Change the table's columns, and record that in the commit log, in one commit.

        A recorded change is not done again. Without an app nothing is recorded.
        """

    @abstractmethod
    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        """Replace rows, columns and key with those of another target of this kind, in one commit.

        The other target is removed. The commit is recorded like a batch, and is not
        done twice.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove the table and its commit log, if it is there.

        Raises SettingsError for one that only its owner can remove.
        """

    @abstractmethod
    def forget_as_of(self, source: str | None = None, *, also_scn: bool = False) -> None:
        """Clear the as-of SCN of a source's rows, before a new snapshot sets it again.

        A snapshot with another row selection, or of another query, may have the same
        SCN as the one before it. `also_scn`: clear the SCN, too, so that rows of any log replace
        the table's, whose SCNs may be of another one; a table that keeps what was keeps its SCNs.
        Nothing else changes. Without a table it does nothing.
        """

    @abstractmethod
    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the table's current rows, with the bookkeeping columns.

        Raises SettingsError while there is no table.
        """

    def close(self) -> None:  # noqa: B027 - most targets hold no connection
        """Close connections, if the target holds any."""


class RetryingTarget(Target):
    """A target whose commit fails, and is tried again, if another writer commits first."""

    def __init__(
        self, uri: str, keys: Sequence[str] | None, source_column: bool, attempts: int
    ) -> None:
        super().__init__(uri, keys, source_column)
        self._attempts = attempts

    def _retried(self, attempt: Callable[[], _Done], scn: int) -> _Done:
        """Return what `attempt` returns; run it again after each LostCommitError."""
        lost: LostCommitError | None = None
        for _ in range(self._attempts):
            try:
                return attempt()
            except LostCommitError as error:
                lost = error
        raise _lost_every_time(self.uri, scn, self._attempts, str(lost or "")) from lost


def apply_once(
    uri: str,
    commit_log: CommitLog,
    app_id: str,
    batch_id: int,
    changes: Changes | ChangesFrame,
    commit: Callable[[CommitLog], tuple[int, int]],
) -> Applied:
    """Commit a batch, unless the commit log has it already.

    `commit` writes the changes together with the commit log that it is given, and
    returns how many rows were written and removed.
    """
    check_same_mode(uri, commit_log, changes.mode)
    if commit_log.has_all(app_id, batch_id, changes.positions):
        return Applied(is_skipped=True, positions=commit_log.positions())
    if changes.made_of is not None and changes.made_of != commit_log.entries:
        raise OtherRowsError(uri)
    notes = {**mode_note(changes.mode), **(changes.notes or {})}
    after = commit_log.after(app_id, batch_id, changes.positions, changes.source, notes)
    return Applied(*commit(after), positions=after.positions())


def open_target(
    uri: str,
    keys: Sequence[str] | None = None,
    *,
    source_column: bool = False,
    mode: str | None = None,
    **options: Any,
) -> Target:
    """Open a target; the first batch creates a missing table.

    `keys`: the columns that make a row unique; the default is the key of the
    table, or of the first batch's schema. `source_column`: several sources share
    the table; the column `_databus_source` tells them apart and is part of the
    key. `mode`: what the table holds, one of `mirror`, `append_history`, `scd2` and
    `soft_delete`; the default is what it holds already, and `mirror` for a new one.
    `options`: those of the target's class (`DeltaTarget`, `IcebergTarget`,
    `SqlTarget`).

    Raises SettingsError for an unknown kind of target, an unknown option, and another
    mode than the table's.
    """
    wanted = None if mode is None else _mode_of(mode)
    cls = _class_of(uri)
    unknown = sorted(set(options) - set(cls.OPTIONS))
    if unknown:
        raise SettingsError(
            f"target {shown_uri(uri)!r} has no option {', '.join(unknown)}; "
            f"it takes {', '.join(cls.OPTIONS) or 'none'}"
        )
    target: Target = cls(uri, keys, source_column=source_column, **options)
    held = target.recorded_mode()
    if wanted is not None and held is not None and wanted is not held:
        target.close()
        raise _another_mode(target.uri, held, wanted)
    if (wanted or held or WriteMode.MIRROR) is WriteMode.MIRROR:
        return target
    target.close()
    found: Target = _loaded(_MODES)(
        cls(uri, None, **options), keys, source_column=source_column, mode=wanted or held
    )
    return found


def check_form(uri: str) -> None:
    """Raise SettingsError for what cannot be the URI of a target, without opening it."""
    _class_of(uri).check_form(uri)


def merges_on_executors(uri: str) -> bool:
    """Return whether a target merges on executors, without opening it; raises SettingsError."""
    _class_of(uri)
    return uri.partition(":")[0].endswith(_ON_EXECUTORS)


def _class_of(uri: str) -> Any:
    """Return the class of a target; raises SettingsError for an unknown form."""
    scheme, _, rest = uri.partition(":")
    if scheme == "parquet":
        raise SettingsError(f"target {shown_uri(uri)!r}: {_REMOVED}")
    if scheme in _FORMS and rest:
        place = _FORMS[scheme]
    elif "://" in uri and "#" in uri:
        place = _SQL
    else:
        raise SettingsError(f"target {shown_uri(uri)!r} is of no known form; {_KNOWN}")
    try:
        return _loaded(place)
    except ModuleNotFoundError as error:
        if error.name != "pyiceberg":
            raise
        raise SettingsError(
            f"target {shown_uri(uri)!r} needs pyiceberg: pip install 'databus-cdc[iceberg]'"
        ) from error


def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _mode_of(text: str) -> WriteMode:
    if text not in MODES:
        raise SettingsError(f"mode {text!r} is not known; known are {', '.join(MODES)}")
    return WriteMode(text)


def check_same_mode(uri: str, commit_log: CommitLog, mode: WriteMode) -> None:
    """Raise SettingsError if a table is to hold something else than it does."""
    if commit_log.entries and commit_log.mode() is not mode:
        raise _another_mode(uri, commit_log.mode(), mode)


def _another_mode(uri: str, held: WriteMode, wanted: WriteMode) -> SettingsError:
    return SettingsError(
        f"target {uri!r} is of mode {held}, and cannot become one of mode {wanted}: open it "
        f"with mode={held!s}, or name a new target for mode {wanted}"
    )


def whole_key(keys: Sequence[str] | None, source_column: bool) -> tuple[str, ...]:
    """Return the table's key: the given columns, and `_databus_source` if rows have it."""
    if not keys:
        return ()
    return tuple(dict.fromkeys([*keys, SOURCE] if source_column else keys))


def check_same_keys(uri: str, held: Sequence[str], given: Sequence[str]) -> None:
    """Raise SettingsError if changes come with another key than the table's."""
    if held and set(held) != set(given):
        raise SettingsError(
            f"target {uri!r} has the key ({', '.join(held)}), changes come with "
            f"({', '.join(given)}): give the same keys=[…] and source_column, or a new target"
        )


def check_same_source(target: Target, source: str) -> None:
    """Raise SettingsError if a table of one source is given another source's changes."""
    known = target.sources()
    if target.source_column or not known or source in known:
        return
    replaced = "to replace all of the target's rows, databus spark load … --again; "
    raise SettingsError(
        f"target {target.uri!r} has the rows of {' and '.join(known)}, and these are of {source}: "
        f"give {source} a target of its own; "
        f"{replaced if target.mode is WriteMode.MIRROR else ''}"
        "for several sources in one table open a new target with source_column=True"
    )


def check_whole(target: Target, source: str) -> None:
    """Raise SettingsError if a table that is to be followed has only a part of a source."""
    if target.is_part(source):
        raise SettingsError(
            f"target {target.uri!r} has only the rows or columns of {source} that databus spark "
            "load --where or --columns chose: following it would add others with their next "
            "change. Load the whole table into it (databus spark load without them; a job of many "
            f"tables: the same command with --reload {source}), or follow the table into another "
            "target"
        )


def no_table(uri: str) -> SettingsError:
    """Return the error for reading a target that has no table yet."""
    return SettingsError(f"target {uri!r} has no table yet: its first batch creates it")


def _lost_every_time(uri: str, scn: int, attempts: int, reason: str) -> ConsumerError:
    """Return the error for a commit that other writers got ahead of at every attempt."""
    why = f" ({reason})" if reason else ""
    return ConsumerError(
        scn,
        f"{uri}: other writers won {attempts} times{why}; let fewer write at once, or raise "
        "attempts",
    )


def read_files(spark: SparkSession, schema: pa.Schema, files: Sequence[str]) -> DataFrame:
    """Return Parquet files of a schema as a DataFrame; no files means no rows."""
    columns = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if not files:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).parquet(*map(as_pattern, files))
