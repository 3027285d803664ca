"""The rules of a bootstrap: what a store sends to a consumer at a checkpoint.

The server is stateless between two requests: the checkpoint says where the consumer is,
so any server with the same store can answer the next request.

For a consumer that has everything up to S (0: nothing), with B the start SCN
and T the target SCN:

    snapshot    each row whose last change is in (S, B], with its current value
    catch-up    each change in (B, T], in order

A row that changed after B is not in the snapshot because the catch-up has all its
changes: an older value never comes after a newer one. When the log from S on is no
longer than the snapshot, B is S and the snapshot is empty.

Writers continue meanwhile: they shorten the log, delete tombstones, seed a source
anew. So an answer and all that its rightness hangs on are read at one moment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from databus.bootstrap.packs.reading import PackReading, is_whole
from databus.bootstrap.server.checks import (
    STORE_ID_KEY,
    check_reloads,
    check_row_ids,
    check_same_log,
    check_served,
    check_start_scn,
    find_log_place,
    find_snapshot,
)
from databus.bootstrap.server.parameters import PageRequest, Reading, StartRequest
from databus.bootstrap.server.row_filters import filter_of_rows
from databus.bootstrap.server.source_lookup import Listed, SourceLookup, Stores, choose_sources
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.rows_now import RowsNow
from databus.bootstrap.store.snapshot_pages import SnapshotRange, needed_rows
from databus.bootstrap.store.values import WHOLE_WINDOW, LogPlace, LogRow, SourceState
from databus.bootstrap.store.window_offsets import offset_of
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import (
    BootstrapTooOldError,
    InvalidParameterError,
    RowError,
    RowsUnknownError,
    SchemaError,
    SchemaNotFoundError,
)
from databus.schemas.event.control import checkpoint_event
from databus.schemas.event.v2 import decode, encode
from databus.schemas.protocol import Parameter
from databus.schemas.rendering import Render, choose_render
from databus.schemas.scn import MAX_SCN

# A longer log is not counted to its end when it is compared with the snapshot.
MOST_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Start:
    """The start SCN of a snapshot, and the store whose row ids its pages have."""

    scn: int
    store_id: str


@dataclass(frozen=True, slots=True)
class Target:
    """The target SCN of a catch-up, and the newest window with rows up to it: (SCN, timestamp)."""

    scn: int
    mark: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Page:
    """An answer in parts: events, then the closing checkpoint event.

    `pending_event_bytes` is set when there are none: the page size that the first event needs.
    """

    parts: Sequence[bytes]
    checkpoint: Checkpoint
    is_phase_over: bool = False
    pending_event_bytes: int | None = None
    rows: int = 0

    @property
    def body(self) -> bytes:
        """The whole answer in one piece."""
        return b"".join(self.parts)

    @property
    def size_bytes(self) -> int:
        """The size of the answer."""
        return sum(map(len, self.parts))


def find_start(request: StartRequest, stores: Stores, listed: Listed) -> Start:
    """Return the start SCN for a consumer.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError,
    UnknownSourceError, InvalidParameterError, OtherLogError.
    """
    with at_one_moment(request.sources, stores, listed) as choice:
        for source in choice.sources:
            check_served(source)
        scn = choice.store.position().scn
        check_same_log(choice, request.mark, request.log_window, scn)
        if scn < request.since_scn:
            raise BootstrapTooOldError(
                f"the producer is at scn {scn} and the consumer at scn {request.since_scn} "
                "already; ask again later"
            )
        # The changed rows would cost no less: the catch-up alone will do.
        if _is_log_shorter(choice, request.since_scn):
            return Start(request.since_scn, choice.store.id)
        for source in choice.sources:
            check_start_scn(source, request.since_scn, scn)
        return Start(scn, choice.store.id)


def find_target(text: str, stores: Stores, listed: Listed) -> Target:
    """Return the SCN to catch up to. Raises BootstrapTooOldError, UnknownSourceError."""
    with at_one_moment([text], stores, listed) as choice:
        check_served(choice.sources[0])
        scn = choice.store.position().scn
        return Target(scn, choice.store.window_at(choice.src_ids, scn))


def read_page(request: PageRequest, stores: Stores, listed: Listed) -> Page:
    """Return the page after a checkpoint.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError,
    UnknownSourceError, InvalidParameterError, OtherLogError.
    """
    is_snapshot = request.checkpoint.mode is ConsumptionMode.SNAPSHOT
    with at_one_moment(request.sources, stores, listed) as choice:
        return (_SnapshotPage if is_snapshot else _CatchUpPage)(choice, request).read()


@contextmanager
def at_one_moment(texts: Sequence[str], stores: Stores, listed: Listed) -> Iterator[SourceLookup]:
    """Yield the requested sources; all reads inside see the same moment."""
    choice = choose_sources(texts, stores, listed)
    with choice.store.reading():
        yield SourceLookup(choice.store, tuple(choice.store.source(s.name) for s in choice.sources))


class _PageReader(ABC):
    """Reads a page of either phase: the rows that fit, then a checkpoint."""

    def __init__(self, choice: SourceLookup, request: PageRequest) -> None:
        self._store = choice.store
        self._choice = choice
        self._request = request
        self._checkpoint = request.checkpoint
        self._now = self._store.rows_now(choice.src_ids)
        render = choose_render(request.form, self._schema_text)
        self._is_as_stored = render is None
        self._render = self._renewing(render)
        # Every page ends with a checkpoint, whose length is known only at the end.
        self._closing_bytes = len(self._closing(self._longest()))
        if self._closing_bytes >= request.form.size_bytes:
            raise InvalidParameterError(
                Parameter.BATCH_SIZE,
                str(request.form.size_bytes),
                f"more than the {self._closing_bytes} bytes of the checkpoint at a page's end",
            )

    @property
    def _room_bytes(self) -> int:
        return self._request.form.size_bytes - self._closing_bytes

    def _renewing(self, render: Render | None) -> Render | None:
        """Return the renderer of events; it converts rows of older schema versions first."""
        if not self._has_older():
            return render
        renew = self._renew_or_say_so
        return renew if render is None else lambda event: render(renew(event))

    @abstractmethod
    def read(self) -> Page:
        """Return the page."""

    @abstractmethod
    def _has_older(self) -> bool:
        """Whether the requested rows may include rows of older schema versions."""

    @abstractmethod
    def _renew(self, event: bytes) -> bytes:
        """Return an event with its row in the newest schema version."""

    def _renew_or_say_so(self, event: bytes) -> bytes:
        try:
            return self._renew(event)
        except (RowError, SchemaError) as error:
            src_id = decode(event)[0].src_id
            name = next(one.name for one in self._choice.sources if one.src_id == src_id)
            scn = self._now.changed_scn(src_id)
            raise RowsUnknownError(name, scn, str(error)) from error

    def _with_store_id(self) -> Checkpoint:
        """Return the checkpoint with this store's id, which some clients do not send."""
        extra = {**self._checkpoint.extra, STORE_ID_KEY: self._store.id}
        return replace(self._checkpoint, extra=extra)

    def _longest(self) -> Checkpoint:
        """Return a checkpoint whose JSON is at least as long as any other of this phase."""
        checkpoint = self._with_store_id()
        if checkpoint.mode is ConsumptionMode.SNAPSHOT:
            return replace(checkpoint, snapshot_offset=MAX_SCN)
        return replace(checkpoint, window_scn=MAX_SCN, window_offset=MAX_SCN, prev_scn=MAX_SCN)

    def _fit(self, events: Sequence[bytes]) -> list[bytes]:
        """Return the first events that fit, in the requested format."""
        room = self._room_bytes
        if self._render is None and sum(map(len, events)) <= room:
            return list(events)
        fitting = []
        for event in events:
            form = self._form(event)
            room -= len(form)
            if room < 0:
                break
            fitting.append(form)
        return fitting

    def _close(
        self, parts: Sequence[bytes], rows: int, checkpoint: Checkpoint, *, is_over: bool
    ) -> Page:
        return Page((*parts, self._closing(checkpoint)), checkpoint, is_over, rows=rows)

    def _pending(self, event_bytes: int) -> Page:
        needed_bytes = event_bytes + self._closing_bytes
        return Page((), self._checkpoint, pending_event_bytes=needed_bytes)

    def _form(self, event: bytes) -> bytes:
        return event if self._render is None else self._render(event)

    def _closing(self, checkpoint: Checkpoint) -> bytes:
        return self._form(encode(checkpoint_event(checkpoint)))

    def _schema_text(self, digest: bytes) -> str:
        text = self._now.text(digest)
        if text is None:
            raise SchemaNotFoundError(f"no schema has the id {digest.hex()}")
        return text


