"""Plan the end of the next micro-batch: the rules of `latestOffset`.

Each physical source is read from a relay's ring; if the ring no longer has the
place, from a bootstrap server's log; if the log no longer has it either, from a
snapshot of the changed rows, or of all rows. A batch of windows ends at the end of a
window, and has at most the given number of rows, unless one transaction has more.

The end of a snapshot is a batch of its own. It is planned only if the server
confirms that the snapshot is still valid. A task whose snapshot has become invalid
returns no rows, because the snapshot then starts again and all its rows come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from databus.client.spark.planning.measure_client import MeasureClient
from databus.client.spark.planning.offsets import (
    AtScn,
    InSnapshot,
    Place,
    Places,
    after_rows,
    check_physical,
)
from databus.client.spark.planning.requests import LogMeasure
from databus.conf.named_places import NamedPlace, ScnPlace, Word
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    PlaceNotFoundError,
    ScnAheadError,
    ScnNotFoundError,
    SettingsError,
)

RELAY, LOG, SNAPSHOT = "relay", "log", "snapshot"


class Planner:
    """Plans the batches of one query, which begins at `start`.

    Its only state is `rungs`: where the last planned batch of each physical source is
    read, to be shown: from the `relay`, or the `log` or a `snapshot` of a bootstrap server.
    """

    def __init__(self, measure_client: MeasureClient, start: NamedPlace) -> None:
        self.rungs: dict[str, str] = {}
        self._measure_client = measure_client
        self._start = start

    def next_places(
        self, places: Places, rows: int | None, targets: Mapping[str, int] | None = None
    ) -> Places:
        """Return the end of a batch of at most `rows` rows; unchanged if nothing is new.

        The end does not pass `targets`, if given. Raises DatabusError.
        """
        sources = self._measure_client.by_physical
        check_physical(places, sources)
        # An equal share for each, so that a busy physical source does not keep the others waiting.
        share = None if rows is None else max(1, rows // len(sources))
        further: Places = {}
        for name in sources:
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
            return place  # the relay had no window yet
        try:
            if place is None:
                return self._begin(name, rows, target)
            if isinstance(place, InSnapshot):
                return self._in_snapshot(name, place, rows)
            if target is not None and place.scn >= target:
                return place
            return self._further(name, place, rows, target)
        except DatabusError as error:
            # The bootstrap server has not reached the place yet: there is nothing to read
            # now. A query that reads up to a target and then ends gets the error.
            if isinstance(error, BootstrapTooOldError) and target is None:
                return place
            raise

    # From the relay

    def _begin(self, name: str, rows: int | None, target: int | None) -> Place | None:
        try:
            start = self._measure_client.resolved(name, self._start)
        except ScnAheadError:
            return None  # until there is such a window
        except (ScnNotFoundError, PlaceNotFoundError) as error:
            raise SettingsError(
                f"option start = {self._start}: no relay holds the changes of {name} from then on "
                f"({error}); choose a later place, earliest or beginning"
            ) from error
        if isinstance(start, ScnPlace) or start is Word.BEGINNING:
            place = AtScn(start.scn if isinstance(start, ScnPlace) else 0)
            if target is not None and place.scn > target:
                return None
            further = self._further(name, place, rows, target)
            if further == place:
                return None
            # Spark does not store the initial offset, so the first end also says where the batch
            # begins.
            return replace(further, from_scn=place.scn) if isinstance(further, AtScn) else further
        found = self._measure_client.ring_from(name, start, rows, target)
        if found.scn < 0 and not self._measure_client.tells_evicted:
            return None  # until there is a window, the place could not be told from a lost one
        return self._first(name, found)

    def _first(self, name: str, found: LogMeasure) -> AtScn:
        """Return the end of a first batch, with the SCN after which it begins."""
        self.rungs[name] = RELAY
        from_scn = found.from_scn
        if from_scn < 0 <= found.scn:  # the ring has evicted nothing: begin at its oldest window
            from_scn = self._measure_client.oldest(name) - 1
        return AtScn(found.scn, found.time_ms, from_scn)

    def _further(self, name: str, place: AtScn, rows: int | None, target: int | None) -> Place:
        if place.scn < 0:
            return self._from_empty_ring(name, place, rows, target)
        try:
            moved = _moved(place, self._measure_client.ring_after(name, place.scn, rows, target))
            self.rungs[name] = RELAY
            return moved
        except ScnNotFoundError as error:
            return self._from_bootstrap(name, place, rows, target, error)

    def _from_empty_ring(
        self, name: str, place: AtScn, rows: int | None, target: int | None
    ) -> Place:
        """Continue from a ring that had no window, unless it has evicted the first ones since."""
        found = self._measure_client.ring_from(name, Word.EARLIEST, rows, target)
        # A ring may begin with the window after which capture began: nothing is lost there.
        if found.from_scn >= 0 and found.from_scn < self._measure_client.oldest(name):
            lost = ScnNotFoundError(0, found.from_scn)
            return self._from_bootstrap(name, AtScn(0), rows, target, lost)
        return place if found.scn < 0 else self._first(name, found)

    # From a bootstrap server

    def _from_bootstrap(
        self,
        name: str,
        place: AtScn,
        rows: int | None,
        target: int | None,
        error: ScnNotFoundError,
    ) -> Place:
        if not self._measure_client.has_bootstrap:
            raise SettingsError(
                f"{name}: no relay holds the windows after scn {place.scn} any more ({error}); "
                f"{self._measure_client.gone_advice}"
            ) from error
        if place.scn > 0:
            try:
                moved = _moved(place, self._measure_client.log_after(name, place.scn, rows, target))
                self.rungs[name] = LOG
                return moved
            except DatabusError as refused:
                if not isinstance(refused, BootstrapTooYoungError):
                    raise
        return self._begin_snapshot(name, place.scn, rows)

    def _begin_snapshot(self, name: str, since_scn: int, rows: int | None) -> Place:
        self.rungs[name] = SNAPSHOT
        # A snapshot without rows counts as read: its end is the next batch.
        begun = self._measure_client.begin_snapshot(name, since_scn)
        return self._rows_after(name, begun, rows) or replace(
            begun, source=self._measure_client.by_physical[name][-1], is_read=True
        )

    def _in_snapshot(self, name: str, place: InSnapshot, rows: int | None) -> Place:
        if not self._measure_client.has_bootstrap:
            raise SettingsError(
                f"{name}: the query is reading a snapshot of {place.source}; give the option "
                f"bootstrapServers, including {place.server}"
            )
        self.rungs[name] = SNAPSHOT
        self._measure_client.prefer(place.server)
        try:
            if not place.is_read:
                further = self._rows_after(name, place, rows)
                if further is not None:
                    return further
            # The end of a whole snapshot removes the rows that it did not bring, so every source is
            # asked whether the snapshot is still valid.
            for source in self._measure_client.by_physical[name]:
                self._measure_client.snapshot_after(name, replace(place, source=source, row=0), 1)
        except DatabusError as error:
            if not isinstance(error, BootstrapTooYoungError):
                raise
            return self._begin_snapshot(name, place.since_scn, rows)
        return AtScn(place.at_scn)

    def _rows_after(self, name: str, place: InSnapshot, rows: int | None) -> InSnapshot | None:
        """Return the place after the snapshot's next rows; None if there are no more."""
        sources = self._measure_client.by_physical[name]
        left = sources[sources.index(place.source) :]
        for source in left:
            begin = place if source == place.source else replace(place, source=source, row=0)
            found = self._measure_client.snapshot_after(name, begin, rows)
            if found.rows:
                return after_rows(begin, found.row, found.is_last and source == sources[-1])
        return None


def _moved(place: AtScn, found: LogMeasure) -> AtScn:
    if found.scn <= place.scn:
        return place
    return AtScn(found.scn, found.time_ms)
