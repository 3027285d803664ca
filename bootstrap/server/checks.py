"""Checks whether a store can serve a consumer at a checkpoint, and where the answer starts."""

from __future__ import annotations

from collections.abc import Sequence

from databus.bootstrap.server.source_lookup import SourceLookup
from databus.bootstrap.store.rows_now import RowsNow
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import LogPlace, SourceState, SourceStatus
from databus.bootstrap.store.window_offsets import place_of
from databus.schemas.checkpoint import Checkpoint, LogWindow
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    InvalidParameterError,
    OtherLogError,
)
from databus.schemas.protocol import Parameter

STORE_ID_KEY = "bootstrap_store_id"  # in a checkpoint: the store whose row ids it has


def find_snapshot(choice: SourceLookup, checkpoint: Checkpoint) -> SourceState:
    """Return the source in whose snapshot a checkpoint is.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError,
    InvalidParameterError.
    """
    source = _source_of(choice, checkpoint)
    check_served(source)
    _check_store(choice, checkpoint)
    start_scn, scn = checkpoint.bootstrap_start_scn, choice.store.position().scn
    known_scn = max(checkpoint.bootstrap_since_scn, 0) or checkpoint.seen_scn
    check_start_scn(source, known_scn, start_scn)
    check_not_ahead("start", start_scn, scn)
    return source


def _source_of(choice: SourceLookup, checkpoint: Checkpoint) -> SourceState:
    name = checkpoint.snapshot_source
    for source in choice.sources:
        if source.name == name:
            return source
    raise InvalidParameterError(
        Parameter.CHECKPOINT, name, "snapshot_source must be one of the requested sources"
    )


def _check_store(choice: SourceLookup, checkpoint: Checkpoint) -> None:
    store_id = checkpoint.extra.get(STORE_ID_KEY, choice.store.id)
    if store_id != choice.store.id:
        raise BootstrapTooYoungError(
            f"the snapshot was begun on store {store_id}, and this is {choice.store.id}: row "
            "ids mean nothing here; begin again with /startSCN"
        )


def check_row_ids(choice: SourceLookup, checkpoint: Checkpoint) -> None:
    """Raise BootstrapTooYoungError unless every row in the log after the start SCN has its id.

    A deleted row keeps its id as long as its tombstone is kept.
    """
    _check_store(choice, checkpoint)
    for source in choice.sources:
        if checkpoint.bootstrap_start_scn < source.tombstone_floor_scn:
            raise BootstrapTooYoungError(
                f"source {source.name}: rows deleted up to scn {source.tombstone_floor_scn} have "
                f"no ids any more, and the start is scn {checkpoint.bootstrap_start_scn}; begin "
                "again with /startSCN"
            )


def find_log_place(choice: SourceLookup, checkpoint: Checkpoint) -> LogPlace:
    """Return the place in the log after which a catch-up continues.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError.
    """
    # The rest of a window that is half consumed must still be in the log.
    needed_scn = checkpoint.window_scn - (not checkpoint.is_whole_window)
    for source in choice.sources:
        check_served(source)
        if needed_scn < source.log_floor_scn:
            raise BootstrapTooYoungError(
                f"source {source.name}: the log goes back to scn {source.log_floor_scn}, and "
                f"the consumer is at scn {checkpoint.window_scn}; begin again with /startSCN"
            )
    check_not_ahead("target", checkpoint.bootstrap_target_scn, choice.store.position().scn)
    scn, offset = checkpoint.window_scn, checkpoint.window_offset
    place = place_of(choice.store, choice.src_ids, scn, offset)
    if place is None:
        raise BootstrapTooYoungError(
            f"window {scn} has no {offset} events of these sources; begin again with /startSCN"
        )
    return place


def check_reloads(now: RowsNow, choice: SourceLookup, checkpoint: Checkpoint) -> None:
    """Raise BootstrapTooYoungError when rows of the snapshot had to be read again since then.

    The log does not have those rows.
    """
    for source in choice.sources:
        scn = now.reload_scn(source.src_id)
        if scn > checkpoint.bootstrap_start_scn:
            raise BootstrapTooYoungError(
                f"source {source.name} was altered at scn {scn} in a way that only the database "
                "can tell, and its rows were read again; begin again with /startSCN"
            )


def check_same_log(
    choice: SourceLookup, mark: tuple[int, int] | None, log_window: LogWindow | None, scn: int
) -> None:
    """Raise OtherLogError when a window that a consumer or its relay had is not in the log.

    `mark` has rows of the chosen sources, `log_window` of the one that it names. Checked only when
    the log of those sources reaches back to that window, and up to `scn`.
    """
    if mark is not None:
        _check_window(choice.store, choice.sources, mark, scn)
    if log_window is not None:
        of_it = [source for source in choice.store.sources() if source.name == log_window[2]]
        if of_it and of_it[0].status is SourceStatus.ACTIVE:
            _check_window(choice.store, of_it, log_window[:2], scn)


def _check_window(
    store: Store, sources: Sequence[SourceState], window: tuple[int, int], scn: int
) -> None:
    if window[0] > scn or any(window[0] <= source.log_floor_scn for source in sources):
        return
    held = store.window_at([source.src_id for source in sources], window[0])
    if held != window:
        raise OtherLogError.of(", ".join(source.name for source in sources), window, held)


def check_served(source: SourceState) -> None:
    """Raise BootstrapTooOldError unless the source is active."""
    if source.status is SourceStatus.ACTIVE:
        return
    problem = f": {source.problem}" if source.problem else ""
    raise BootstrapTooOldError(
        f"source {source.name} is {explain_status(source)}{problem}; ask again later"
    )


def explain_status(source: SourceState) -> str:
    """Return a source's status in words, with the progress of its seeding."""
    status = source.status.value.replace("_", " ")
    if source.status is SourceStatus.SEEDING:
        done = seeded_percent(source)
        return f"{status}, {source.seed_rows} rows" + ("" if done is None else f" ({done} %)")
    if source.status is SourceStatus.SEEDING_CATCH_UP:
        return f"{status}, until scn {source.seed_until_scn}"
    return status


def seeded_percent(source: SourceState) -> int | None:
    """Return the seeded percentage of the table, below 100 during seeding; None if unknown."""
    if source.seed_estimate <= 0:
        return None
    return min(99, 100 * source.seed_rows // source.seed_estimate)


def check_start_scn(source: SourceState, since_scn: int, start_scn: int) -> None:
    """Raise BootstrapTooYoungError when the store cannot give a snapshot at the start SCN."""
    floor_scn = max(source.floor_scn, source.log_floor_scn)
    if start_scn < floor_scn:
        raise BootstrapTooYoungError(
            f"source {source.name}: start scn {start_scn} is older than scn {floor_scn}, where "
            "what is kept of it begins; begin again with /startSCN"
        )
    # A consumer without rows (0) needs no deletes.
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


def check_not_ahead(what: str, scn: int, position_scn: int) -> None:
    """Raise BootstrapTooOldError when the producer has not reached an SCN."""
    if scn > position_scn:
        raise BootstrapTooOldError(
            f"{what} scn {scn} is newer than scn {position_scn}, where the producer is; "
            "ask again later"
        )
