"""What the tasks of a batch read: ranges, a share for each, of what is held when it begins.

A batch whose end was planned before a restart may be in no ring and no log by
now. Its end stands, so what it reads instead is a snapshot from its begin to its
end: newer than the batch's own end, perhaps, but what comes again after that is
older than what is known of each row by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from databus.client.spark.planning.measure_client import Measuring
from databus.client.spark.planning.offsets import Place, after_rows
from databus.client.spark.planning.ranges import (
    LogRange,
    Range,
    SnapshotRange,
    cut_rows,
    cut_windows,
    ranges_between,
    ranges_of_whole,
)
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    ScnNotFoundError,
)

LEAST_TASK_ROWS = 10_000  # fewer are read sooner than another task is begun


class TaskRanges:
    """Shares batches out between so many tasks."""

    def __init__(self, measuring: Measuring, tasks: int) -> None:
        self._measuring = measuring
        self._tasks = tasks

    def planned_now(self, name: str, start: Place | None, end: Place) -> list[Range]:
        """Return what a batch reads that was planned just now, a range for each of its tasks."""
        return self._for_tasks(ranges_between(name, self._measuring.by_physical[name], start, end))

    def planned_before(self, name: str, start: Place | None, end: Place) -> list[Range]:
        """Return what a batch reads that was planned before a restart, from what is held now."""
        planned = ranges_between(name, self._measuring.by_physical[name], start, end)
        first = planned[0] if planned else None
        if isinstance(first, LogRange) and not self._is_held(first):
            begun = self._measuring.begin_snapshot(name, first.from_scn)
            ends = [
                after_rows(one, self._measuring.snapshot_after(name, one, None).row)
                for one in (replace(begun, source=source) for source in first.sources)
            ]
            planned = ranges_of_whole(name, ends, first.to_scn)
        return self._for_tasks(planned)

    def _is_held(self, one: LogRange) -> bool:
        """Say whether windows are in a ring or log, or it is for the task to say that they are not.

        A log that has not come to them yet will have them.
        """
        try:
            self._measuring.windows(one, one.from_scn, None)
        except DatabusError as error:
            if isinstance(error, BootstrapTooYoungError):
                return False
            if not _is_for_the_task(error):
                raise
        return True

    def _for_tasks(self, ranges: Sequence[Range]) -> list[Range]:
        found: list[Range] = []
        for one in ranges:
            if isinstance(one, SnapshotRange):
                found += cut_rows(one, self._tasks)
            elif isinstance(one, LogRange):
                found += cut_windows(one, self._inner_ends(one))
            else:
                found.append(one)
        return found

    def _inner_ends(self, one: LogRange) -> list[int]:
        """Return the windows behind which a range is cut into parts of about as many rows.

        Wherever it is cut, the batch is the same.
        """
        if self._tasks == 1:
            return []
        ends: list[int] = []
        try:
            rows = self._measuring.rows_until(one.physical_source, one.to_scn)
            if rows is None:
                rows = self._measuring.windows(one, one.from_scn, None).rows
            share = max(LEAST_TASK_ROWS, -(-rows // self._tasks))
            after = one.from_scn
            while rows > share:
                found = self._measuring.windows(one, after, share)
                if not after < found.scn < one.to_scn:
                    break
                ends.append(found.scn)
                after, rows = found.scn, rows - found.rows
        except DatabusError as error:
            if not _is_for_the_task(error):
                raise
        return ends


def _is_for_the_task(error: DatabusError) -> bool:
    """Say whether the task that reads a range waits it out, or says it better."""
    return isinstance(error, ScnNotFoundError | BootstrapTooOldError | BootstrapTooYoungError)
