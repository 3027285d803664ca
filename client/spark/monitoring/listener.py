"""A listener for your own session: how far each query is, in each physical source.

    from databus.client.spark.monitoring.listener import DatabusListener

    listener = DatabusListener()
    spark.streams.addListener(listener)
    ...
    for source in listener.sources:
        print(source.query, source.physical_source, source.position, source.lag_s, source.health)

It works on Spark Connect, too, where Spark calls it in your process. The log has a warning
when a relay stops capturing a source that a query reads, and a line when it goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from databus.client.spark.monitoring.metrics import QueryState, QueryStats
from databus.client.spark.monitoring.progress import PlaceStats

__all__ = ["DatabusListener", "Health", "SourceProgress"]

log = logging.getLogger(__name__)


class Health(StrEnum):
    """The state of a query in a physical source."""

    RUNNING = "running"
    STOPPED = "stopped"  # the query runs, but the relay does not capture the source
    FAILED = "failed"  # the query ended with an error
    ENDED = "ended"


class SourceProgress(NamedTuple):
    """How far a query is in one physical source, as of its last batch.

    `position`: the SCN up to which everything is read; None in a snapshot. `newest`: the
    newest SCN that a relay has reported. `lag_s`: from the commit of `position` to that
    of `newest`, 0 when everything is read; None while it is not known. `rung`: where the
    batch was read from: `relay`, or the `log` or a `snapshot` of a bootstrap server.
    `stopped`: the state of a source that its relay does not capture, else "".
    """

    query: str
    physical_source: str
    position: int | None
    newest: int | None
    lag_s: float | None
    rung: str
    stopped: str
    health: Health


class DatabusListener(QueryStats):
    """Keeps the progress of all queries of format databus in a session; thread-safe.

    `on_progress` is called with each source's progress after each batch, on a thread of
    Spark. What it raises is logged by Spark, and the query goes on.
    """

    def __init__(self, on_progress: Callable[[SourceProgress], None] = lambda _: None) -> None:
        super().__init__(on_batch=self._take)
        self._on_progress = on_progress
        self._stopped: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    @property
    def sources(self) -> list[SourceProgress]:
        """The progress of each query in each physical source, sorted by their names."""
        return [one for state in self.queries for one in _progress(state)]

    def _take(self, state: QueryState) -> None:
        for one in _progress(state):
            self._tell(state.query_id, one)
            self._on_progress(one)

    def _tell(self, query_id: str, one: SourceProgress) -> None:
        """Log a change of a source's state."""
        key = query_id, one.physical_source
        with self._lock:
            before = self._stopped.get(key, "")
            self._stopped[key] = one.stopped
        if one.stopped and one.stopped != before:
            log.warning(
                "query %s: the relay does not capture %s, which is in state %s: its newest changes "
                "are not known",
                one.query,
                one.physical_source,
                one.stopped,
            )
        elif before and not one.stopped:
            log.warning("query %s: the relay captures %s again", one.query, one.physical_source)


def _progress(state: QueryState) -> list[SourceProgress]:
    places = () if state.last is None else state.last.places
    return [
        SourceProgress(
            state.name,
            place.physical_source,
            place.scn,
            place.newest_scn,
            place.lag_s,
            place.rung,
            place.stopped,
            _health(state, place),
        )
        for place in places
    ]


def _health(state: QueryState, place: PlaceStats) -> Health:
    if not state.is_running:
        return Health.FAILED if state.error else Health.ENDED
    return Health.STOPPED if place.stopped else Health.RUNNING
