"""Split a batch into the ranges that its tasks read.

A batch that was planned before a restart may no longer be in any ring or log. Its
end cannot change, so it reads a snapshot of the rows that changed since its begin.
The snapshot may be newer than the batch's end. That does no harm: changes that come
again later are older than the rows, and are ignored. So it is with a batch of rows of a
snapshot that is not valid any more: it reads all rows of their source in another one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from databus.client.spark.planning.measure_client import MeasureClient
from databus.client.spark.planning.offsets import (
    NO_PROOF,
    Group,
    InSnapshot,
    Place,
    after_rows,
    check_not_behind,
)
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

log = logging.getLogger(__name__)

LEAST_TASK_ROWS = 10_000  # reading fewer takes less time than starting another task


class PartitionPlanner:
    """Splits batches into ranges for a number of tasks."""

    def __init__(self, measure_client: MeasureClient, tasks: int) -> None:
        self._measure_client = measure_client
        self._tasks = tasks

    def planned_now(self, group: Group, start: Place | None, end: Place) -> list[Range]:
        """Return the ranges of a batch that was planned just now, one for each task."""
        return self._for_tasks(ranges_between(group, start, end))

    def planned_before(self, group: Group, start: Place | None, end: Place) -> list[Range]:
        """Return the ranges of a batch that was planned before a restart."""
        planned = ranges_between(group, start, end)
        first = planned[0] if planned else None
        if isinstance(first, LogRange) and not (first.is_stock or self._is_held(first)):
            begun = self._measure_client.begin_snapshot(group, first.from_scn, first.proof)
            planned = self._of_whole(begun, first)
        elif isinstance(first, SnapshotRange) and not self._is_valid(first):
            # Its server may come back, and go on with the next rows, so these are read now.
            proof = NO_PROOF if start is None else start.proof
            group = group._replace(sources=(first.source,))
            begun = self._measure_client.begin_snapshot(group, first.since_scn, proof)
            check_not_behind(group.physical_source, begun, first.at_scn)
            planned = self._of_whole(begun, LogRange(*group, first.since_scn, first.at_scn, proof))
        return self._for_tasks(planned)

    def _of_whole(self, begun: InSnapshot, one: LogRange) -> list[Range]:
        """Return the ranges of a batch that reads a whole snapshot instead of its windows."""
        ends = [
            after_rows(place, self._measure_client.snapshot_after(place, None).row)
            for place in (replace(begun, source=source) for source in one.sources)
        ]
        return ranges_of_whole(one, ends)

    def _is_held(self, one: LogRange) -> bool:
        """Return whether windows are in a ring or log, or the task must find out.

        A log that has not reached them yet will have them. Raises OtherLogError.
        """
        try:
            self._measure_client.windows(one, one.from_scn, None)
        except DatabusError as error:
            if isinstance(error, BootstrapTooYoungError):
                return False
            if not _is_for_the_task(error):
                raise
        return True

    def _is_valid(self, one: SnapshotRange) -> bool:
        """Return whether a server has the snapshot of some rows, or the task must find out."""
        if self._measure_client.has_bootstrap:
            self._measure_client.prefer(one.server)
            scns = one.at_scn, one.since_scn
            begin = InSnapshot(*scns, one.source, one.from_row, one.server, one.store)
            try:
                self._measure_client.snapshot_after(begin, 1)
            except BootstrapTooYoungError:
                return False
            except BootstrapTooOldError as error:
                log.debug("the task asks again: %s", error)
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
        """Return the windows after which to split a range into parts of about equal row counts.

        The split does not change the rows of the batch.
        """
        if self._tasks == 1:
            return []
        ends: list[int] = []
        try:
            # Usually the planner has just counted them.
            rows = self._measure_client.rows_until(
                Group(one.physical_source, one.sources), one.to_scn
            )
            if rows is None and one.is_stock:
                return []  # counting them means reading them
            if rows is None:
                rows = self._measure_client.windows(one, one.from_scn, None).rows
            share = max(LEAST_TASK_ROWS, -(-rows // self._tasks))
            after = one.from_scn
            while rows > share:
                found = self._measure_client.windows(one, after, share)
                # A large transaction may fill the rest of the range; a window is never split.
                if not after < found.scn < one.to_scn:
                    break
                ends.append(found.scn)
                after, rows = found.scn, rows - found.rows
        except DatabusError as error:
            if not _is_for_the_task(error):
                raise
        return ends


def _is_for_the_task(error: DatabusError) -> bool:
    """Return whether to leave an error to the task, which may wait, or explains it better."""
    return isinstance(error, ScnNotFoundError | BootstrapTooOldError | BootstrapTooYoungError)
