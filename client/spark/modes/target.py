"""A target whose table holds something else than the rows of the source.

The rules of a mode turn a batch, and the table's rows of its keys, into rows of the table
by another key: `scd2` by the source's key and the SCN of a version, `append_history` by
the id of a change. The target beneath, of any kind, writes them by its own rules in one
commit, with the batch's number, the positions and the mode. So what is applied twice is
there once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, functions as sf

from databus.client.spark.modes import append_history, scd2, soft_delete
from databus.client.spark.modes.every_change import REMEDY, EveryChange, every_change_of, put_rows
from databus.client.spark.targets.changes import OF_CHANGE, SCN, SOURCE, Changes, unified_schema
from databus.client.spark.targets.commit_log import REACHED, CommitLog
from databus.client.spark.targets.merge_plan import Condition
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.target import (
    Applied,
    OtherRowsError,
    Put,
    PutRequest,
    Target,
    check_same_keys,
    check_same_mode,
    no_table,
)
from databus.client.sql.modes import DELETED, TO_SCN, WriteMode
from databus.schemas.errors import ConsumerError, SettingsError

_RULES: dict[WriteMode, ModuleType] = {
    WriteMode.SCD2: scd2,
    WriteMode.SOFT_DELETE: soft_delete,
    WriteMode.APPEND_HISTORY: append_history,
}
_PUT = "put"  # the app of what `put` writes
ATTEMPTS = 20
_Done = TypeVar("_Done")


class ModeTarget(Target):
    """A table of a mode in a target of any kind, `inner`; `put` may run beside one writer."""

    def __init__(
        self,
        inner: Target,
        keys: Sequence[str] | None,
        *,
        source_column: bool,
        mode: WriteMode,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(inner.uri, keys, source_column)
        self.inner = inner
        self.mode = mode
        self._clock = clock
        self._rules = _RULES[mode]

    @property
    def keys(self) -> tuple[str, ...]:
        """The source's columns that make a row unique; () if they are not known, or not needed."""
        if self._given_keys or not self.mode.has_keys:
            return self._given_keys
        return tuple(name for name in self.inner.keys if name not in self._more_keys)

    @property
    def _more_keys(self) -> tuple[str, ...]:
        return (SCN,) if self.mode is WriteMode.SCD2 else ()

    def schema(self) -> pa.Schema | None:
        """Return the table's columns, those of the mode included; None without a table."""
        return self.inner.schema()

    def version(self) -> int | None:
        """Return the number of the newest version, as the target beneath has it."""
        return self.inner.version()

    def changes_of(
        self, batch: pa.Table, keys: Sequence[str], source: str | None = None
    ) -> EveryChange:
        """Return every change of a batch."""
        return every_change_of(
            batch,
            keys,
            mode=self.mode,
            now_us=self._now_us(),
            source_column=self.source_column,
            source=source,
        )

    def _apply(self, app_id: str, batch_id: int, changes: Any) -> Applied:
        return self._tried(lambda log: self._apply_to(log, app_id, batch_id, changes))

    def _apply_to(
        self, commit_log: CommitLog, app_id: str, batch_id: int, batch: EveryChange
    ) -> Applied:
        """Apply a batch to the table as it is with a commit log. Raises OtherRowsError."""
        check_same_mode(self.uri, commit_log, self.mode)
        if commit_log.has_all(app_id, batch_id, batch.positions):
            return Applied(is_skipped=True, positions=commit_log.positions())
        found = self._translated(batch, commit_log)
        notes = {**(batch.notes or {}), **(found.notes or {})}
        found = replace(found, notes=notes, made_of=commit_log.entries)
        # Also without a row: the batch is to be recorded.
        return self.inner._apply(app_id, batch_id, found)

    def _tried(self, attempt: Callable[[CommitLog], _Done]) -> _Done:
        """Return what `attempt` returns; try again while other writers commit first."""
        for _ in range(ATTEMPTS):
            try:
                # Before the rows: what is committed after it is noticed.
                return attempt(self._read_commit_log())
            except OtherRowsError:
                continue
        raise ConsumerError(
            -1,
            f"{self.uri}: other writers won {ATTEMPTS} times; let fewer write at once",
        )

    def _translated(self, batch: EveryChange, commit_log: CommitLog) -> Changes:
        if self.mode is WriteMode.APPEND_HISTORY:
            rows = append_history.changes_of(batch)
            unified_schema(self.schema() or rows.schema, rows.schema, self.uri, REMEDY)
            return rows
        if self.keys:
            check_same_keys(self.uri, self.keys, batch.keys)
        reached = commit_log.reached()
        held = self._held(batch)
        found: Changes = self._rules.changes_of(batch, held, reached, self.uri)
        if self.mode is not WriteMode.SCD2:
            return found
        newer = {name: scn for name, scn in batch.reached.items() if scn > reached.get(name, 0)}
        return replace(found, notes={f"{REACHED}{name}": scn for name, scn in newer.items()})

    def _held(self, batch: EveryChange) -> pa.Table:
        """Return the rows of the table that a batch may change."""
        schema = self.inner.schema()
        if schema is None or any(key not in schema.names for key in batch.keys):
            return pa.table({})
        others = self._rules.others(batch.told, SOURCE in batch.keys)
        keys = batch.rows.select(list(batch.keys))
        if keys.num_rows:
            keys = keys.group_by(keys.column_names, use_threads=False).aggregate([])
        if not keys.num_rows and not others:
            return schema.empty_table()
        return self.inner.find(keys, others, self._rules.least(batch))

    def find(self, keys: pa.Table, others: Sequence[Condition], least: Condition = ()) -> pa.Table:
        """Return rows of the table; see `Target.find`."""
        return self.inner.find(keys, others, least)

    def _put(self, request: PutRequest) -> Put:
        if not self.mode.has_keys:
            raise SettingsError(
                f"target {self.uri!r} is of mode {self.mode}, which has changes and no rows: "
                "nothing can be put into it, and a repair has nothing to do there"
            )
        given = [(request.rows, False), (request.deletes, True)]
        parts = [(rows, is_delete) for rows, is_delete in given if rows is not None]
        if not parts:
            raise SettingsError("put needs rows or keys to delete; neither is given")
        if self.schema() is None:
            raise no_table(self.uri)
        return self._tried(lambda log: self._put_into(log, request, parts))

    def _put_into(
        self,
        commit_log: CommitLog,
        request: PutRequest,
        parts: Sequence[tuple[pa.Table, bool]],
    ) -> Put:
        takes_new = commit_log.takes_new(request.physical_source, request.scn)
        keys = tuple(key for key in self.keys if key != SOURCE)
        source = request.source or next(iter([*self.sources(), *commit_log.reached()]), "")
        rows = put_rows(parts, keys, request.scn, source)
        batch = EveryChange(rows, self.keys, (), {}, mode=self.mode, newest_us=self._now_us())
        if not takes_new:
            batch = replace(batch, rows=self._without_new(batch))
        last = commit_log.applied(_PUT)
        number = 0 if last is None else last + 1
        done = Applied()
        if batch.rows.num_rows:
            done = self._apply_to(commit_log, _PUT, number, batch)
        return Put(done.upserts, done.deletes, took_new_rows=takes_new)

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _without_new(self, batch: EveryChange) -> pa.Table:
        """Return rows to put without those that the table does not have now."""
        live = _live(self._held(batch), self.mode)
        keys = list(self.keys)
        known = live.select(keys).cast(batch.rows.select(keys).schema)
        is_here = batch.rows.append_column(OF_CHANGE, pa.array(range(batch.rows.num_rows)))
        found = is_here.join(known.group_by(keys).aggregate([]), keys, join_type="left semi")
        return batch.rows.take(found[OF_CHANGE].combine_chunks())

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        """Change the table's columns, in all that it holds; see `Target.reshape`.

        A statement that empties the table is one of the batch's truncates, and removes nothing.
        """
        keys = (*plan.keys, *self._more_keys) if self.mode.has_keys else append_history.KEYS
        self.inner.reshape(replace(plan, keys=keys, is_emptied=False), app_id, batch_id)
        self._given_keys = plan.keys if self._given_keys else ()

    def take_over(self, uri: str, *_: object) -> None:
        """Raise SettingsError: what the table holds is not known elsewhere."""
        raise SettingsError(
            f"target {self.uri!r} is of mode {self.mode}, and would lose what it holds if its "
            f"rows were replaced by those of {uri}: load into the target itself"
        )

    def remove(self) -> None:
        """Remove the table; see `Target.remove`."""
        self.inner.remove()

    def forget_as_of(
        self,
        source: str | None = None,
        *,
        also_scn: bool = False,  # noqa: ARG002 - SCNs are a part of what was
    ) -> None:
        """Clear the as-of SCN of a source's rows; see `Target.forget_as_of`."""
        if self.mode.has_keys:
            self.inner.forget_as_of(source)

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return all that the table holds; see `Target.rows`."""
        return self.inner.rows(spark)

    def live_rows(self, spark: SparkSession) -> DataFrame:
        """Return the rows that the source has; raises SettingsError for mode append_history."""
        if self.mode is WriteMode.SCD2:
            return self.rows(spark).where(sf.col(TO_SCN).isNull())
        if self.mode is WriteMode.SOFT_DELETE:
            return self.rows(spark).where(~sf.col(DELETED))
        raise SettingsError(
            f"target {self.uri!r} is of mode {self.mode}, which has changes and no rows: there is "
            "nothing to compare with the source. Compare a target of mode mirror, scd2 or "
            "soft_delete"
        )

    def close(self) -> None:
        """Close the target beneath."""
        self.inner.close()

    def _read_commit_log(self) -> CommitLog:
        return self.inner._read_commit_log()


def _live(held: pa.Table, mode: WriteMode) -> pa.Table:
    """Return the rows that the source has, of rows of a table."""
    is_live = pc.is_null(held[TO_SCN]) if mode is WriteMode.SCD2 else pc.invert(held[DELETED])
    return held.filter(is_live)
