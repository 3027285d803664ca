"""A query as Spark runs it, without Spark: its offset log, its batches, its restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from databus.client.spark.arrow.row_types import arrow_schema
from databus.client.spark.source.change_stream import ChangeStream, changes_type, read_changes
from databus.client.spark.source.range_reader import close_readers
from tests import PATIENCE_S
from tests.promises.running import POLL_S, wait_until

Record = dict[str, Any]

__all__ = ["PATIENCE_S", "POLL_S", "Applied", "Query", "Record"]


class Query:
    """One streaming query. `log` has what Spark's checkpoint keeps: the end of each batch."""

    def __init__(self, **options: str) -> None:
        self.options = {"retrySeconds": "5", **options}
        self.log: list[str] = []
        self.stream = ChangeStream(self.options)
        self.schema = changes_type(self.options)

    def restart(self) -> None:
        """Begin again as after a crash, with nothing but the log."""
        self.close()
        self.stream = ChangeStream(self.options)
        self.schema = changes_type(self.options)

    def close(self) -> None:
        """Let go of every connection."""
        self.stream.close()
        close_readers()

    @property
    def start(self) -> dict[str, Any]:
        """Where the next batch begins."""
        offset: dict[str, Any] = (
            json.loads(self.log[-1]) if self.log else self.stream.initial_offset()
        )
        return offset

    def plan(self) -> list[str] | None:
        """Plan a batch and write its end into the log; None when there is nothing new."""
        start = self.start
        end = self.stream.latest_offset(start, self.stream.default_limit())
        if json.dumps(end) == json.dumps(start):
            return None
        self.log.append(json.dumps(end))
        return self.planned()

    def planned(self) -> list[str]:
        """Return the ranges of the last batch in the log, whoever planned it."""
        start = json.loads(self.log[-2]) if len(self.log) > 1 else self.stream.initial_offset()
        return self.stream.partitions(start, json.loads(self.log[-1]))

    def read(self, ranges: list[str]) -> list[Record]:
        """Return the rows of a batch, in the order of SCNs and indexes."""
        target = arrow_schema(self.schema)
        batches = [b for one in ranges for b in read_changes(self.options, self.schema, one)]
        records = pa.Table.from_batches(batches, target).to_pylist()
        return sorted(records, key=_place)

    def batches(self) -> Iterator[list[Record]]:
        """Yield the rows of each batch until nothing is new."""
        while (ranges := self.plan()) is not None:
            yield self.read(ranges)

    def wait_for_batch(self) -> list[Record]:
        """Return the rows of the next batch that has some."""
        found: list[Record] = []

        def has_come() -> bool:
            ranges = self.plan()
            found.extend(self.read(ranges) if ranges else [])
            return bool(found)

        wait_until(has_come, "a batch", lambda: str(self.log[-1:]))
        return found


def _place(record: Record) -> tuple[int, int]:
    told = record["_databus"]
    return told["scn"], -1 if told["index"] is None else told["index"]


class Applied:
    """A table that batches are applied to, by the rules that every target follows."""

    def __init__(self, key: str = "id") -> None:
        self.rows: dict[Any, Record] = {}
        self.scns: dict[Any, tuple[int, int]] = {}  # SCN and as-of SCN of each row
        self.ops: list[str] = []
        self._key = key

    def apply(self, records: list[Record]) -> None:
        """Apply a batch."""
        for record in records:
            told: Mapping[str, Any] = record["_databus"]
            row = {name: value for name, value in record.items() if name != "_databus"}
            scn, as_of, key = told["scn"], told["as_of"], row[self._key]
            self.ops.append(told["op"])
            if told["op"] == "snapshot_end":
                self._drop(lambda at, s=scn: at[1] < s)
            elif told["op"] == "truncate":
                self._drop(lambda at, s=scn: at[0] <= s)
            elif scn < self.scns.get(key, (-1, -1))[0]:
                if told["op"] != "delete":
                    self.scns[key] = (self.scns[key][0], max(as_of, self.scns[key][1]))
            elif told["op"] == "delete":
                self.rows.pop(key, None)
                self.scns.pop(key, None)
            else:
                self.rows[key], self.scns[key] = row, (scn, as_of)

    def _drop(self, is_gone: Any) -> None:
        for key in [key for key, at in self.scns.items() if is_gone(at)]:
            del self.rows[key], self.scns[key]
