"""Opens sessions: where a client's checkpoint is in the windows that the relay has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from databus.conf.doors.ptubes_settings import PtubesSettings
from databus.conf.named_places import NamedPlace, ScnPlace, TimePlace
from databus.daemon.fair_queue import FairQueue
from databus.relay.log.archive.away import once_here
from databus.relay.monitoring.clients import caller_of
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.ring.selection import Selection
from databus.relay.serving.ptubes.marks import Claim, Mark, claim_of
from databus.relay.serving.ptubes.places import (
    BEFORE_ROWS,
    Mode,
    PlaceTimes,
    PtubesCheckpoint,
    SkippedRows,
    epoch_of,
    first_commit_ms,
    scn_of,
    server_number,
)
from databus.relay.serving.ptubes.reader_tasks import ReaderTask, make_reader_tasks, task_of
from databus.relay.serving.ptubes.requests import Subscription
from databus.relay.serving.ptubes.rows.compiled_columns import prepare
from databus.relay.serving.ptubes.rows.row_events import RowEvents
from databus.relay.serving.ptubes.session import Session, SessionLimits
from databus.relay.serving.reading.feed import Feed
from databus.relay.serving.reading.position_search import FoundPosition, PositionSearch
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import (
    OtherLogError,
    RequestError,
    ScnAheadError,
    ScnNotFoundError,
)

MOST_WAIT_S = 1.5  # the stock client gives up after 2 s
_LEAST_READ_BYTES = 4096
_MS_NS = 1_000_000
_ADVICE = "To begin anew, set the task's checkpoint to EARLIEST, or read its tables anew"
DOUBTFUL = Claim(-1)


class SessionOpener:
    """Opens sessions on a relay. On the loop's thread."""

    def __init__(self, relay: Relay, settings: PtubesSettings, queue: FairQueue) -> None:
        self._relay, self._queue = relay, queue
        self._zone = settings.zone()
        prepare(self._zone)
        self._limits = SessionLimits(
            settings.read_bytes,
            settings.max_response_bytes,
            MOST_WAIT_S,
            settings.heartbeat_s,
        )
        sources = relay.settings.physical_sources
        self.tasks: Mapping[str, ReaderTask] = make_reader_tasks(settings, sources, relay.catalog)

    async def check(self, wanted: Subscription, address: str) -> None:
        """Raise the error with which a subscription would fail."""
        limits = self._limits._replace(read_bytes=_LEAST_READ_BYTES)
        await self._make(wanted, address, limits)

    async def open(self, wanted: Subscription, address: str) -> Session:
        """Return a session at its client's checkpoint.

        Raises RequestError for what there is not, ScnNotFoundError for what no rung has any more,
        ScnAheadError for a place after the newest window, and other errors of a rung.
        """
        return await self._make(wanted, address, self._limits)

    async def _make(self, wanted: Subscription, address: str, limits: SessionLimits) -> Session:
        task = task_of(self.tasks, wanted)
        source = self._relay.physical_source(task.physical_source)
        src_ids = frozenset(task.src_ids[table] for table in wanted.tables)
        selection, skipped, mark = await self._selection(source, wanted, src_ids)
        epochs = source.capture.servers.table
        events = RowEvents(
            wanted,
            task,
            self._relay.registry.text_of,
            lambda epoch: server_number(epochs.epochs, epoch),
            self._zone,
            PlaceTimes(wanted.checkpoint, epoch_of(wanted.checkpoint, epochs.epochs)),
            skipped,
            mark,
        )
        caller = caller_of(None, address, f"ptubes {wanted.task}")
        shown = f"partitions {_shown(wanted.owned)} of {wanted.partitions}"
        feed = Feed(self._relay, self._queue, caller, selection, shown)
        session = Session(
            wanted,
            feed,
            events,
            self._queue,
            limits,
            self._relay.clock,
            lambda scn: self._commit_ms(source, scn),
            lambda: source.reader.max_scn,
        )
        try:
            await session.begin()
        except OtherLogError as error:
            raise OtherLogError(f"{error}. {_ADVICE}") from error
        return session

    async def _selection(
        self, source: PhysicalSource, wanted: Subscription, src_ids: frozenset[int]
    ) -> tuple[Selection, SkippedRows | None, Mark | None]:
        """Return what is read, the rows that the client has of its first window, and its mark."""
        at, skipped, mark = wanted.checkpoint, None, None
        checkpoint = Checkpoint.flexible()
        if at.mode is Mode.NORMAL:
            scn = scn_of(at, source.capture.servers.table.epochs)
            claim = None if scn is None else await self._checked(source, at, scn, src_ids)
            if scn is None or claim is DOUBTFUL:
                scn = await self._scn_at_time(source, at, src_ids, is_known=scn is not None)
                checkpoint = Checkpoint.at(scn) if scn >= 0 else checkpoint
            elif at.row_index > BEFORE_ROWS:
                skipped = SkippedRows(scn + 1, at.row_index)
                checkpoint = Checkpoint(ConsumptionMode.ONLINE, scn + 1, 0)
            else:
                checkpoint = Checkpoint.at(scn)
            mark = None if claim is None else claim.mark
        selection = Selection(
            source.name,
            checkpoint.with_mark(mark),
            src_ids,
            from_latest=at.mode is Mode.LATEST,
            wants_ddl=wanted.wants_ddl,
            wants_truncates=False,
        )
        return selection, skipped, mark

    async def _checked(
        self, source: PhysicalSource, at: PtubesCheckpoint, scn: int, src_ids: frozenset[int]
    ) -> Claim | None:
        """Return what proves that a place is of this log, if it has such; raise OtherLogError.

        It is `DOUBTFUL` if nothing is proved, and what is held there is newer than the place.
        """
        source.check_served()
        history = source.history
        claim = claim_of(at, scn, source.capture.servers.table.epochs)
        if claim is not None and not source.spans.of(src_ids).has_passed(claim.scn):
            marked_scn = claim.scn
            held = await once_here(lambda: history.window_at(marked_scn))
            if held is not None:
                found = await self._found(source, marked_scn) if claim.gtid else None
                row = None if found is None else found.transaction
                if claim.is_refuted(held, None if row is None else row.gtid):
                    raise _other_log(source.name, at, claim, held)
                return claim
        held = await once_here(lambda: history.window_at(scn))
        is_newer = held is not None and 0 < at.timestamp_ms < held[1] // _MS_NS
        # The window where capture began is only that: nothing that is held comes before it.
        if is_newer and held is not None and held[0] != history.min_scn:
            return DOUBTFUL
        return claim

    async def _scn_at_time(
        self,
        source: PhysicalSource,
        at: PtubesCheckpoint,
        src_ids: frozenset[int],
        *,
        is_known: bool,
    ) -> int:
        """Return the SCN after which the first window of a place's time or later comes.

        `is_known`: its server is, and what is held there is newer than the place.
        """
        time_ms = first_commit_ms(at)
        if time_ms <= 0:
            raise RequestError(
                "buffaloCheckpoint is NORMAL, but its server is not known here and it has no "
                "timestamp"
            )
        try:
            return (await self._search(source, TimePlace(time_ms * _MS_NS), src_ids)).scn
        except ScnAheadError:
            return source.reader.max_scn  # all that is held was committed before
        except ScnNotFoundError as error:
            if not is_known:
                raise
            raise OtherLogError(
                f"the checkpoint is of another log of {source.name}: all windows that are held are "
                f"newer than it, also those in front of its place: {error}. {_ADVICE}"
            ) from error

    async def _commit_ms(self, source: PhysicalSource, scn: int) -> int | None:
        found = await self._found(source, scn)
        if found is None or found.timestamp_ns is None:
            return None
        return found.timestamp_ns // _MS_NS

    async def _found(self, source: PhysicalSource, scn: int) -> FoundPosition | None:
        try:
            return await self._search(source, ScnPlace(scn), frozenset())
        except (ScnNotFoundError, ScnAheadError):
            return None

    async def _search(
        self, source: PhysicalSource, place: NamedPlace, src_ids: frozenset[int]
    ) -> FoundPosition:
        source.check_served()
        first, epoch = source.spans.of(src_ids).first, source.epoch_of(place)
        job = PositionSearch(source.history, place, source.name, epoch, first)
        while True:
            await self._queue.take()
            found = await once_here(job.step)
            if found is not None:
                return found
            await asyncio.sleep(0)


def _other_log(name: str, at: PtubesCheckpoint, claim: Claim, held: Mark) -> OtherLogError:
    told = claim.mark or (claim.scn, max(at.timestamp_ms, 0) * _MS_NS)
    return OtherLogError(f"{OtherLogError.of(name, told, held)}. {_ADVICE}")


def _shown(owned: frozenset[int]) -> str:
    """Return partitions as ranges: 0-3,7."""
    ranges: list[tuple[int, int]] = []
    for one in sorted(owned):
        if ranges and one == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], one
        else:
            ranges.append((one, one))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges) or "none"
