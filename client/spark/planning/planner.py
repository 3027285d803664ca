"""How far the next micro-batch goes: the rules of `latestOffset`.

For each physical source one ladder, as everywhere: the ring of a relay; where
that begins later, the log of a bootstrap server; where that begins later, too,
a snapshot, of what changed since or of everything. A batch of windows ends at
a window's end, and has at most so many rows unless one transaction has more.

A snapshot is over in a batch of its own, planned only when its server says
that it is still what it was begun as: a task that finds that it is not brings
nothing, for then it begins anew, and all of it comes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from databus.client.spark.options import Named, Start
from databus.client.spark.planning.measure_client import Measuring
from databus.client.spark.planning.offsets import AtScn, InSnapshot, Place, Places, after_rows
from databus.client.spark.planning.requests import LogMeasure
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    CheckpointError,
    DatabusError,
    ScnNotFoundError,
    SettingsError,
)


class Planner:
    """Plans for one query, which begins where `start` says; keeps nothing."""

    def __init__(self, measuring: Measuring, start: Start) -> None:
        self._measuring = measuring
        self._start = start

    def next_places(
        self, places: Places, rows: int | None, targets: Mapping[str, int] | None = None
    ) -> Places:
        """Return where a batch of at most so many rows ends; the same where nothing is new.

        Nothing beyond `targets` when there are any. Raises DatabusError.
        """
        sources = self._measuring.by_physical
        strange = sorted(set(places) - set(sources))
        if strange:
            raise CheckpointError(
                f"the query's checkpoint has physical source {', '.join(strange)}, and the relay "
                f"has its sources in {', '.join(sources)}: was it renamed? Start the query with "
                "another checkpoint folder"
            )
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
            if isinstance(error, BootstrapTooOldError) and target is None:
                return place
            raise

    # From the relay

    def _begin(self, name: str, rows: int | None, target: int | None) -> Place | None:
        start = self._start
        if isinstance(start, int) or start is Named.BEGINNING:
            place = AtScn(0 if start is Named.BEGINNING else int(start))
            if target is not None and place.scn > target:
                return None
            further = self._further(name, place, rows, target)
            if further == place:
                return None
            return replace(further, from_scn=place.scn) if isinstance(further, AtScn) else further
        try:
            found = self._measuring.ring_from(name, start, rows, target)
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
            from_scn = self._measuring.oldest(name) - 1
        return AtScn(found.scn, found.time_ms, from_scn)

    def _further(self, name: str, place: AtScn, rows: int | None, target: int | None) -> Place:
        if place.scn < 0:
            return self._from_empty_ring(name, place, rows, target)
        try:
            return _moved(place, self._measuring.ring_after(name, place.scn, rows, target))
        except ScnNotFoundError as error:
            return self._from_bootstrap(name, place, rows, target, error)

    def _from_empty_ring(
        self, name: str, place: AtScn, rows: int | None, target: int | None
    ) -> Place:
        """Go on from where there was no window, unless the first ones are gone already."""
        found = self._measuring.ring_from(name, Named.EARLIEST, rows, target)
        if found.from_scn >= 0:
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
        if not self._measuring.has_bootstrap:
            raise SettingsError(
                f"{name}: no relay holds the windows after scn {place.scn} any more ({error}); "
                "give the option bootstrapServers, or start with another checkpoint folder"
            ) from error
        if place.scn > 0:
            try:
                return _moved(place, self._measuring.log_after(name, place.scn, rows, target))
            except DatabusError as refused:
                if not isinstance(refused, BootstrapTooYoungError):
                    raise
        return self._begin_snapshot(name, place.scn, rows)

    def _begin_snapshot(self, name: str, since_scn: int, rows: int | None) -> Place:
        begun = self._measuring.begin_snapshot(name, since_scn)
        return self._rows_after(name, begun, rows) or replace(
            begun, source=self._measuring.by_physical[name][-1], is_read=True
        )

    def _in_snapshot(self, name: str, place: InSnapshot, rows: int | None) -> Place:
        if not self._measuring.has_bootstrap:
            raise SettingsError(
                f"{name}: the query is in the snapshot of {place.source}; give the option "
                f"bootstrapServers, {place.server} among them"
            )
        self._measuring.prefer(place.server)
        try:
            if not place.is_read:
                further = self._rows_after(name, place, rows)
                if further is not None:
                    return further
            for source in self._measuring.by_physical[name]:
                self._measuring.snapshot_after(name, replace(place, source=source, row=0), 1)
        except DatabusError as error:
            if not isinstance(error, BootstrapTooYoungError):
                raise
            return self._begin_snapshot(name, place.since_scn, rows)
        return AtScn(place.at_scn)

    def _rows_after(self, name: str, place: InSnapshot, rows: int | None) -> InSnapshot | None:
        """Return where the next rows of the snapshot lead; None when there are no more."""
        sources = self._measuring.by_physical[name]
        left = sources[sources.index(place.source) :]
        for source in left:
            begin = place if source == place.source else replace(place, source=source, row=0)
            found = self._measuring.snapshot_after(name, begin, rows)
            if found.rows:
                return after_rows(begin, found.row, found.is_last and source == sources[-1])
        return None


def _moved(place: AtScn, found: LogMeasure) -> AtScn:
    if found.scn <= place.scn:
        return place
    return AtScn(found.scn, found.time_ms)
