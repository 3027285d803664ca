"""Which rows of a snapshot may be written between changes that go on. Pure.

A snapshot is of another moment than the place that the sink has reached. So a row of it waits until
the sink has passed the SCN of the row, and is dropped if the sink has passed a newer change of its
key since the reload began. A snapshot of an earlier moment than that is not used: it could lack
what the sink has passed before. A statement on the table, or a truncate, ends the attempt.
"""

from __future__ import annotations

from databus.client.dispatcher.data_window import DataWindow
from databus.client.events.data_event import DataEvent
from databus.client.events.row_condition import Row


class ReloadRule:
    """What the sink has passed since a reload of one source began."""

    def __init__(self, source: str, begin_scn: int) -> None:
        """`begin_scn`: the sink has passed everything up to there, -1 = nothing."""
        self.source, self.begin_scn = source, begin_scn
        self.is_broken = False  # the table was emptied or altered: begin again
        self._newest: dict[str, int] = {}  # SCN of the newest change, by key

    @property
    def keys(self) -> int:
        """The number of keys that have changed."""
        return len(self._newest)

    def passes(self, window: DataWindow) -> None:
        """Take note of a window that is given to the target now."""
        if any(self.source in told.sources for told in window.statements):
            self.is_broken = True
        for event in window.events:
            if event.source != self.source:
                continue
            if event.is_truncate:
                self.is_broken = True
                continue
            for key in _keys(event):
                self._newest[key] = event.scn

    def is_fresh(self, event: DataEvent) -> bool:
        """Whether the target has nothing newer of this row, which it has passed the SCN of."""
        return self._newest.get(_text(event.key), -1) <= event.scn


def _keys(event: DataEvent) -> set[str]:
    """Return the keys of the row, after a change and before it."""
    key = event.key
    before = event.before or {}
    return {_text(key), _text({column: before.get(column, key[column]) for column in key})}


def _text(key: Row) -> str:
    # Exactly: where a collation takes two keys for one, both are in the log.
    return repr(sorted(key.items()))
