"""Ask relays and bootstrap servers how far a number of rows reaches, for planning.

A range of windows is measured in a relay's ring. If the ring no longer has its
beginning, it is measured in a bootstrap server's log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence

from databus.client.responses import read_scn
from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.capture_states import STARTING, Stopped
from databus.client.spark.planning.offsets import NO_PROOF, AtScn, Group, InSnapshot, Proof
from databus.client.spark.planning.ranges import LogRange
from databus.client.spark.planning.relay_windows import RelayWindows, find_windows
from databus.client.spark.planning.requests import (
    LogMeasure,
    SnapshotMeasure,
    beginning_after,
    catch_up,
    filters_text,
    log_measure,
    measure_parameters,
    snapshot,
    snapshot_measure,
)
from databus.client.spark.planning.server_pool import Answer, ServerPool
from databus.conf.named_places import NamedPlace, Word
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    ScnNotFoundError,
    TableStoppedError,
    UnknownSourceError,
)
from databus.schemas.protocol import Header, Parameter
from databus.schemas.scn import MAX_SCN

log = logging.getLogger(__name__)

LOOK_S = 0.2
_LOOK_AGAIN_S = 1.0


class MeasureClient:
    """Asks the servers of one query how far rows reach."""

    def __init__(
        self, options: SourceOptions, relays: ServerPool, bootstraps: ServerPool | None
    ) -> None:
        self._options = options
        self._relays = relays
        self._bootstraps = bootstraps
        self._found: RelayWindows | None = None
        # The newest windows that relays have reported.
        self.newest: dict[str, AtScn] = {}
        # The end and the row count of the last measured windows, by group.
        self._counted: dict[frozenset[str], tuple[int, int]] = {}
        self._looked_s = time.monotonic()

    def close(self) -> None:
        """Close the connections."""
        self._relays.close()
        if self._bootstraps is not None:
            self._bootstraps.close()

    @property
    def by_physical(self) -> Mapping[str, tuple[str, ...]]:
        """The query's sources by physical source; raises UnknownSourceError."""
        return self._windows.by_physical

    def look_again(self) -> None:
        """Ask again for the sources that patterns choose, unless asked within the last second."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._windows.look_again()
            self._looked_s = now_s

    @property
    def groups(self) -> list[Group]:
        """The query's sources, as one group for each physical source."""
        return [Group(name, sources) for name, sources in self.by_physical.items()]

    @property
    def _windows(self) -> RelayWindows:
        if self._found is None:
            self._found = find_windows(self._options, self._relays)
        return self._found

    @property
    def idle_s(self) -> float:
        """How long an idle query pauses before it asks again."""
        return self._windows.idle_s

    @property
    def gone_advice(self) -> str:
        """What to do when no relay holds the next windows."""
        return self._windows.gone_advice

    @property
    def tells_evicted(self) -> bool:
        """Whether relays say that windows before their oldest one were evicted."""
        return self._windows.tells_evicted

    def resolved(self, group: Group, start: NamedPlace) -> NamedPlace:
        """Return a start that relays measure from.

        Raises SettingsError for one that they cannot find; ScnNotFoundError, ScnAheadError and
        PlaceNotFoundError for one that is not there.
        """
        return self._windows.resolved(group, start)

    def await_opened(self) -> None:
        """Wait, up to `retrySeconds`, for sources that their relay is opening.

        Until then the newest SCN is not known. A source that takes longer is reported as
        not captured.
        """
        end_s = time.monotonic() + self._options.retry_seconds
        while time.monotonic() < end_s:
            states = {one.state for one in self.stopped(at_once=True).values()}
            if STARTING not in states:
                return
            time.sleep(LOOK_S)

    def newest_scns(self) -> dict[str, int]:
        """Return the newest SCN of each physical source."""
        return {group.physical_source: self._newest_of(group) for group in self.groups}

    def _newest_of(self, group: Group) -> int:
        """Return the newest SCN for sources; one that is stopped alone does not hold the others."""
        while True:
            try:
                return self.ring_from(group, Word.LATEST).max_scn
            except TableStoppedError as error:
                left = tuple(source for source in group.sources if source != error.source)
                if len(left) in (0, len(group.sources)):
                    raise
                group = group._replace(sources=left)

    def stopped(self, *, at_once: bool = False) -> Mapping[str, Stopped]:
        """Return the physical sources that are not captured now: their newest SCN is unknown."""
        return self._windows.stopped(at_once)

    @property
    def has_bootstrap(self) -> bool:
        """Whether the query has bootstrap servers."""
        return self._bootstraps is not None

    def kept(self) -> Collection[str]:
        """Return the sources that the bootstrap servers have; raises DatabusError."""
        assert self._bootstraps is not None
        return self._bootstraps.offered().keys()

    def prefer(self, bootstrap_server: str) -> None:
        """Ask this bootstrap server first."""
        if self._bootstraps is not None:
            self._bootstraps.prefer(bootstrap_server)

    def rows_until(self, group: Group, scn: int) -> int | None:
        """Return the row count of the last measurement, if that ended at `scn`."""
        counted_scn, rows = self._counted.get(frozenset(group.sources), (-1, 0))
        return rows if counted_scn == scn else None

    # Windows

    def windows(self, one: LogRange, after: int, rows: int | None) -> LogMeasure:
        """Measure `rows` rows of a range after a window, in the ring or else in the log.

        Raises OtherLogError if the range is of another log.
        """
        group = Group(one.physical_source, one.sources)
        place = AtScn(after, proof=one.proof)
        try:
            return self._noted(group, self._windows.after(group, place, rows, one.to_scn))
        except ScnNotFoundError:
            if self._bootstraps is None:
                raise
        return self._catch_up(group, place, one.to_scn, rows)

    def ring_after(
        self, group: Group, place: AtScn, rows: int | None, target: int | None
    ) -> LogMeasure:
        """Measure a ring after a place.

        Raises ScnNotFoundError; OtherLogError if its proof is of another log.
        """
        try:
            return self._noted(group, self._windows.after(group, place, rows, target))
        except ScnNotFoundError:
            self._look_for_newest(group)
            raise

    def proof_at(self, group: Group, scn: int, earlier: Proof = NO_PROOF) -> Proof:
        """Return the proof of a log up to an SCN, if a relay of this project has it.

        `earlier` is that of an earlier place. Raises OtherLogError if it is of another log.
        """
        if not self.tells_evicted:
            return earlier
        try:
            # A relay tells one only where it has counted windows.
            before = AtScn(max(scn - 1, 0), proof=earlier)
            return earlier.then(self.ring_after(group, before, 1, scn).proof)
        except ScnNotFoundError:
            return earlier

    def ring_from(
        self, group: Group, start: NamedPlace, rows: int | None = None, target: int | None = None
    ) -> LogMeasure:
        """Measure a ring from the place that the option `start` names."""
        return self._noted(group, self._windows.from_start(group, start, rows, target))

    def made_at(self, source: str) -> int | None:
        """Return the SCN of a table's CREATE, if it is captured from there on; else None.

        Raises SchemaNotFoundError as long as the relay has no schema of it; DatabusError.
        """
        return self._windows.made_at(source)

    def oldest(self, name: str) -> int:
        """Return the SCN of the oldest window in the ring."""
        return self._windows.oldest(name)

    def _look_for_newest(self, group: Group) -> None:
        """Note the newest window of a ring that lacks a place; an older one would tell no lag."""
        try:
            self._newest_of(group)
        except DatabusError as error:
            log.debug("%s: the newest window is not known: %s", group.physical_source, error)
            self.newest.pop(group.physical_source, None)

    def _noted(self, group: Group, found: LogMeasure) -> LogMeasure:
        self.newest[group.physical_source] = AtScn(found.max_scn, found.max_time_ms)
        self._counted[frozenset(group.sources)] = found.scn, found.rows
        return found

    # The log of a bootstrap server, and its snapshots

    def log_after(
        self, group: Group, place: AtScn, rows: int | None, target: int | None
    ) -> LogMeasure:
        """Measure the log after a place, up to its current end."""
        scn = place.scn
        newest = min(self._log_end(group), MAX_SCN if target is None else target)
        if newest <= scn:
            return LogMeasure(scn, scn, 0, 0, 0, newest, 0)
        return self._catch_up(group, place, newest, rows)

    def _catch_up(self, group: Group, place: AtScn, until_scn: int, rows: int | None) -> LogMeasure:
        checkpoint = catch_up(place.scn, until_scn, proof=place.proof)
        answer = self._ask(group.sources, checkpoint, rows)
        found = log_measure(answer.server, answer.json())
        self._counted[frozenset(group.sources)] = found.scn, found.rows
        return found

    def _log_end(self, group: Group) -> int:
        """Return the SCN that the logs of all sources of a physical source have reached."""
        assert self._bootstraps is not None
        # The logs of a physical source's tables advance together, so any one of them can be asked.
        answer = self._bootstraps.get("/targetSCN", {Parameter.SOURCE: group.sources[0]})
        return read_scn(answer.server, "/targetSCN", bytes(answer.body))

    def begin_snapshot(self, group: Group, since_scn: int, proof: Proof = NO_PROOF) -> InSnapshot:
        """Return the start of a snapshot of the rows that changed since an SCN.

        `proof` is that of the place at the SCN. If the server no longer knows what was deleted
        since, it is a snapshot of all rows, which ends with a mark.
        """
        assert self._bootstraps is not None
        sources = group.sources
        parameters = {
            Parameter.SOURCES: ",".join(sources),
            Parameter.CHECKPOINT: beginning_after(since_scn, proof).to_json(),
        }
        try:
            answer = self._bootstraps.get("/startSCN", parameters)
        except DatabusError as error:
            if since_scn > 0 and isinstance(error, BootstrapTooYoungError):
                return self.begin_snapshot(group, 0, proof)
            raise
        return InSnapshot(
            at_scn=read_scn(answer.server, "/startSCN", bytes(answer.body)),
            since_scn=since_scn,
            source=sources[0],
            row=0,
            server=answer.server,
            store=answer.headers.get(Header.STORE_ID, ""),
            proof=proof,
        )

    def servable(self, group: Group) -> tuple[str, ...]:
        """Return the sources of which a bootstrap server can give a snapshot now."""
        found = []
        for source in group.sources:
            try:
                self.begin_snapshot(group._replace(sources=(source,)), 0)
            except (BootstrapTooOldError, UnknownSourceError) as error:
                log.debug("%s cannot be read yet: %s", source, error)
                continue
            found.append(source)
        return tuple(found)

    def snapshot_after(self, place: InSnapshot, rows: int | None) -> SnapshotMeasure:
        """Measure a source's snapshot after a row."""
        checkpoint = snapshot(place.source, place.row, place.at_scn, place.since_scn, place.store)
        answer = self._ask((place.source,), checkpoint, rows)
        return snapshot_measure(answer.server, answer.json())

    # Requests

    def _ask(self, wanted: Sequence[str], checkpoint: Checkpoint, rows: int | None) -> Answer:
        assert self._bootstraps is not None
        options = self._options
        parameters = measure_parameters(wanted, checkpoint, rows, options.max_bytes_per_trigger)
        filters = {source: one for source, one in options.filters.items() if source in wanted}
        text = filters_text(filters, self._windows.src_ids)
        if text is not None:
            parameters[Parameter.FILTER] = text
        return self._bootstraps.get("/measure", parameters, checkpoint.window_scn)
