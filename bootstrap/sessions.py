"""The rules of a bootstrap: what a store answers to a consumer at a checkpoint.

Nothing is kept between two requests: a checkpoint says where its consumer is,
so any server with the same store can answer the next one.

For a consumer that has everything up to S (0: nothing), with B the start SCN
and T the target SCN:

    snapshot    each row that changed last in (S, B], as it stands
    catch-up    each change in (B, T], in order

A row that changed after B is not in the snapshot, for the catch-up has all its
changes: nothing older ever comes after something newer. Where the log from S
on is no longer than the snapshot, B is S and the snapshot is empty.

Writers go on meanwhile: they cut the log, forget deleted rows, seed a source
anew. So an answer and all that its rightness hangs on are read at one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from databus.bootstrap.session_parameters import PageRequest, StartRequest
from databus.bootstrap.source_choice import Choice, Listed, Stores, choose_sources
from databus.bootstrap.stored import WHOLE_WINDOW, LogPlace, LogRow, SourceState, SourceStatus
from databus.bootstrap.window_offsets import offset_of, place_of
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.control import checkpoint_event
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    InvalidParameterError,
    SchemaNotFoundError,
)
from databus.schemas.event_v2 import encode
from databus.schemas.filters import EventFilter, NoFilter
from databus.schemas.rendering import choose_render
from databus.schemas.rows import schema_id
from databus.schemas.scn import MAX_SCN

STORE_ID_KEY = "bootstrap_store_id"  # in a checkpoint: whose row ids it has
# A log longer than this is not counted to its end to see whether it is the shorter way.
MOST_COUNTED = 10_000

EVERY_ROW = NoFilter()


@dataclass(frozen=True, slots=True)
class Start:
    """Where a snapshot begins, and the store whose row ids its pages will have."""

    scn: int
    store_id: str


@dataclass(frozen=True, slots=True)
class Page:
    """What to answer: the events with the closing checkpoint's behind them.

    `pending_event_bytes`: the body is empty, for the first event needs a page so large.
    """

    body: bytes
    checkpoint: Checkpoint
    is_phase_over: bool = False
    pending_event_bytes: int | None = None
    rows: int = 0


def find_start(request: StartRequest, stores: Stores, listed: Listed) -> Start:
    """Return the start SCN for a consumer.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError,
    UnknownSourceError, InvalidParameterError.
    """
    with _at_one_moment(request.sources, stores, listed) as choice:
        for source in choice.sources:
            _check_served(source)
        scn = choice.store.position().scn
        if scn < request.since_scn:
            raise BootstrapTooOldError(
                f"the producer is at scn {scn} and the consumer at scn {request.since_scn} "
                "already; ask again later"
            )
        if _is_log_shorter(choice, request.since_scn):
            return Start(request.since_scn, choice.store.id)
        for source in choice.sources:
            _check_reach(source, request.since_scn, scn)
        return Start(scn, choice.store.id)


def find_target(text: str, stores: Stores, listed: Listed) -> int:
    """Return the SCN to catch up to; raises BootstrapTooOldError, UnknownSourceError."""
    with _at_one_moment([text], stores, listed) as choice:
        _check_served(choice.sources[0])
        return choice.store.position().scn


def read_page(request: PageRequest, stores: Stores, listed: Listed) -> Page:
    """Return the page after a checkpoint.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError,
    UnknownSourceError, InvalidParameterError.
    """
    is_snapshot = request.checkpoint.mode is ConsumptionMode.SNAPSHOT
    with _at_one_moment(request.sources, stores, listed) as choice:
        return (_SnapshotPage if is_snapshot else _CatchUpPage)(choice, request).read()


@contextmanager
def _at_one_moment(texts: Sequence[str], stores: Stores, listed: Listed) -> Iterator[Choice]:
    """Give the sources asked for; what is read of them inside is of one moment."""
    choice = choose_sources(texts, stores, listed)
    with choice.store.reading():
        yield Choice(choice.store, tuple(choice.store.source(s.name) for s in choice.sources))


class _PageReader:
    """What a page of either phase is made of: rows that fit, and a checkpoint behind them."""

    def __init__(self, choice: Choice, request: PageRequest) -> None:
        self._store = choice.store
        self._choice = choice
        self._request = request
        self._checkpoint = request.checkpoint
        self._texts: dict[bytes, str] = {}
        self._render = choose_render(request.form, self._schema_text)
        self._closing_bytes = len(self._closing(self._longest()))
        if self._closing_bytes >= request.form.size_bytes:
            raise InvalidParameterError(
                "batchSize",
                str(request.form.size_bytes),
                f"more than the {self._closing_bytes} bytes of the checkpoint at a page's end",
            )

    @property
    def _room_bytes(self) -> int:
        return self._request.form.size_bytes - self._closing_bytes

    def _with_store_id(self) -> Checkpoint:
        """Return the checkpoint, saying whose row ids it has, for clients that never said it."""
        extra = {**self._checkpoint.extra, STORE_ID_KEY: self._store.id}
        return replace(self._checkpoint, extra=extra)

    def _longest(self) -> Checkpoint:
        """Return a checkpoint whose JSON is no shorter than that of any place of this phase."""
        checkpoint = self._with_store_id()
        if checkpoint.mode is ConsumptionMode.SNAPSHOT:
            return replace(checkpoint, snapshot_offset=MAX_SCN)
        return replace(checkpoint, window_scn=MAX_SCN, window_offset=MAX_SCN, prev_scn=MAX_SCN)

    def _fit(self, events: Sequence[bytes]) -> list[bytes]:
        """Return those of the first events that fit, in the form asked for."""
        render, room = self._render, self._room_bytes
        if render is None and sum(map(len, events)) <= room:
            return list(events)
        fitting = []
        for event in events:
            form = event if render is None else render(event)
            room -= len(form)
            if room < 0:
                break
            fitting.append(form)
        return fitting

    def _close(self, events: Sequence[bytes], checkpoint: Checkpoint, is_over: bool) -> Page:
        body = b"".join((*events, self._closing(checkpoint)))
        return Page(body, checkpoint, is_over, rows=len(events))

    def _pending(self, event: bytes) -> Page:
        form = event if self._render is None else self._render(event)
        return Page(b"", self._checkpoint, pending_event_bytes=len(form) + self._closing_bytes)

    def _closing(self, checkpoint: Checkpoint) -> bytes:
        event = encode(checkpoint_event(checkpoint))
        return event if self._render is None else self._render(event)

    def _schema_text(self, digest: bytes) -> str:
        if not self._texts:
            listed = self._store.schemas(self._choice.src_ids)
            self._texts = {schema_id(text): text for _, _, text in listed}
        if digest not in self._texts:
            raise SchemaNotFoundError(f"no schema has the id {digest.hex()}")
        return self._texts[digest]

    def _filter_of(self, src_id: int) -> EventFilter:
        return self._request.filter_of(src_id) or EVERY_ROW


class _SnapshotPage(_PageReader):
    """Rows of one source in the order of their ids."""

    def read(self) -> Page:
        """Return the page."""
        source = self._source()
        self._check(source)
        checkpoint = self._checkpoint
        found = self._store.snapshot_page(
            source.name,
            max(checkpoint.bootstrap_since_scn, 0),
            checkpoint.bootstrap_start_scn,
            checkpoint.snapshot_offset,
            self._filter_of(source.src_id),
            self._room_bytes,
            checkpoint.seen_scn,
        )
        events = self._fit([row.event for row in found.rows])
        if found.rows and not events:
            return self._pending(found.rows[0].event)
        is_cut = len(events) < len(found.rows)
        if found.is_last and not is_cut:
            return self._close(events, self._with_store_id().end_snapshot(), is_over=True)
        last_id = found.rows[len(events) - 1].id if is_cut else found.last_id
        after = replace(self._with_store_id(), snapshot_offset=last_id)
        return self._close(events, after, is_over=False)

    def _source(self) -> SourceState:
        name = self._checkpoint.snapshot_source
        for source in self._choice.sources:
            if source.name == name:
                return source
        raise InvalidParameterError(
            "checkPoint", name, "snapshot_source is one of the sources asked for"
        )

    def _check(self, source: SourceState) -> None:
        checkpoint = self._checkpoint
        _check_served(source)
        store_id = checkpoint.extra.get(STORE_ID_KEY, self._store.id)
        if store_id != self._store.id:
            raise BootstrapTooYoungError(
                f"the snapshot was begun on store {store_id}, and this is {self._store.id}: row "
                "ids mean nothing here; begin again with /startSCN"
            )
        start_scn, scn = checkpoint.bootstrap_start_scn, self._store.position().scn
        known_scn = max(checkpoint.bootstrap_since_scn, 0) or checkpoint.seen_scn
        _check_reach(source, known_scn, start_scn)
        _check_not_ahead("start", start_scn, scn)


class _CatchUpPage(_PageReader):
    """Log rows of all the sources, in the order they were committed."""

    def read(self) -> Page:
        """Return the page."""
        target_scn = self._checkpoint.bootstrap_target_scn
        self._check()
        _check_not_ahead("target", target_scn, self._store.position().scn)
        found = self._store.log_page(
            self._choice.src_ids,
            self._begin(),
            target_scn,
            {source.src_id: self._filter_of(source.src_id) for source in self._choice.sources},
            self._room_bytes,
        )
        events = self._fit([row.event for row in found.rows])
        if found.rows and not events:
            return self._pending(found.rows[0].event)
        if len(events) < len(found.rows):
            after = _place_before(found.rows, len(events))
            return self._close(events, self._at(after), is_over=False)
        if found.is_last:
            return self._close(events, self._at((target_scn, WHOLE_WINDOW)), is_over=True)
        return self._close(events, self._at(found.last), is_over=False)

    def _begin(self) -> LogPlace:
        scn, offset = self._checkpoint.window_scn, self._checkpoint.window_offset
        place = place_of(self._store, self._choice.src_ids, scn, offset)
        if place is None:
            raise BootstrapTooYoungError(
                f"window {scn} has no {offset} events of these sources; begin again with /startSCN"
            )
        return place

    def _at(self, place: LogPlace) -> Checkpoint:
        scn, offset = place[0], offset_of(self._store, self._choice.src_ids, place)
        after = replace(self._checkpoint, window_scn=scn, window_offset=offset)
        return replace(after, prev_scn=scn) if after.is_whole_window else after

    def _check(self) -> None:
        checkpoint = self._checkpoint
        # Of a window that is half consumed the rest must be there, too.
        needed_scn = checkpoint.window_scn - (not checkpoint.is_whole_window)
        for source in self._choice.sources:
            _check_served(source)
            if needed_scn < source.log_floor_scn:
                raise BootstrapTooYoungError(
                    f"source {source.name}: the log goes back to scn {source.log_floor_scn}, and "
                    f"the consumer is at scn {checkpoint.window_scn}; begin again with /startSCN"
                )


def _place_before(rows: Sequence[LogRow], number: int) -> LogPlace:
    """Return the place between a row and the next one that was wanted, too."""
    last = rows[number - 1]
    return last.scn, (last.index if rows[number].scn == last.scn else WHOLE_WINDOW)


def _check_served(source: SourceState) -> None:
    """Raise BootstrapTooOldError unless the source is active."""
    if source.status is SourceStatus.ACTIVE:
        return
    problem = f": {source.problem}" if source.problem else ""
    raise BootstrapTooOldError(
        f"source {source.name} is {explain_status(source)}{problem}; ask again later"
    )


def explain_status(source: SourceState) -> str:
    """Return a source's status in words, with how far its seeding is."""
    status = source.status.value.replace("_", " ")
    if source.status is SourceStatus.SEEDING:
        done = seeded_percent(source)
        return f"{status}, {source.seed_rows} rows" + ("" if done is None else f" ({done} %)")
    if source.status is SourceStatus.SEEDING_CATCH_UP:
        return f"{status}, until scn {source.seed_until_scn}"
    return status


