"""What becomes of an event whose callbacks fail each time: its registration stops, or goes on.

A window is delivered as a whole, so the window of an event that is set aside is delivered once
more, without it. An event of a run (`on_data_events`) is found by delivering the window's events
one by one. Pure, but for the application's own function.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from databus.client.consumer import OnFailure
from databus.client.dispatcher.calls import Failure
from databus.client.dispatcher.data_window import Group
from databus.client.events.data_event import DataEvent
from databus.schemas.errors import ConsumerError

log = logging.getLogger(__name__)


class FailingEvents:
    """Of the window that is being delivered. Used by the dispatcher's thread."""

    def __init__(self, on_failure: OnFailure = "stop") -> None:
        self.count = 0  # that were set aside
        # Whether the window is to be delivered otherwise than it is; read for each window.
        self.is_active = False
        self._on_failure = on_failure
        self._aside: set[tuple[int, int, int]] = set()
        self._are_alone = False

    def settle(self, failure: Failure, error: ConsumerError) -> ConsumerError | None:
        """Return the error to stop with, or None: `left` says what to deliver instead."""
        if self._on_failure == "stop" or failure.is_fatal or not failure.events:
            return error
        if len(failure.events) > 1:
            self._are_alone = self.is_active = True
            return None
        (event,) = failure.events
        try:
            self._set_aside(event, error)
        except BaseException as problem:  # on this thread it would end nothing else
            found = ConsumerError(
                error.scn, f"{error.problem}; and on_failure, which was to keep it: {problem!r}"
            )
            found.__cause__ = problem
            return found
        self._aside.add(_place(event))
        self.is_active = True
        self.count += 1
        return None

    def left(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups of the window without what was set aside."""
        found: list[Group] = []
        for source, events in groups:
            if source is None:
                found.append((source, events))
                continue
            kept = [event for event in events if _place(event) not in self._aside]
            if self._are_alone:
                found.extend((source, [event]) for event in kept)
            elif kept:
                found.append((source, kept))
        return found

    def forget(self) -> None:
        """Forget the window: it was delivered."""
        self._aside.clear()
        self._are_alone = self.is_active = False

    def _set_aside(self, event: DataEvent, error: ConsumerError) -> None:
        if callable(self._on_failure):
            self._on_failure(event, error)
        else:
            log.warning("%r is skipped: %s", event, error)


def _place(event: DataEvent) -> tuple[int, int, int]:
    return event.src_id, event.scn, event.index
