"""What a registration says to a window before it is delivered: which of its rows are wanted.

A *session* is one run of a stream: as long as a process's share of the rows stays the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, cast

from databus.client.dispatcher.calls import Failure
from databus.client.dispatcher.data_window import group_events
from databus.client.events.data_event import DataEvent
from databus.client.events.row_condition import RowCondition, row_condition
from databus.client.group.share import Share
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow

Item = TypeVar("Item", ReadWindow, BootstrapPage)
AnyItem = TypeVar("AnyItem", bound=ReadWindow | BootstrapPage)


class Session(Protocol):
    """Asked by the consuming thread."""

    def begin(self) -> Failure | None:
        """Tell the consumers what begins. It is called again after a failure."""
        ...

    def admit_window(self, read: ReadWindow) -> ReadWindow | None:
        """Return the window with the rows that are to be delivered.

        None if nothing may be delivered any more: a lease was lost.
        """
        ...

    def admit_page(self, page: BootstrapPage) -> BootstrapPage | None:
        """Return the page with the rows that are to be delivered; None as `admit_window`."""
        ...

    def end_bootstrap(self) -> None:
        """Take note that the position is that of a window again; its checkpoint is written."""

    def end(self) -> None:
        """Tell the consumers what ends, before the last checkpoint is written."""


def selected(read: Item, share: Share) -> Item:
    """Return a window, or a page, with the rows that a share delivers."""
    return with_events(read, lambda event: share.delivery(event) is not None)


def row_conditions(texts: Mapping[str, str]) -> dict[str, RowCondition]:
    """Return the conditions of SQL texts; raise SettingsError."""
    return {source: row_condition(text) for source, text in texts.items()}


def wanted(read: AnyItem, conditions: Mapping[str, RowCondition]) -> AnyItem:
    """Return a window, or a page, with the events that the filter of their source wants.

    Raises RowError, SettingsError.
    """

    def is_wanted(event: DataEvent) -> bool:
        condition = conditions.get(event.source)
        return condition is None or condition.wants(event)

    return with_events(read, is_wanted)


def with_events(read: AnyItem, is_wanted: Callable[[DataEvent], bool]) -> AnyItem:
    """Return a window, or a page, with those events only."""
    window = read.window
    events = [event for _, run in group_events(read) for event in run]
    kept = [place for place, event in enumerate(events) if is_wanted(event)]
    if len(kept) == len(events):
        return read
    # A statement stays behind those of its rows that are left.
    statements = tuple((bisect_left(kept, place), told) for place, told in window.statements)
    raw = window.events
    rows = tuple([raw[place] for place in kept])
    left = window._replace(events=rows, statements=statements)
    return cast("AnyItem", read._replace(window=left))