class _SnapshotPage(_PageReader):
    """A page of one source's rows, in the order of their ids."""

    def _has_older(self) -> bool:
        name = self._checkpoint.snapshot_source
        asked = [source.src_id for source in self._choice.sources if source.name == name]
        changed = ((src_id, self._now.changed_scn(src_id)) for src_id in asked)
        return any(scn >= 0 and self._store.has_older(src_id, scn) for src_id, scn in changed)

    def _renew(self, event: bytes) -> bytes:
        return self._now.renew_standing(event)

    def read(self) -> Page:
        """Return the page."""
        source = find_snapshot(self._choice, self._checkpoint)
        snapshot_range = remaining_snapshot(self._request, source, self._now)
        if self._request.takes_packs and self._is_as_stored and is_whole(snapshot_range):
            version = self._now.version(source.src_id)
            packs = PackReading(self._store, source, version, self._form)
            packed = packs.page(snapshot_range, self._room_bytes)
            if packed.parts:
                return self._answer(packed.parts, packed.rows, self._unless_over(packed.last_id))
            # Up to the next pack.
            snapshot_range = snapshot_range._replace(until_id=packed.last_id)
        return self._read_rows(source, snapshot_range)

    def _read_rows(self, source: SourceState, snapshot_range: SnapshotRange) -> Page:
        next_id = self._unless_over(snapshot_range.until_id)
        if self._render is None:
            # Events are sent as they are stored, so SQLite can join them.
            parts, found = self._store.snapshot_body(source.name, snapshot_range, self._room_bytes)
            if found.size_bytes > self._room_bytes:
                return self._pending(found.size_bytes)
            return self._answer(parts, found.rows, next_id if found.is_last else found.last_id)
        page = self._store.snapshot_page(source.name, snapshot_range, self._room_bytes)
        events = self._fit([row.event for row in page.rows])
        if page.rows and not events:
            return self._pending(len(self._form(page.rows[0].event)))
        last_id = next_id if page.is_last else page.last_id
        if len(events) < len(page.rows):
            last_id = page.rows[len(events) - 1].id
        return self._answer([b"".join(events)], len(events), last_id)

    def _unless_over(self, last_id: int) -> int | None:
        """Return the id; None when it is the last requested one."""
        return None if last_id >= self._request.until_row else last_id

    def _answer(self, parts: Sequence[bytes], rows: int, last_id: int | None) -> Page:
        """Return the page of rows up to `last_id`, or, for None, up to the last requested row."""
        until_row = self._request.until_row
        if last_id is not None or until_row < MAX_SCN:
            offset = until_row if last_id is None else last_id
            after = replace(self._with_store_id(), snapshot_offset=offset)
        else:
            after = self._with_store_id().end_snapshot()
        return self._close(parts, rows, after, is_over=last_id is None)


