"""Measures how far a number of rows of a snapshot or of the log reaches after a checkpoint.

Spark plans with it how several readers share a read. The checks are those of a page at
the same checkpoint, and everything is read in one transaction, as there.
"""

from __future__ import annotations

from databus.bootstrap.server.checks import check_same_log, find_snapshot
from databus.bootstrap.server.pages import at_one_moment, remaining_log, remaining_snapshot
from databus.bootstrap.server.parameters import MeasureRequest
from databus.bootstrap.server.source_lookup import Listed, SourceLookup, Stores
from databus.schemas.checkpoint import ConsumptionMode


def measure(request: MeasureRequest, stores: Stores, listed: Listed) -> dict[str, int]:
    """Return the answer of `/measure`, for the phase that the checkpoint's mode names.

    Raises BootstrapTooOldError (ask again later), BootstrapTooYoungError,
    UnknownSourceError, InvalidParameterError, OtherLogError.
    """
    is_snapshot = request.checkpoint.mode is ConsumptionMode.SNAPSHOT
    with at_one_moment(request.sources, stores, listed) as choice:
        return _measure_snapshot(choice, request) if is_snapshot else _measure_log(choice, request)


def _measure_snapshot(choice: SourceLookup, request: MeasureRequest) -> dict[str, int]:
    source = find_snapshot(choice, request.checkpoint)
    rows = remaining_snapshot(request, source, choice.store.rows_now(choice.src_ids))
    found = choice.store.measure_snapshot(source.name, rows, request.most_rows, request.most_bytes)
    return {
        "snapshotOffset": found.last_id,
        "rows": found.rows,
        "bytes": found.size_bytes,
        "isLast": found.is_last,
        "maxRow": choice.store.max_row(source.name),
    }


def _measure_log(choice: SourceLookup, request: MeasureRequest) -> dict[str, int]:
    checkpoint = request.checkpoint
    check_same_log(choice, checkpoint.mark, checkpoint.log_window, checkpoint.window_scn)
    log_range = remaining_log(request, choice, choice.store.rows_now(choice.src_ids))
    found = choice.store.measure_log(log_range, request.most_rows, request.most_bytes)
    position = choice.store.position()
    is_newest = found.scn == position.scn
    return {
        "fromScn": checkpoint.window_scn,
        "scn": found.scn,
        "rows": found.rows,
        "bytes": found.size_bytes,
        "timestampNs": position.timestamp_ns if is_newest else found.timestamp_ns,
        "maxScn": position.scn,
        "maxTimestampNs": position.timestamp_ns,
    }
