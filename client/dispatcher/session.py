"""What a registration of a group says to a window before it is delivered.

A *session* is one run of a stream: as long as a process's share of the rows stays the same.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol, TypeVar

from databus.client.dispatcher.calls import Failure
from databus.client.dispatcher.data_window import group_events
from databus.client.group.share import Share
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow

Item = TypeVar("Item", ReadWindow, BootstrapPage)


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
    window = read.window
    events = [event for _, run in group_events(read) for event in run]
    kept = [place for place, event in enumerate(events) if share.delivery(event) is not None]
    if len(kept) == len(events):
        return read
    # A statement stays behind those of its rows that are left.
    statements = tuple((bisect_left(kept, place), told) for place, told in window.statements)
    raw = window.events
    rows = tuple([raw[place] for place in kept])
    return read._replace(window=window._replace(events=rows, statements=statements))
