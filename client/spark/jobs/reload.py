"""Read a table again beside its target, while batches go on for other tables.

The table is loaded as of one SCN. Then the changes up to the batches' SCN are applied to it,
piece by piece. In the end, between two batches, it takes the place of the target, in one commit.
A reload that was killed continues its load, or begins again if that was done, or if the table
was altered since: what is left of it is removed then, as it may have other columns and types.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from databus.client.spark.consuming.apply_events import apply_events
from databus.client.spark.consuming.restart_policy import SPARK_FAILURES, read_failure
from databus.client.spark.consuming.schema_book import SchemaBook
from databus.client.spark.jobs.load import LoadProgress, load
from databus.client.spark.options import options_of_load, parse_options
from databus.client.spark.session import parallelism
from databus.client.spark.source.changes_between import ends_of_changes
from databus.client.spark.targets.following import noted_scn
from databus.client.spark.targets.target import Target, open_target
from databus.client.sql.modes import WriteMode
from databus.schemas.errors import ReloadNeededError, UnknownSourceError

log = logging.getLogger(__name__)

# Rounds of changes, each shorter than the one before, until batches wait for the last one.
ROUNDS = 3
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Reload:
    """A table to read again. `physical`: its physical source; `uri`: that of `target`, whole."""

    source: str
    physical: str
    uri: str
    target: Target
    # Rows from before this SCN cannot be read in the columns of now.
    least_scn: int


class Reloader:
    """Reads tables again; any thread may call it.

    `given`: the options of the job's stream. `taken` returns the newest SCN of a physical source
    that batches had, `pausing` a context in which no batch is applied.
    """

    def __init__(
        self,
        spark: SparkSession,
        given: Mapping[str, str],
        book: SchemaBook,
        taken: Callable[[str], int],
        pausing: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._spark = spark
        self._given = given
        self._options = parse_options(given)
        self._book = book
        self._taken = taken
        self._pausing = pausing

    def run(self, reload: Reload, show: Callable[[str], None], done: Callable[[], None]) -> None:
        """Read one table again; call `done` while no batch is applied and the rows are in place.

        `show` is told in words how far it is, and may raise. Raises DatabusError, Spark's errors
        and those of the target's library: run it again then. ReadAgainError: the relay does not
        have the changes since the load any more; ReloadNeededError: one of them altered the table
        once more. A load as of a newer SCN is needed, and the next run begins with one.
        """
        target = reload.target
        # A table that keeps what was takes the rows in as a snapshot.
        is_there = target.schema() is not None and not keeps_all(target)
        uri = f"{reload.uri}__databus_reload" if is_there else reload.uri
        mode = None if is_there else str(target.mode)
        reload = replace(reload, uri=uri)  # that of the table to load, from here on
        reached = self._load(reload, show, alone=is_there)
        # Not before: the load may remove what was there.
        with closing(open_target(uri, mode=mode)) as beside:
            for _ in range(ROUNDS):
                reached = self._caught_up(reload, beside, reached, show)
            with self._pausing():
                reached = self._caught_up(reload, beside, reached, show)
                if is_there:
                    shape = noted_scn(beside, reload.source)
                    number = reached if shape is None else shape
                    positions = {**beside.positions(), reload.physical: reached}
                    target.take_over(uri, f"reload:{reload.source}", number, positions)
                done()

    def _load(self, reload: Reload, show: Callable[[str], None], *, alone: bool) -> int:
        """Return the SCN as of which the table to load is whole; `alone`: it is one beside."""
        show("rows are asked for")
        try:
            return self._loaded(reload, show, alone=alone)
        except (ReloadNeededError, *SPARK_FAILURES) as error:
            if not read_failure(error).is_a(ReloadNeededError) or keeps_all(reload.target):
                raise
            # It was begun before the table was altered.
            log.warning("%s: begins again: %s", reload.source, error)
            with closing(open_target(reload.uri)) as begun:
                begun.remove()
        return self._loaded(reload, show, alone=alone)

    def _loaded(self, reload: Reload, show: Callable[[str], None], *, alone: bool) -> int:
        keeps = keeps_all(reload.target)

        def report(progress: LoadProgress) -> None:
            show(f"{progress.rows:,} of about {progress.estimate:,} rows are read")

        end_s = time.monotonic() + self._options.retry_seconds
        while True:
            try:
                return load(
                    self._spark,
                    reload.source,
                    reload.uri,
                    bootstrap_servers=self._options.bootstrap_servers,
                    # Half of the tasks that run at once: the others are for batches.
                    partitions=max(1, parallelism(self._spark) // 2),
                    least_scn=reload.least_scn,
                    options=options_of_load(self._given, reload.source),
                    # Else a load into the same table that has ended would be resumed.
                    again=keeps and reload.target.schema() is not None,
                    alone=alone,
                    mode=str(reload.target.mode),
                    report=report,
                ).scn
            except UnknownSourceError as error:
                # A bootstrap server keeps a new table a moment later than its relay has it.
                if time.monotonic() > end_s:
                    raise
                show(f"no bootstrap server has it: {error}")
            time.sleep(_LOOK_S)

    def _caught_up(
        self, reload: Reload, beside: Target, begin: int, show: Callable[[str], None]
    ) -> int:
        """Apply the changes after an SCN up to the batches'; return the SCN that is reached."""
        until = self._taken(reload.physical)
        if until <= begin:
            return begin
        for end in ends_of_changes(self._piece(reload.source, begin, until)):
            show(f"changes after scn {begin} up to {until} are applied")
            self._apply(reload.source, beside, begin, end)
            begin = end
        return begin

    def _apply(self, source: str, beside: Target, begin: int, end: int) -> None:
        reader = self._spark.read.format("databus").options(**self._piece(source, begin, end))
        events = reader.load().toArrow()
        if events.num_rows:
            app, as_text = f"catch-up:{source}", self._options.columns_as_text
            apply_events(events, end, beside, self._book, app_id=app, as_text=as_text)

    def _piece(self, source: str, after: int, until: int) -> dict[str, str]:
        taken = {name: text for name, text in self._given.items() if name not in _OF_STREAMS}
        return {**taken, "sources": source, "after": str(after), "until": str(until)}


def keeps_all(target: Target) -> bool:
    """Return whether a table keeps what was, so that its rows cannot be replaced."""
    return target.mode is not WriteMode.MIRROR


# Options that a read between two SCNs does not take.
_OF_STREAMS = {"newSources", "start"}
