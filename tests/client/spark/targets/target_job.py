"""One table brought into several targets: what `sync` does of it, without a streaming query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from databus.client.spark.arrow.row_types import CHANGE_COLUMN, SCHEMAS, arrow_schema
from databus.client.spark.source.change_stream import read_changes
from databus.client.spark.source.table_reader import TableReader
from databus.client.spark.targets.changes import changes_of, common_type
from databus.client.spark.targets.following import SchemaFollower
from databus.client.spark.targets.target import Target, open_target
from databus.schemas.errors import ReloadNeededError, RestartNeededError, SchemaError
from tests.bootstrap.altering import Altered, same
from tests.client.spark.source.queries import Query
from tests.client.spark.targets.target_rows import table_of

# Loads a source into a target that is named; returns as of which SCN.
Load = Callable[[str, str], int]
PHYSICAL = "shop"


MOST_SHOWN = 5  # rows that differ


class TargetJob:
    """A query of one source, whose batches go into targets that are named by their URIs.

    With `load` rows are read again where a batch says so, into all of them.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        uris: Mapping[str, str],
        load: Load | None = None,
    ) -> None:
        self._options = dict(options)
        self._source = options["sources"]
        self._uris = dict(uris)
        self._load = load
        self.targets: dict[str, Target] = {kind: open_target(uri) for kind, uri in uris.items()}
        self.reloads = 0
        self._query = Query(**self._options)

    def close(self) -> None:
        self._query.close()
        for target in self.targets.values():
            target.close()

    def follow(self) -> None:
        """Bring what the relay has; start again after a schema change, as `sync` does."""
        while ranges := self._query.plan():
            while ranges:
                try:
                    self._apply(ranges)
                    break
                except SchemaError as error:
                    ranges = self._again(error)

    def _again(self, error: SchemaError) -> list[str] | None:
        if isinstance(error, RestartNeededError):
            self._query.restart()
            return self._query.planned()
        if self._load is None or not isinstance(error, ReloadNeededError):
            raise error
        scn = min(self._loaded(self._load, kind) for kind in self.targets)
        self.reloads += 1
        self._query.close()
        self._query = Query(**{**self._options, "start": str(scn)})
        return None

    def _loaded(self, load: Load, kind: str) -> int:
        beside = f"{self._uris[kind]}__databus_reload"
        scn = load(self._source, beside)
        self.targets[kind].take_over(beside, f"reload:{self._source}", scn, {PHYSICAL: scn})
        return scn

    def _apply(self, ranges: list[str]) -> None:
        schema, options = self._query.schema, self._query.options
        texts = schema[CHANGE_COLUMN].metadata[SCHEMAS][self._source]
        found = [b for one in ranges for b in read_changes(options, schema, one)]
        batch = pa.Table.from_batches(found, arrow_schema(schema))
        versions = {int(number): text for number, text in texts.items()}
        app = f"job {self.reloads}"
        for target in self.targets.values():
            if batch.num_rows:
                rows, key = SchemaFollower(self._source, versions, batch).lead(target, None)
                target.apply(app, len(self._query.log), changes_of(rows, key))


def difference(pair: Altered, source: str, target: Target, *, may_be_wider: bool = False) -> str:
    """Say how a target's rows, or the types of its columns, differ from the source's.

    Of a name that had several types while a query ran, the target's may be wider.
    """
    options = {"mode": "table", "sources": source, "bootstrapServers": pair.url}
    wanted = arrow_schema(TableReader.columns(options))
    rows, held = pair.table(source), table_of(target)
    if not rows and not held.num_rows:
        return ""
    lacking = [field.name for field in wanted if field.name not in held.column_names]
    if lacking:
        return f"{lacking} are not there"
    types: list[Any] = []
    for field in wanted:
        kind = held.schema.field(field.name).type
        is_enough = may_be_wider and common_type(kind, field.type) == kind
        if kind != field.type and not is_enough:
            types.append((field.name, str(kind), str(field.type)))
    if types:
        return f"types: {types}"
    # A value that the source's type does not hold raises.
    found = held.select(wanted.names).cast(wanted).to_pylist()
    if same(found, rows):
        return ""
    too_many = [row for row in found if row not in rows][:MOST_SHOWN]
    return f"{too_many} and not {[row for row in rows if row not in found][:MOST_SHOWN]}"
