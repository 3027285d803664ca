"""The windows of LinkedIn's relays, for planning.

Such a relay has no `/measure`. So the planner reads the stream itself, as far as a batch may
reach, and keeps the ends of windows alone; the tasks read the same windows again. Each window
crosses the network twice.

Nor does the relay name a physical source, or its log. All sources of a query are those of one
physical source, called `*`: no settings can give that name, so a checkpoint of one kind of
relay is never taken for one of the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from databus.client.responses import read_sources
from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.capture_states import Stopped
from databus.client.spark.planning.offsets import STOCK_RELAY, AtScn, Group
from databus.client.spark.planning.requests import LogMeasure
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.spark.planning.stock_stream import StockStream
from databus.client.spark.planning.window_ends import Limits, Reach, WindowEnd
from databus.client.subscription import find_ids
from databus.conf.named_places import NamedPlace, ScnPlace, Word
from databus.conf.patterns import is_pattern, unescaped
from databus.schemas.errors import SettingsError
from databus.schemas.protocol import Parameter
from databus.schemas.scn import MAX_SCN


class StockWindows:
    """The windows of the LinkedIn relays of one query."""

    # The relay holds no request open: asked as often as one of ours it would do little else.
    idle_s = 0.25
    tells_evicted = False
    gone_advice = "start with another checkpoint folder, and with start = earliest or latest"

    def __init__(self, options: SourceOptions, relays: ServerPool) -> None:
        """Raise UnknownSourceError; SettingsError for options that need a relay of this project."""
        if options.bootstrap_servers:
            raise SettingsError(
                f"option bootstrapServers: {relays.urls[0]} is a LinkedIn relay, whose bootstrap "
                "server Spark does not read; leave the option out"
            )
        if patterns := [text for text in options.sources if is_pattern(text)]:
            raise SettingsError(
                f"option sources: {relays.urls[0]} is a LinkedIn relay; name each source instead "
                f"of {', '.join(patterns)}"
            )
        answer = relays.get("/sources", {Parameter.VERSION: "1"})
        offered = read_sources(answer.server, bytes(answer.body))
        sources = tuple(map(unescaped, options.sources))
        self.src_ids: Mapping[str, int] = find_ids(sources, offered)
        self.by_physical: Mapping[str, tuple[str, ...]] = {STOCK_RELAY: sources}
        self._server = answer.server
        self._max_bytes = options.max_bytes_per_trigger
        self._stream = StockStream(relays, self.src_ids, options.filters, options.fetch_bytes)
        # The windows after `_begin`, without a gap.
        self._begin = -1
        self._known: list[WindowEnd] = []
        self._was_empty = False  # when the query asked for the newest window

    def look_again(self) -> None:
        """Do nothing: patterns are refused."""

    def stopped(self, _at_once: bool) -> Mapping[str, Stopped]:
        """Return nothing: the relay does not say whether it captures."""
        return {}

    def resolved(self, _group: Group, start: NamedPlace) -> NamedPlace:
        """Return the start; raise SettingsError for one that the relay cannot find."""
        if isinstance(start, ScnPlace) or start in (Word.EARLIEST, Word.LATEST):
            return start
        what = "tables" if start is Word.BEGINNING else "times, GTIDs or binlogs"
        raise SettingsError(
            f"option start = {start}: {self._server} is a LinkedIn relay, which has no {what} "
            "to start from; choose earliest, latest or an SCN"
        )

    def after(
        self, _group: Group, place: AtScn, rows: int | None, target: int | None
    ) -> LogMeasure:
        """Measure the windows after a place; raises ScnNotFoundError."""
        scn = place.scn
        reach = Reach(
            scn,
            Limits(
                MAX_SCN if rows is None else rows,
                MAX_SCN if rows is None else self._max_bytes,
                MAX_SCN if target is None else target,
            ),
        )
        for window in self._windows_after(scn):
            reach.add(window)
            if reach.is_over:
                break
        newest_scn, newest_ns = scn, 0
        if self._known:
            newest_scn, newest_ns = self._known[-1].scn, self._known[-1].time_ns
        return LogMeasure(
            scn,
            reach.scn,
            reach.rows,
            reach.size_bytes,
            reach.time_ns // 1_000_000,
            newest_scn,
            newest_ns // 1_000_000,
        )

    def from_start(
        self, group: Group, start: NamedPlace, rows: int | None, target: int | None
    ) -> LogMeasure:
        """Measure the windows from the newest one, or from the oldest one."""
        # The first window after an empty ring came after the query had begun.
        if start is Word.LATEST and not self._was_empty:
            newest = self._stream.newest()
            self._was_empty = newest is None
            scn, time_ns = newest or (-1, 0)
            time_ms = time_ns // 1_000_000
            return LogMeasure(scn, scn, 0, 0, time_ms, scn, time_ms)
        self._forget(-1)
        found = self.after(group, AtScn(-1), rows, target)
        return found._replace(from_scn=self._known[0].scn - 1) if self._known else found

    def made_at(self, _source: str) -> None:
        """Return nothing: the relay does not say it."""

    def oldest(self, _name: str) -> int:
        """Return the SCN of the oldest window that was read."""
        return self._known[0].scn

    def _windows_after(self, scn: int) -> Iterator[WindowEnd]:
        """Yield the windows after `scn`; those that are not known yet are read."""
        if not self._begin <= scn <= self._end:
            self._forget(scn)
        at = bisect_right(self._known, scn, key=lambda window: window.scn)
        while True:
            while at < len(self._known):
                yield self._known[at]
                at += 1
            further = self._stream.after(self._end).windows
            if not further:
                return
            # A batch is measured from its begin on: nobody asks for what is before.
            done = bisect_right(self._known, scn, key=lambda window: window.scn)
            del self._known[:done]
            self._begin, at = max(self._begin, scn), at - done
            self._known += further

    @property
    def _end(self) -> int:
        return self._known[-1].scn if self._known else self._begin

    def _forget(self, scn: int) -> None:
        """Begin again with the windows after `scn`."""
        self._begin, self._known = scn, []