def seeded_percent(source: SourceState) -> int | None:
    """Return how much of the table is seeded, below 100 while it is; None when nobody knows."""
    if source.seed_estimate <= 0:
        return None
    return min(99, 100 * source.seed_rows // source.seed_estimate)


def _check_reach(source: SourceState, since_scn: int, start_scn: int) -> None:
    """Raise BootstrapTooYoungError when a snapshot at the start SCN cannot be had."""
    floor_scn = max(source.floor_scn, source.log_floor_scn)
    if start_scn < floor_scn:
        raise BootstrapTooYoungError(
            f"source {source.name}: start scn {start_scn} is older than scn {floor_scn}, where "
            "what is kept of it begins; begin again with /startSCN"
        )
    if 0 < since_scn < min(source.tombstone_floor_scn, start_scn):
        known = f"from scn {source.tombstone_floor_scn} on"
    elif source.hole_begin_scn < since_scn < min(source.hole_end_scn, start_scn):
        known = f"up to scn {source.hole_begin_scn} and from scn {source.hole_end_scn} on"
    else:
        return
    raise BootstrapTooYoungError(
        f"source {source.name}: which rows were deleted is known {known}, and the consumer is at "
        f"scn {since_scn}; it must begin with an empty target and an empty checkpoint (windowScn 0)"
    )


def _check_not_ahead(what: str, scn: int, position_scn: int) -> None:
    if scn > position_scn:
        raise BootstrapTooOldError(
            f"{what} scn {scn} is newer than scn {position_scn}, where the producer is; "
            "ask again later"
        )


def _is_log_shorter(choice: Choice, since_scn: int) -> bool:
    """Say whether the log after S can be had, and is no longer than what a snapshot would send."""
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
