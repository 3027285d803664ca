"""Plan the end of the next micro-batch: the rules of `latestOffset`.

Each physical source is read from a relay's ring; if the ring no longer has the
place, from a bootstrap server's log; if the log no longer has it either, from a
snapshot of the changed rows, or of all rows. A batch of windows ends at the end of a
window, and has at most the given number of rows, unless one transaction has more.

The end of a snapshot is a batch of its own. It is planned only if the server
confirms that the snapshot is still valid. A task whose snapshot has become invalid on
its own server returns no rows, because the snapshot then starts again and all its rows
come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from databus.client.spark.planning.measure_client import MeasureClient
from databus.client.spark.planning.offsets import (
    NO_PROOF,
    AtScn,
    Group,
    InSnapshot,
    Place,
    Places,
    Proof,
    check_not_behind,
    check_physical,
)
from databus.client.spark.planning.requests import LogMeasure
from databus.conf.named_places import NamedPlace, ScnPlace, Word
from databus.schemas.errors import (
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

    def __init__(
        self, measure_client: MeasureClient, start: NamedPlace, proof: Proof = NO_PROOF
    ) -> None:
        """`proof` is that of the log of a `start` which is an SCN."""
        self.rungs: dict[str, str] = {}
        self._measure_client = measure_client
        self.start = start
        self._proof = proof

    def next_places(
        self, places: Places, rows: int | None, targets: Mapping[str, int] | None = None
    ) -> Places:
        """Return the end of a batch of at most `rows` rows; unchanged if nothing is new.

        `places`: by physical source. The end does not pass `targets`, if given. Raises
        BootstrapTooOldError where a bootstrap server has not reached the place yet; DatabusError.
        """
        groups = self._measure_client.groups
        check_physical(places, [group.physical_source for group in groups])
        share = shared(rows, len(groups))
        further: Places = {}
        for group in groups:
            name = group.physical_source
            target = None if targets is None else targets[name]
            found = self.advance(group, places.get(name), share, target)
            if found is not None:
                further[name] = found
        return further

    def advance(
        self, group: Group, place: Place | None, rows: int | None, target: int | None
    ) -> Place | None:
        """Return the end of a batch for one group; None if there is nothing to begin with yet.

        Raises BootstrapTooOldError where a bootstrap server has not reached the place yet, so that
        there is nothing to read now; DatabusError.
        """
        if target is not None and target < 0:
            return place  # the relay had no window yet
        if place is None:
            return self.begin(group, self.start, rows, target)
        if isinstance(place, InSnapshot):
            return self._in_snapshot(group, place, rows)
        if target is not None and place.scn >= target:
            return place
        return self._further(group, place, rows, target)

    # From the relay

    def begin(
        self, group: Group, begin: NamedPlace, rows: int | None, target: int | None
    ) -> Place | None:
        """Return the end of the first batch of a group from `begin` on; None until it is there.

        Raises BootstrapTooOldError for a source whose rows cannot be read yet; DatabusError.
        """
        try:
            start = self._measure_client.resolved(group, begin)
        except ScnAheadError:
            return None  # until there is such a window
        except (ScnNotFoundError, PlaceNotFoundError) as error:
            raise SettingsError(
                f"option start = {begin}: no relay holds the changes of "
                f"{group.physical_source} from then on ({error}); choose a later place, "
                "earliest or beginning"
            ) from error
        if isinstance(start, ScnPlace) or start is Word.BEGINNING:
            place = AtScn(0) if start is Word.BEGINNING else AtScn(start.scn, proof=self._proof)
            if target is not None and place.scn > target:
                return None
            further = self._further(group, place, rows, target)
            if further == place:
                return None
            # Spark does not store the initial offset, so the first end also says where the batch
            # begins.
            return replace(further, from_scn=place.scn) if isinstance(further, AtScn) else further
        found = self._measure_client.ring_from(group, start, rows, target)
        if found.scn < 0 and not self._measure_client.tells_evicted:
            return None  # until there is a window, the place could not be told from a lost one
        return self._first(group, found)

    def _first(self, group: Group, found: LogMeasure) -> AtScn:
        """Return the end of a first batch, with the SCN after which it begins."""
        self.rungs[group.physical_source] = RELAY
        from_scn = found.from_scn
        if from_scn < 0 <= found.scn:  # the ring has evicted nothing: begin at its oldest window
            from_scn = self._measure_client.oldest(group.physical_source) - 1
        return AtScn(found.scn, found.time_ms, from_scn, found.proof)

    def _further(self, group: Group, place: AtScn, rows: int | None, target: int | None) -> Place:
        if place.scn < 0:
            return self._from_empty_ring(group, place, rows, target)
        try:
            moved = _moved(place, self._measure_client.ring_after(group, place, rows, target))
            self.rungs[group.physical_source] = RELAY
            return moved
        except ScnNotFoundError as error:
            return self._from_bootstrap(group, place, rows, target, error)

    def _from_empty_ring(
        self, group: Group, place: AtScn, rows: int | None, target: int | None
    ) -> Place:
        """Continue from a ring that had no window, unless it has evicted the first ones since."""
        found = self._measure_client.ring_from(group, Word.EARLIEST, rows, target)
        # A ring may begin with the window after which capture began: nothing is lost there.
        if found.from_scn >= 0 and found.from_scn < self._measure_client.oldest(
            group.physical_source
        ):
            lost = ScnNotFoundError(0, found.from_scn)
            return self._from_bootstrap(group, AtScn(0), rows, target, lost)
        return place if found.scn < 0 else self._first(group, found)

    # From a bootstrap server

    def _from_bootstrap(
        self,
        group: Group,
        place: AtScn,
        rows: int | None,
        target: int | None,
        error: ScnNotFoundError,
    ) -> Place:
        if not self._measure_client.has_bootstrap:
            raise SettingsError(
                f"{group.physical_source}: no relay holds the windows after scn {place.scn} any "
                f"more ({error}); {self._measure_client.gone_advice}"
            ) from error
        if place.scn > 0:
            try:
                moved = _moved(place, self._measure_client.log_after(group, place, rows, target))
                self.rungs[group.physical_source] = LOG
                return moved
            except DatabusError as refused:
                if not isinstance(refused, BootstrapTooYoungError):
                    raise
        return self._begin_snapshot(group, place.scn, rows, place.proof)

    def _begin_snapshot(
        self, group: Group, since_scn: int, rows: int | None, proof: Proof
    ) -> Place:
        self.rungs[group.physical_source] = SNAPSHOT
        # A snapshot without rows counts as read: its end is the next batch.
        begun = self._measure_client.begin_snapshot(group, since_scn, proof)
        begun = replace(begun, left=group.sources[1:])
        return self._rows_after(group, begun, rows) or replace(
            begun, source=group.sources[-1], left=(), is_read=True
        )

    def _in_snapshot(self, group: Group, place: InSnapshot, rows: int | None) -> Place:
        if not self._measure_client.has_bootstrap:
            raise SettingsError(
                f"{group.physical_source}: the query is reading a snapshot of {place.source}; give "
                f"the option bootstrapServers, including {place.server}"
            )
        self.rungs[group.physical_source] = SNAPSHOT
        self._measure_client.prefer(place.server)
        try:
            if not place.is_read:
                further = self._rows_after(group, place, rows)
                if further is not None:
                    return further
            # The end of a whole snapshot removes the rows that it did not bring, so every source is
            # asked whether the snapshot is still valid.
            for source in group.sources:
                self._measure_client.snapshot_after(replace(place, source=source, row=0), 1)
        except DatabusError as error:
            if not isinstance(error, BootstrapTooYoungError):
                raise
            begun = self._begin_snapshot(group, place.since_scn, rows, place.proof)
            if isinstance(begun, InSnapshot):
                check_not_behind(group.physical_source, begun, place.at_scn)
            return begun
        proof = self._measure_client.proof_at(group, place.at_scn, place.proof)
        return AtScn(place.at_scn, proof=proof)

    def _rows_after(self, group: Group, place: InSnapshot, rows: int | None) -> InSnapshot | None:
        """Return the place after the snapshot's next rows; None if there are no more."""
        left = [source for source in _left(group, place) if source in group.sources]
        for number, source in enumerate(left):
            begin = place if source == place.source else replace(place, source=source, row=0)
            found = self._measure_client.snapshot_after(begin, rows)
            if found.rows:
                after = tuple(left[number + 1 :])
                is_read = found.is_last and not after
                return replace(begin, row=found.row, left=after, is_read=is_read)
        return None


def shared(rows: int | None, readers: int) -> int | None:
    """Return the equal share of each reader, so that a busy one does not keep others waiting."""
    return None if rows is None else max(1, rows // max(1, readers))


def _left(group: Group, place: InSnapshot) -> tuple[str, ...]:
    """Return the sources of a snapshot that are not read to their end."""
    if place.left is not None:
        return place.source, *place.left
    return group.sources[group.sources.index(place.source) :]


def _moved(place: AtScn, found: LogMeasure) -> AtScn:
    if found.scn <= place.scn:
        return place
    return AtScn(found.scn, found.time_ms, proof=place.proof.then(found.proof))