class _CatchUpPage(_PageReader):
    """A page of the log rows of all requested sources, in commit order."""

    def _has_older(self) -> bool:
        since_scn = self._checkpoint.window_scn
        return any(self._now.changed_scn(src_id) > since_scn for src_id in self._choice.src_ids)

    def _renew(self, event: bytes) -> bytes:
        return self._now.renew(event)

    def read(self) -> Page:
        """Return the page."""
        at = self._checkpoint
        # Who catches up with one source after another has a mark of all of them.
        if not at.catchup_source:
            check_same_log(self._choice, at.mark, at.log_window, at.window_scn)
        log_range = remaining_log(self._request, self._choice, self._now)
        target_scn, room = log_range.target_scn, self._room_bytes
        if self._render is None and (body := self._store.log_body(log_range, room)) is not None:
            after = self._at((body.scn, WHOLE_WINDOW))
            return self._close([body.data], body.rows, after, is_over=body.scn == target_scn)
        found = self._store.log_page(log_range, room)
        events = self._fit([row.event for row in found.rows])
        if found.rows and not events:
            return self._pending(len(self._form(found.rows[0].event)))
        place, is_over = found.last, found.is_last
        if len(events) < len(found.rows):
            place, is_over = _place_before(found.rows, len(events)), False
        elif is_over:
            place = target_scn, WHOLE_WINDOW
        return self._close([b"".join(events)], len(events), self._at(place), is_over=is_over)

    def _close(
        self, parts: Sequence[bytes], rows: int, checkpoint: Checkpoint, *, is_over: bool
    ) -> Page:
        if checkpoint.is_stock_catch_up and checkpoint.is_whole_window and not is_over:
            # To LinkedIn's client offset -1 says that the catch-up is over.
            checkpoint = replace(checkpoint, window_scn=checkpoint.window_scn + 1, window_offset=0)
        return super()._close(parts, rows, checkpoint, is_over=is_over)

    def _at(self, place: LogPlace) -> Checkpoint:
        scn, offset = place[0], offset_of(self._store, self._choice.src_ids, place)
        after = replace(self._checkpoint, window_scn=scn, window_offset=offset)
        return replace(after, prev_scn=scn) if after.is_whole_window else after


