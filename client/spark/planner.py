"""How far the next micro-batch goes: the rules of `latestOffset`.

For each physical source one ladder, as everywhere: the ring of a relay; where
that begins later, the log of a bootstrap server; where that begins later, too,
a snapshot, of what changed since or of everything. A batch of windows ends at
a window's end, and has at most so many rows unless one transaction has more.

A snapshot is over in a batch of its own, planned only when its server says
that it is still what it was begun as: a task that finds that it is not brings
nothing, for then it begins anew, and all of it comes again.

A batch whose end was planned before a restart may be in no ring and no log by
now. Its end stands, so what it reads instead is a snapshot from its begin to its
end: newer than the batch's own end, perhaps, but what comes again after that is
older than what is known of each row by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import quote

from databus.client.answers import is_too_old, is_too_young, read_scn
from databus.client.spark.blocking import Answer, ServerPool
from databus.client.spark.offsets import AtScn, InSnapshot, Place, Places, after_rows
from databus.client.spark.options import Named, SourceOptions
from databus.client.spark.ranges import (
    LogRange,
    Range,
    SnapshotRange,
    cut_rows,
    cut_windows,
    ranges_between,
    ranges_of_whole,
)
from databus.client.spark.requests import (
    LogMeasure,
    SnapshotMeasure,
    beginning_after,
    catch_up,
    filters_text,
    log_measure,
    online_at,
    snapshot,
    snapshot_measure,
)
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    CheckpointError,
    DatabusError,
    ScnNotFoundError,
    SettingsError,
    UnknownSourceError,
)
from databus.schemas.scn import MAX_SCN

STORE_ID = "x-databus-store"
ALL_ROWS = 1 << 40
LEAST_TASK_ROWS = 10_000  # fewer are read sooner than another task is begun


class Planner:
    """Plans for one query; keeps nothing that a restart would need."""

    def __init__(
        self, options: SourceOptions, relays: ServerPool, bootstraps: ServerPool | None
    ) -> None:
        self._options = options
        self._relays = relays
        self._bootstraps = bootstraps
        self._src_ids: dict[str, int] = {}
        self._by_physical: dict[str, tuple[str, ...]] = {}
        # The newest windows that relays have spoken of.
        self.newest: dict[str, AtScn] = {}
        # Of the last batch of windows: where it ends, and its rows.
        self._counted: dict[str, tuple[int, int]] = {}

    def close(self) -> None:
        """Let go of the connections."""
        self._relays.close()
        if self._bootstraps is not None:
            self._bootstraps.close()

    @property
    def by_physical(self) -> Mapping[str, tuple[str, ...]]:
        """The query's sources by physical source; raises UnknownSourceError."""
        if not self._by_physical:
            self._by_physical = self._ask_for_sources()
        return self._by_physical

    def targets(self) -> dict[str, int]:
        """Return the newest SCN of each physical source."""
        return {name: self._from_words(name, Named.LATEST).max_scn for name in self.by_physical}

    def next_places(
        self, places: Places, rows: int | None, targets: Mapping[str, int] | None = None
    ) -> Places:
        """Return where a batch of at most so many rows ends; the same where nothing is new.

        Nothing beyond `targets` when there are any. Raises DatabusError.
        """
        strange = sorted(set(places) - set(self.by_physical))
        if strange:
            raise CheckpointError(
                f"the query's checkpoint has physical source {', '.join(strange)}, and the relay "
                f"has its sources in {', '.join(self.by_physical)}: was it renamed? Start the "
                "query with another checkpoint folder"
            )
        share = None if rows is None else max(1, rows // len(self.by_physical))
        further: Places = {}
        for name in self.by_physical:
            place = places.get(name)
            target = None if targets is None else targets[name]
            found = self._advance(name, place, share, target)
            if found is not None:
                further[name] = found
        return further

    def _advance(
        self, name: str, place: Place | None, rows: int | None, target: int | None
    ) -> Place | None:
        if target is not None and target < 0:
            return place  # there was no window yet
        try:
            if place is None:
                return self._begin(name, rows, target)
            if isinstance(place, InSnapshot):
                return self._in_snapshot(name, place, rows)
            if target is not None and place.scn >= target:
                return place
            return self._further(name, place, rows, target)
        except DatabusError as error:
            # A bootstrap server that is not as far yet: there is nothing to read now. Who
            # wants what there is and then to end must be told.
            if is_too_old(error) and target is None:
                return place
            raise

    def ranges(self, name: str, start: Place | None, end: Place) -> list[Range]:
        """Return what a batch reads that was planned just now, a range for each of its tasks."""
        return self._for_tasks(ranges_between(name, self.by_physical[name], start, end))

    def ranges_again(self, name: str, start: Place | None, end: Place) -> list[Range]:
        """Return what a batch reads that was planned before a restart, from what is held now."""
        planned = ranges_between(name, self.by_physical[name], start, end)
        first = planned[0] if planned else None
        if isinstance(first, LogRange) and not self._is_held(first):
            begun = self._begun(name, first.from_scn)
            ends = [
                after_rows(one, self._measure_snapshot(name, one, None).row)
                for one in (replace(begun, source=source) for source in first.sources)
            ]
            planned = ranges_of_whole(name, ends, first.to_scn)
        return self._for_tasks(planned)

    def _is_held(self, one: LogRange) -> bool:
        """Say whether windows are in a ring or log, or it is for the task to say that they are not.

        A log that has not come to them yet will have them.
        """
        try:
            self._measure_range(one, one.from_scn, None)
        except DatabusError as error:
            if is_too_young(error):
                return False
            if not _is_for_the_task(error):
                raise
        return True

    # For the tasks

    def _for_tasks(self, ranges: Sequence[Range]) -> list[Range]:
        found: list[Range] = []
        for one in ranges:
            if isinstance(one, SnapshotRange):
                found += cut_rows(one, self._options.shards)
            elif isinstance(one, LogRange):
                found += cut_windows(one, self._inner_ends(one))
            else:
                found.append(one)
        return found

    def _inner_ends(self, one: LogRange) -> list[int]:
        """Return the windows behind which a range is cut into parts of about as many rows.

        Wherever it is cut, the batch is the same.
        """
        shards, name = self._options.shards, one.physical_source
        if shards == 1:
            return []
        ends: list[int] = []
        try:
            scn, rows = self._counted.get(name, (-1, 0))
            if scn != one.to_scn:
                rows = self._measure_range(one, one.from_scn, None).rows
            share = max(LEAST_TASK_ROWS, -(-rows // shards))
            after = one.from_scn
            while rows > share:
                found = self._measure_range(one, after, share)
                if not after < found.scn < one.to_scn:
                    break
                ends.append(found.scn)
                after, rows = found.scn, rows - found.rows
        except DatabusError as error:
            if not _is_for_the_task(error):
                raise
        return ends

    def _measure_range(self, one: LogRange, after: int, rows: int | None) -> LogMeasure:
        """Measure so many rows of a range after a window, in the ring or else in the log."""
        name = one.physical_source
        try:
            return self._measure_after(name, after, rows, one.to_scn)
        except ScnNotFoundError:
            if self._bootstraps is None:
                raise
        return self._measure_catch_up(name, after, one.to_scn, rows)

    # From the relay

    def _begin(self, name: str, rows: int | None, target: int | None) -> Place | None:
        start = self._options.start
        if isinstance(start, int) or start is Named.BEGINNING:
            place = AtScn(0 if start is Named.BEGINNING else int(start))
            if target is not None and place.scn > target:
                return None
            further = self._further(name, place, rows, target)
            if further == place:
                return None
            return replace(further, from_scn=place.scn) if isinstance(further, AtScn) else further
        try:
            found = self._from_words(name, start, rows, target)
        except ScnNotFoundError as error:
            raise SettingsError(
                f"option start = {start}: no relay holds the changes of {name} from then on "
                f"({error}); choose a later time, earliest or beginning"
            ) from error
        return self._first(name, found)

    def _first(self, name: str, found: LogMeasure) -> AtScn:
        """Return where a first batch leads, and in it after which SCN that begins."""
        from_scn = found.from_scn
        if from_scn < 0 <= found.scn:  # the ring has everything from its oldest window on
            answer = self._relays.get(f"/bufferInfo/inbound/{quote(name)}/0", {})
            from_scn = int(answer.json()["minScn"]) - 1
        return AtScn(found.scn, found.time_ms, from_scn)

    def _further(self, name: str, place: AtScn, rows: int | None, target: int | None) -> Place:
        if place.scn < 0:
            return self._from_empty_ring(name, place, rows, target)
        try:
            return _moved(place, self._measure_after(name, place.scn, rows, target))
        except ScnNotFoundError as error:
            return self._from_bootstrap(name, place, rows, target, error)

    def _measure_after(
        self, name: str, scn: int, rows: int | None, target: int | None
    ) -> LogMeasure:
        """Measure a ring after a window, or from the very next SCN on.

        With that a ring may begin that knows nothing older. Not after 0, which is no
        window but means that rows are wanted that are in no log. Raises ScnNotFoundError.
        """
        try:
            return self._measure_ring(name, online_at(scn), {}, rows, target)
        except ScnNotFoundError:
            if scn > 0:
                with suppress(ScnNotFoundError):
                    return self._measure_ring(name, online_at(scn + 1, 0), {}, rows, target)
            raise

    def _from_empty_ring(
        self, name: str, place: AtScn, rows: int | None, target: int | None
    ) -> Place:
        """Go on from where there was no window, unless the first ones are gone already."""
        found = self._measure_ring(name, Checkpoint.flexible(), {}, rows, target)
        if found.from_scn >= 0:
            lost = ScnNotFoundError(0, found.from_scn)
            return self._from_bootstrap(name, AtScn(0), rows, target, lost)
        return place if found.scn < 0 else self._first(name, found)

    def _from_words(
        self, name: str, start: Any, rows: int | None = None, target: int | None = None
    ) -> LogMeasure:
        words: dict[str, str] = {}
        if start is Named.LATEST:
            words["streamFromLatestScn"] = "true"
        elif isinstance(start, datetime):
            words["since"] = str(int(start.timestamp() * 1000))
        return self._measure_ring(name, Checkpoint.flexible(), words, rows, target)

    def _measure_ring(
        self,
        name: str,
        checkpoint: Checkpoint,
        words: Mapping[str, str],
        rows: int | None,
        target: int | None,
    ) -> LogMeasure:
        parameters = {**self._limits(name, checkpoint, rows), **words}
        if target is not None:
            parameters["untilScn"] = str(target)
        filters = filters_text(self._filters(name), self._src_ids)
        if filters is not None:
            parameters["filters"] = filters
        answer = self._relays.get("/measure", parameters, checkpoint.window_scn)
        found = log_measure(answer.server, answer.json())
        self.newest[name] = AtScn(found.max_scn, found.max_time_ms)
        self._counted[name] = found.scn, found.rows
        return found

    def _limits(self, name: str, checkpoint: Checkpoint, rows: int | None) -> dict[str, str]:
        is_all = rows is None
        return {
            "sources": ",".join(self.by_physical[name]),
            "checkPoint": checkpoint.to_json(),
            "rows": str(ALL_ROWS if is_all else rows),
            "bytes": str(MAX_SCN if is_all else self._options.max_bytes_per_trigger),
        }

    def _filters(self, name: str) -> dict[str, Any]:
        sources = self.by_physical[name]
        return {source: f for source, f in self._options.filters.items() if source in sources}

    # From a bootstrap server

    def _from_bootstrap(
        self,
        name: str,
        place: AtScn,
        rows: int | None,
        target: int | None,
        error: ScnNotFoundError,
    ) -> Place:
        if self._bootstraps is None:
            raise SettingsError(
                f"{name}: no relay holds the windows after scn {place.scn} any more ({error}); "
                "give the option bootstrapServers, or start with another checkpoint folder"
            ) from error
        if place.scn > 0:
            try:
                return _moved(place, self._measure_log(name, place.scn, rows, target))
            except DatabusError as refused:
                if not is_too_young(refused):
                    raise
        return self._begin_snapshot(name, place.scn, rows)

    def _measure_log(self, name: str, scn: int, rows: int | None, target: int | None) -> LogMeasure:
        newest = min(self._log_end(name), MAX_SCN if target is None else target)
        if newest <= scn:
            return LogMeasure(scn, scn, 0, 0, 0, newest, 0)
        return self._measure_catch_up(name, scn, newest, rows)

    def _measure_catch_up(
        self, name: str, scn: int, until_scn: int, rows: int | None
    ) -> LogMeasure:
        answer = self._ask("/measure", name, catch_up(scn, until_scn), rows)
        found = log_measure(answer.server, answer.json())
        self._counted[name] = found.scn, found.rows
        return found

    def _log_end(self, name: str) -> int:
        """Return the SCN that the logs of all sources of the physical source have come to."""
        assert self._bootstraps is not None
        answer = self._bootstraps.get("/targetSCN", {"source": self.by_physical[name][0]})
        return read_scn(answer.server, "/targetSCN", bytes(answer.body))

    def _begin_snapshot(self, name: str, since_scn: int, rows: int | None) -> Place:
        begun = self._begun(name, since_scn)
        return self._rows_after(name, begun, rows) or replace(
            begun, source=self.by_physical[name][-1], is_read=True
        )

    def _begun(self, name: str, since_scn: int) -> InSnapshot:
        """Return the begin of a snapshot of what changed since; of everything if that is unknown.

        Then it is not known any more what was deleted since: everything, and the mark.
        """
        assert self._bootstraps is not None
        sources = self.by_physical[name]
        parameters = {
            "sources": ",".join(sources),
            "checkPoint": beginning_after(since_scn).to_json(),
        }
        try:
            answer = self._bootstraps.get("/startSCN", parameters)
        except DatabusError as error:
            if since_scn > 0 and is_too_young(error):
                return self._begun(name, 0)
            raise
        return InSnapshot(
            at_scn=read_scn(answer.server, "/startSCN", bytes(answer.body)),
            since_scn=since_scn,
            source=sources[0],
            row=0,
            server=answer.server,
            store=answer.headers.get(STORE_ID, ""),
        )

    def _in_snapshot(self, name: str, place: InSnapshot, rows: int | None) -> Place:
        if self._bootstraps is None:
            raise SettingsError(
                f"{name}: the query is in the snapshot of {place.source}; give the option "
                f"bootstrapServers, {place.server} among them"
            )
        self._bootstraps.prefer(place.server)
        try:
            if not place.is_read:
                further = self._rows_after(name, place, rows)
                if further is not None:
                    return further
            for source in self.by_physical[name]:
                self._measure_snapshot(name, replace(place, source=source, row=0), 1)
        except DatabusError as error:
            if not is_too_young(error):
                raise
            return self._begin_snapshot(name, place.since_scn, rows)
        return AtScn(place.at_scn)

    def _rows_after(self, name: str, place: InSnapshot, rows: int | None) -> InSnapshot | None:
        """Return where the next rows of the snapshot lead; None when there are no more."""
        sources = self.by_physical[name]
        left = sources[sources.index(place.source) :]
        for source in left:
            begin = place if source == place.source else replace(place, source=source, row=0)
            found = self._measure_snapshot(name, begin, rows)
            if found.rows:
                return after_rows(begin, found.row, found.is_last and source == sources[-1])
        return None

    def _measure_snapshot(self, name: str, place: InSnapshot, rows: int | None) -> SnapshotMeasure:
        checkpoint = snapshot(place.source, place.row, place.at_scn, place.since_scn, place.store)
        answer = self._ask("/measure", name, checkpoint, rows, (place.source,))
        return snapshot_measure(answer.server, answer.json())

    def _ask(
        self,
        path: str,
        name: str,
        checkpoint: Checkpoint,
        rows: int | None,
        sources: Sequence[str] = (),
    ) -> Answer:
        assert self._bootstraps is not None
        parameters = self._limits(name, checkpoint, rows)
        filters = self._filters(name)
        if sources:
            parameters["sources"] = ",".join(sources)
            filters = {source: one for source, one in filters.items() if source in sources}
        text = filters_text(filters, self._src_ids)
        if text is not None:
            parameters["filter"] = text
        return self._bootstraps.get(path, parameters, checkpoint.window_scn)

    # Which physical source has what

    def _ask_for_sources(self) -> dict[str, tuple[str, ...]]:
        listed = self._relays.get("/physicalSources", {}).json()
        homes = {s["name"]: (p["name"], int(s["id"])) for p in listed for s in p["sources"]}
        found: dict[str, list[str]] = {}
        for source in self._options.sources:
            if source not in homes:
                raise UnknownSourceError(source, sorted(homes))
            physical, self._src_ids[source] = homes[source]
            found.setdefault(physical, []).append(source)
        return {name: tuple(found[name]) for name in sorted(found)}


def _is_for_the_task(error: DatabusError) -> bool:
    """Say whether the task that reads a range waits it out, or says it better."""
    return isinstance(error, ScnNotFoundError) or is_too_old(error) or is_too_young(error)


def _moved(place: AtScn, found: LogMeasure) -> AtScn:
    if found.scn <= place.scn:
        return place
    return AtScn(found.scn, found.time_ms)
