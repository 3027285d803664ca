"""The consumer interface: callbacks and their results.

Per window:

    on_start_data_event_sequence(scn)
      on_start_source(source) → on_data_event(event)… → on_end_source(source)
                                                per run of events of one source
                                                (`on_data_events(events)`: once per run)
    on_end_data_event_sequence(scn)
    on_checkpoint(scn)

`on_schema_change(source, before, after, needs_reload)` comes before the first event of a
new version of a table's schema.

A DDL statement on one of the registration's tables makes the call `on_ddl(event)` at its
position among the rows, between the sources' runs, if that callback is overridden. So does a DML
statement that the source logged instead of its rows: `on_statement(event)`.

An empty window (changes of other tables only) calls `on_checkpoint` alone. Events are
delivered at least once, in commit order, in whole windows; after `on_rollback(scn)` every
window after `scn` is delivered again. All callbacks of one registration run on one thread,
its dispatcher's.

A client without a checkpoint, or whose position no relay holds any more, first reads from a
bootstrap server:

    on_start_bootstrap()
      per page:
        on_start_bootstrap_sequence(scn)
          on_start_bootstrap_source(source) → on_bootstrap_event(event)…
            → on_end_bootstrap_source(source)
        on_end_bootstrap_sequence(scn)
        on_bootstrap_checkpoint(scn)
    on_stop_bootstrap()

First come the current rows (the snapshot; it is consistent from `scn` on), then the changes
since then (the catch-up; a page reaches up to `scn`). A page is not a transaction: during a
snapshot some rows may be newer than others, and only at `on_stop_bootstrap` are all rows as
of one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Literal

from databus.client.events.data_event import DataEvent, DdlEvent, StatementEvent
from databus.schemas.errors import ConsumerError
from databus.schemas.event.metadata import Op

__all__ = ["Consumer", "DataEvent", "DdlEvent", "OnFailure", "Op", "Result", "StatementEvent"]


OnFailure = Literal["stop", "skip"] | Callable[[DataEvent, ConsumerError], Any]
"""After the last retry of an event: `stop` its registration, `skip` it, or call a function.

The function keeps the event elsewhere, as a dead letter: `DeadLetterFile` is one. It may be a
coroutine function. If it raises, the registration stops.
"""


class Result(Enum):
    """The result of a callback; None means SUCCESS."""

    SUCCESS = "success"
    # Write a checkpoint at the end of this window, whether one is due or not.
    CHECKPOINT = "checkpoint"
    # Write no checkpoint at the end of this window: its data is not safe yet. The
    # checkpoint of a later window covers it.
    SKIP_CHECKPOINT = "skip_checkpoint"
    ERROR = "error"  # roll back to the last successful window, and deliver this one again
    ERROR_FATAL = "error_fatal"  # stop the client


class Consumer:
    """Base class of consumers: override the callbacks you need.

    Each returns a `Result`, or None for SUCCESS. An exception counts as ERROR, and so does
    a callback that takes longer than `callback_budget_s`.
    """

    def on_start_consumption(self) -> Result | None:
        """Consumption starts; called once, before all other callbacks."""

    def on_stop_consumption(self) -> Result | None:
        """Consumption has ended; called once, after all other callbacks."""

    def on_start_data_event_sequence(self, scn: int) -> Result | None:
        """A window with events begins."""

    def on_start_source(self, source: str) -> Result | None:
        """Events of this source follow."""

    def on_data_event(self, event: DataEvent) -> Result | None:
        """A row has changed."""

    def on_data_events(self, events: Sequence[DataEvent]) -> Result | None:
        """Rows of one source have changed, those of one run.

        If it is overridden, it is called instead of `on_data_event`. A run costs one call,
        whatever its number of events, and `callback_budget_s` is for the whole run.
        """

    def on_ddl(self, event: DdlEvent) -> Result | None:
        """A table of the registration was altered, created, dropped or truncated."""

    def on_statement(self, event: StatementEvent) -> Result | None:
        """A statement changed rows of a table of the registration, and the log lacks those rows.

        A source with `on_statement = "deliver"` sends it. Before it, `on_schema_change` tells that
        the table's rows must be read again.
        """

    def on_schema_change(
        self, source: str, before: str, after: str, needs_reload: bool
    ) -> Result | None:
        """A table was altered, which also changes rows that were not written since.

        Called once per version, before its first event; `before` and `after` are the
        schema texts. `databus.schemas.table_change.step(before, after).row(row)` converts
        a row of the old version, unless `needs_reload`: then only the database knows the
        new values, and a bootstrap delivers them.
        """

    def on_end_source(self, source: str) -> Result | None:
        """This run of events of the source has ended."""

    def on_end_data_event_sequence(self, scn: int) -> Result | None:
        """All events of the window have been delivered."""

    def on_checkpoint(self, scn: int) -> Result | None:
        """A checkpoint may be written here: a restart continues after `scn`."""

    def on_rollback(self, scn: int) -> Result | None:
        """Every window after `scn` is delivered again (-1: all windows)."""

    def on_add_partition(self, partition: int, scn: int) -> Result | None:
        """This process has a partition of its group now: its rows after window `scn` follow.

        -1: those from the `start` setting on. Only in a group; so is `on_drop_partition`.
        """

    def on_drop_partition(self, partition: int) -> Result | None:
        """The partition goes to another process: make safe what was delivered of it.

        The checkpoint is written behind this. It is not called for a partition that was lost,
        because this process was frozen or cut off: another one has had it since.
        """

    def on_error(self, error: BaseException) -> Result | None:
        """An error stops the client."""

    # A bootstrap makes the same calls under other names. A consumer that treats snapshot
    # rows like changes need not override them.

    def on_start_bootstrap(self) -> Result | None:
        """Pages follow: current rows, then changes; after a restart, the remaining pages."""

    def on_stop_bootstrap(self) -> Result | None:
        """All rows are now as of one SCN; windows follow again."""

    def on_start_bootstrap_sequence(self, scn: int) -> Result | None:
        """As `on_start_data_event_sequence`, for a page."""
        return self.on_start_data_event_sequence(scn)

    def on_start_bootstrap_source(self, source: str) -> Result | None:
        """As `on_start_source`."""
        return self.on_start_source(source)

    def on_bootstrap_event(self, event: DataEvent) -> Result | None:
        """As `on_data_event`."""
        return self.on_data_event(event)

    def on_bootstrap_events(self, events: Sequence[DataEvent]) -> Result | None:
        """As `on_data_events`."""
        return self.on_data_events(events)

    def on_end_bootstrap_source(self, source: str) -> Result | None:
        """As `on_end_source`."""
        return self.on_end_source(source)

    def on_end_bootstrap_sequence(self, scn: int) -> Result | None:
        """As `on_end_data_event_sequence`."""
        return self.on_end_data_event_sequence(scn)

    def on_bootstrap_checkpoint(self, scn: int) -> Result | None:
        """As `on_checkpoint`."""
        return self.on_checkpoint(scn)

    def on_bootstrap_rollback(self, scn: int) -> Result | None:
        """As `on_rollback`; -1 = the bootstrap restarts, so empty the target.

        A row that was delivered and has been deleted since may not come again. With another
        `scn` only the events after the last `on_bootstrap_checkpoint`, or after `scn`, are
        delivered again.
        """
        return self.on_rollback(scn)