def remaining_snapshot(reading: Reading, source: SourceState, now: RowsNow) -> SnapshotRange:
    """Return which rows of a source's snapshot are still to be sent after a checkpoint."""
    checkpoint = reading.checkpoint
    return needed_rows(
        max(checkpoint.bootstrap_since_scn, 0),
        checkpoint.bootstrap_start_scn,
        checkpoint.snapshot_offset,
        filter_of_rows(reading.filter_of(source.src_id), source.src_id, now, now.renew_standing),
        checkpoint.seen_scn,
        reading.until_row,
        with_truncates=reading.wants_truncates,
    )


def remaining_log(reading: Reading, choice: SourceLookup, now: RowsNow) -> LogRange:
    """Return which events of the log are still to be sent after a checkpoint.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError.
    """
    checkpoint = reading.checkpoint
    filters = {
        src_id: filter_of_rows(reading.filter_of(src_id), src_id, now, now.renew)
        for src_id in choice.src_ids
    }
    check_reloads(now, choice, checkpoint)
    log_range = LogRange(
        choice.src_ids,
        find_log_place(choice, checkpoint),
        checkpoint.bootstrap_target_scn,
        {src_id: wanted for src_id, wanted in filters.items() if wanted is not None},
        reading.after_row,
        reading.until_row,
        with_truncates=reading.wants_truncates,
    )
    if log_range.is_of_some_rows:
        check_row_ids(choice, checkpoint)
    return log_range


def _place_before(rows: Sequence[LogRow], number: int) -> LogPlace:
    """Return the place just before the row with this number."""
    last = rows[number - 1]
    return last.scn, (last.row_index if rows[number].scn == last.scn else WHOLE_WINDOW)


def _is_log_shorter(choice: SourceLookup, since_scn: int) -> bool:
    """Return whether the log after S is available and no longer than the snapshot would be."""
    floor_scn = max(max(s.floor_scn, s.log_floor_scn) for s in choice.sources)
    if since_scn < max(floor_scn, 1):
        return False
    logged = choice.store.count_logged(choice.src_ids, since_scn, MOST_COUNTED)
    if logged >= MOST_COUNTED:
        return False
    changed = 0
    for source in choice.sources:
        changed += choice.store.count_changed(source.name, since_scn, logged - changed)
        if changed >= logged:
            return True
    return changed >= logged
