"""The next step of a bootstrap, derived from the checkpoint alone, so any step can resume. Pure.

Linear order: a start SCN B; the snapshot of every source; one target SCN T; one catch-up of
all sources from B to T. Classic order, which a stock Databus server needs: after the
snapshot of the k-th source a target Tk, then the catch-up of each source so far to Tk, the
k-th from B and the others from Tk-1.

Three keys of the checkpoint's JSON belong to the client, until the bootstrap ends: the
store whose row ids `snapshot_offset` refers to, the order, and in the classic order the SCN
up to which the earlier sources are caught up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from databus.schemas.checkpoint import LINEAR, ORDER_KEY, Checkpoint, ConsumptionMode
from databus.schemas.errors import CheckpointError

STORE_ID_KEY = "bootstrap_store_id"
CAUGHT_UP_KEY = "bootstrap_caught_up_scn"
CLASSIC = "classic"


class Step(Enum):
    """The next request."""

    START_SCN = "start_scn"
    SNAPSHOT = "snapshot"
    TARGET_SCN = "target_scn"
    CATCH_UP = "catch_up"
    ONLINE = "online"  # no request: the bootstrap is over


def begin(checkpoint: Checkpoint, order: str) -> Checkpoint:
    """Return the first checkpoint of a bootstrap, also of a restart after the same SCN."""
    return checkpoint.start_bootstrap().with_extra(**{ORDER_KEY: order})


def check_resumable(checkpoint: Checkpoint, sources: Sequence[str]) -> None:
    """Raise CheckpointError unless a stored checkpoint is of a bootstrap of the sources."""
    order = checkpoint.extra.get(ORDER_KEY)
    if order not in (LINEAR, CLASSIC):
        raise CheckpointError(f"checkpoint: {ORDER_KEY} is {order!r}, not {LINEAR} or {CLASSIC}")
    named = [(checkpoint.snapshot_source, checkpoint.snapshot_source_index)]
    if checkpoint.mode is ConsumptionMode.CATCHUP:
        named.append((checkpoint.catchup_source, checkpoint.catchup_source_index))
        if min(checkpoint.bootstrap_start_scn, checkpoint.bootstrap_target_scn) < 0:
            raise CheckpointError("checkpoint: a catch-up without its start and target SCNs")
    elif not checkpoint.snapshot_source:
        return
    # From the second source on, the earlier ones are caught up to an SCN of their own.
    is_later = order == CLASSIC and checkpoint.snapshot_source_index > 0
    if is_later and not isinstance(checkpoint.extra.get(CAUGHT_UP_KEY), int):
        raise CheckpointError(f"checkpoint: no {CAUGHT_UP_KEY}")
    for source, index in named:
        if not 0 <= index < len(sources) or sources[index] != source:
            raise CheckpointError(
                f"checkpoint: {source!r} is not source {index} of {', '.join(sources)}"
            )


def settle(checkpoint: Checkpoint, sources: Sequence[str]) -> Checkpoint:
    """Return the checkpoint after every step that needs no request."""
    # `_advance` returns the same object when a request is needed.
    while (further := _advance(checkpoint, sources)) is not checkpoint:
        checkpoint = further
    return checkpoint


def step_of(settled: Checkpoint) -> Step:
    """Return the next step for a checkpoint returned by `settle`."""
    if settled.mode is ConsumptionMode.CATCHUP:
        return Step.ONLINE if settled.is_caught_up else Step.CATCH_UP
    if settled.bootstrap_start_scn == -1:
        return Step.START_SCN
    return Step.TARGET_SCN if settled.is_snapshot_done else Step.SNAPSHOT


def has_snapshots_left(checkpoint: Checkpoint, sources: Sequence[str]) -> bool:
    """Whether snapshot rows are still to be read; their ids belong to one store."""
    # Once the last snapshot is complete, row ids no longer matter.
    is_last = checkpoint.snapshot_source_index == len(sources) - 1
    is_done = checkpoint.mode is ConsumptionMode.CATCHUP or checkpoint.is_snapshot_done
    return checkpoint.bootstrap_start_scn != -1 and not (is_last and is_done)


def sources_asked(checkpoint: Checkpoint, sources: Sequence[str]) -> Sequence[str]:
    """Return the sources whose events the next page contains."""
    if checkpoint.mode is ConsumptionMode.SNAPSHOT:
        return (checkpoint.snapshot_source,)
    return sources if _is_linear(checkpoint) else (checkpoint.catchup_source,)


def since_scn(checkpoint: Checkpoint) -> int:
    """Return the SCN after which the next page begins."""
    if checkpoint.mode is ConsumptionMode.CATCHUP:
        return checkpoint.window_scn
    return max(checkpoint.bootstrap_start_scn, checkpoint.bootstrap_since_scn)


def after_page(
    checkpoint: Checkpoint, answered: Checkpoint, is_completed: bool, timestamp_ns: int
) -> Checkpoint:
    """Return the checkpoint after a page; of the server's own one only the position is used.

    Raises CheckpointError if it does not advance.
    """
    if checkpoint.mode is ConsumptionMode.CATCHUP:
        if is_completed:
            return checkpoint.after_log_rows(checkpoint.bootstrap_target_scn, -1, timestamp_ns)
        return checkpoint.after_log_rows(answered.window_scn, answered.window_offset, timestamp_ns)
    if answered.snapshot_source not in ("", checkpoint.snapshot_source):
        raise CheckpointError(
            f"a page of {answered.snapshot_source}, not of {checkpoint.snapshot_source}"
        )
    if is_completed:
        return checkpoint.end_snapshot()
    # -1 without the header does not end the snapshot: a missing key is read as -1 too.
    return checkpoint.after_snapshot_row(answered.snapshot_offset)


def _advance(checkpoint: Checkpoint, sources: Sequence[str]) -> Checkpoint:
    if checkpoint.mode is ConsumptionMode.CATCHUP:
        return _after_catch_up(checkpoint, sources) if checkpoint.is_caught_up else checkpoint
    if checkpoint.bootstrap_start_scn == -1:
        return checkpoint
    if not checkpoint.snapshot_source:
        return checkpoint.start_snapshot(sources[0], 0)
    return _after_snapshot(checkpoint, sources) if checkpoint.is_snapshot_done else checkpoint


def _after_snapshot(checkpoint: Checkpoint, sources: Sequence[str]) -> Checkpoint:
    index = checkpoint.snapshot_source_index
    if _is_linear(checkpoint) and index + 1 < len(sources):
        return checkpoint.start_snapshot(sources[index + 1], index + 1)
    if checkpoint.bootstrap_target_scn == -1:
        return checkpoint
    if _is_linear(checkpoint):
        return checkpoint.start_catch_up(sources[index], index)
    return _start_classic(checkpoint, sources, 0)


def _after_catch_up(checkpoint: Checkpoint, sources: Sequence[str]) -> Checkpoint:
    if _is_linear(checkpoint):
        return checkpoint
    newest = checkpoint.snapshot_source_index
    if checkpoint.catchup_source_index < newest:
        return _start_classic(checkpoint, sources, checkpoint.catchup_source_index + 1)
    if newest + 1 == len(sources):
        return checkpoint
    caught_up = checkpoint.with_extra(**{CAUGHT_UP_KEY: checkpoint.bootstrap_target_scn})
    return caught_up.start_snapshot(sources[newest + 1], newest + 1)


def _start_classic(checkpoint: Checkpoint, sources: Sequence[str], index: int) -> Checkpoint:
    is_newest = index == checkpoint.snapshot_source_index
    caught_up_scn = -1 if is_newest else checkpoint.extra[CAUGHT_UP_KEY]
    return checkpoint.start_catch_up(sources[index], index, caught_up_scn)


def _is_linear(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.extra[ORDER_KEY] == LINEAR)
