"""A target in memory, with the rules of `targets.merge_plan`, for tests of the rules of modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.targets.changes import Changes, cast_to, unified_schema
from databus.client.spark.targets.commit_log import CommitLog
from databus.client.spark.targets.merge_plan import Condition, forgotten, merged, without
from databus.client.spark.targets.reshaping import Reshaping
from databus.client.spark.targets.target import Applied, Put, PutRequest, Target, apply_once


class MemoryTarget(Target):
    """One table; `table` are its rows."""

    def __init__(self, keys: Sequence[str] | None = None, source_column: bool = False) -> None:
        super().__init__("memory", keys, source_column)
        self.table: pa.Table | None = None
        self.log = CommitLog()
        self.commits = 0
        self._keys: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        return self._given_keys or self._keys

    def schema(self) -> pa.Schema | None:
        return None if self.table is None else self.table.schema

    def version(self) -> int | None:
        return self.commits

    def _apply(self, app_id: str, batch_id: int, changes: Changes) -> Applied:
        if self.table is None:
            self.table, self._keys = changes.schema.empty_table(), changes.keys

        def commit(after: CommitLog) -> tuple[int, int]:
            counts = self._merge(changes)
            self.log = after
            return counts

        return apply_once(self.uri, self.log, app_id, batch_id, changes, commit)

    def _merge(self, changes: Changes, *, takes_new: bool = True) -> tuple[int, int]:
        assert self.table is not None
        schema = unified_schema(self.table.schema, changes.schema, self.uri)
        self.table, *counts = merged(cast_to(self.table, schema), changes, takes_new=takes_new)
        self.commits += 1
        return counts[0], counts[1]

    def _put(self, request: PutRequest) -> Put:
        takes_new = self.log.takes_new(request.physical_source, request.scn)
        counts = self._merge(request.changes(self.keys), takes_new=takes_new)
        return Put(*counts, took_new_rows=takes_new)

    def find(self, keys: pa.Table, others: Sequence[Condition], least: Condition = ()) -> pa.Table:
        from databus.client.spark.targets.merge_plan import among

        if self.table is None:
            return pa.table({})
        return self.table.filter(among(keys, others, least))

    def reshape(self, plan: Reshaping, app_id: str | None, batch_id: int) -> None:
        assert self.table is not None
        self.table, self._keys = plan.table(self.table), plan.keys
        if app_id is not None:
            self.log = self.log.after(app_id, batch_id, {})

    def take_over(self, uri: str, app_id: str, batch_id: int, positions: Mapping[str, int]) -> None:
        raise NotImplementedError

    def remove(self) -> None:
        raise NotImplementedError

    def forget_as_of(self, source: str | None = None, *, also_scn: bool = False) -> None:
        if self.table is not None:
            self.table = without(forgotten(also_scn=also_scn), self.table, source)

    def rows(self, spark: SparkSession) -> DataFrame:
        raise NotImplementedError

    def read(self) -> list[dict[str, Any]]:
        return [] if self.table is None else self.table.to_pylist()

    def _read_commit_log(self) -> CommitLog:
        return self.log
