"""Displays the demo: a live table on a terminal, plain lines anywhere else.

Callbacks only append to a queue. The main thread draws, so that drawing is not part of
the measured latencies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from databus.demo.arrivals import Arrival, Arrivals

STAMPS = ("change_no", "changed_ns")
OP_STYLES = {"insert": "green", "update": "yellow", "delete": "red"}
ROWS_SHOWN = 18
REFRESH_PER_S = 8


class Screen(Protocol):
    """Displays arrivals; a context manager."""

    def add(self, arrival: Arrival) -> None:
        """Add an arrival. Called in the consumer's thread; must not block."""

    def refresh(self) -> None:
        """Draw the new arrivals. Called in the main thread."""

    def __enter__(self) -> Screen:
        """Begin drawing."""
        ...

    def __exit__(self, *exception: object) -> None:
        """Stop drawing; the last state stays visible."""


class LiveScreen:
    """A table of the latest arrivals above a line of counters."""

    def __init__(self, console: Console, arrivals: Arrivals, footer: Callable[[], str]) -> None:
        self._arrivals = arrivals
        self._footer = footer
        self._latest: deque[Arrival] = deque(maxlen=ROWS_SHOWN)
        self._live = Live(console=console, auto_refresh=False, get_renderable=self.render)

    def add(self, arrival: Arrival) -> None:
        """Take one arrival."""
        self._latest.append(arrival)

    def refresh(self) -> None:
        """Draw the table again."""
        self._live.refresh()

    def render(self) -> RenderableType:
        """Return the current table and counters."""
        table = Table(expand=True)
        for name, ratio in (("time", 0), ("op", 0), ("source", 0), ("key", 0), ("row", 1)):
            table.add_column(name, ratio=ratio or None, no_wrap=True, overflow="ellipsis")
        table.add_column("latency", justify="right", no_wrap=True)
        for arrival in list(self._latest):
            op = Text(arrival.op.value, OP_STYLES.get(arrival.op.value, ""))
            row = Text(excerpt(arrival.row))
            cells = (clock(arrival.received_ns), op, arrival.source, str(arrival.key), row)
            table.add_row(*cells, f"{arrival.latency_ns / 1e6:.1f} ms")
        return Group(table, Text(counters(self._arrivals)), Text(self._footer(), "cyan"))

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.refresh()
        self._live.stop()


class PlainScreen:
    """Prints one line for each arrival, for pipes and logs."""

    def __init__(self, console: Console, footer: Callable[[], str]) -> None:
        self._console = console
        self._footer = footer
        self._shown = ""
        self._waiting: deque[Arrival] = deque()

    def add(self, arrival: Arrival) -> None:
        """Take one arrival."""
        self._waiting.append(arrival)

    def refresh(self) -> None:
        """Print the arrivals that came since the last time."""
        while self._waiting:
            line = plain_line(self._waiting.popleft())
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        # The phase without its progress: one line for each phase is enough.
        if (phase := self._footer().partition(":")[0]) != self._shown:
            self._shown = phase
            self._console.print(phase, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *exception: object) -> None:
        self.refresh()


def screen_for(console: Console, arrivals: Arrivals, footer: Callable[[], str] = str) -> Screen:
    """Return the live table for a terminal, plain lines for anything else.

    `footer` returns a line to show below, or ""; it is called at each refresh.
    """
    if console.is_terminal:
        return LiveScreen(console, arrivals, footer)
    return PlainScreen(console, footer)


def clock(time_ns: int) -> str:
    """Format a wall-clock time with milliseconds."""
    return datetime.fromtimestamp(time_ns / 1e9).strftime("%H:%M:%S.%f")[:-3]


def excerpt(row: Mapping[str, Any]) -> str:
    """Format a row's values without key and stamps; the screen cuts what does not fit.

    An order's status comes first, because it is what changes.
    """
    names = sorted(row.keys() - {"id", *STAMPS}, key=lambda n: (n != "status", list(row).index(n)))
    shown = [(name, row[name]) for name in names]
    return "  ".join(f"{name}={value}" for name, value in shown if value is not None)


def plain_line(arrival: Arrival) -> str:
    """Format one arrival as a line."""
    return (
        f"{clock(arrival.received_ns)} {arrival.op.value:6} {arrival.source} "
        f"{arrival.key}: {excerpt(arrival.row)}  ({arrival.latency_ns / 1e6:.1f} ms)"
    )


def counters(arrivals: Arrivals) -> str:
    """Format the number of arrivals by operation, and their rate."""
    of = f" of {arrivals.wanted}" if arrivals.wanted is not None else ""
    kinds = ", ".join(f"{count} {name}s" for name, count in sorted(arrivals.by_op.items()))
    times = f"p50 {arrivals.percentile_ms(50):.1f} ms, p99 {arrivals.percentile_ms(99):.1f} ms"
    return f"{arrivals.count}{of} changes ({kinds or 'none yet'}); {times}"
