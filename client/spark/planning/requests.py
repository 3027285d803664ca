"""Request parameters of planner and tasks, and the answers to `/measure`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from databus.client.machines.bootstrap_steps import STORE_ID_KEY
from databus.client.spark.planning.offsets import NO_PROOF, Proof, read_proof
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import ServerError
from databus.schemas.filters import EventFilter, filters_to_json
from databus.schemas.protocol import Parameter
from databus.schemas.scn import MAX_SCN

Parameters = dict[str, str]
ALL_ROWS = 1 << 40


class LogMeasure(NamedTuple):
    """Measured rows in windows after `from_scn` up to `scn`.

    `from_scn` is -1 if the ring has evicted nothing yet, `scn` if it is empty. `proof`: that of
    the log up to `scn`.
    """

    from_scn: int
    scn: int
    rows: int
    size_bytes: int
    time_ms: int
    max_scn: int
    max_time_ms: int
    proof: Proof = NO_PROOF


class SnapshotMeasure(NamedTuple):
    """Measured rows of a snapshot up to row `row`; `max_row` is the last row of all."""

    row: int
    rows: int
    is_last: bool
    max_row: int


def online_at(scn: int, offset: int = -1) -> Checkpoint:
    """Return the checkpoint after window `scn`, or after its first `offset` events."""
    return replace(Checkpoint.at(scn), window_offset=offset)


def proved(checkpoint: Checkpoint, proof: Proof) -> Checkpoint:
    """Return a checkpoint with the windows by which its log is recognised."""
    return checkpoint.with_mark(proof.mark).with_log_window(proof.log_window)


def catch_up(scn: int, target_scn: int, store: str = "", proof: Proof = NO_PROOF) -> Checkpoint:
    """Return the checkpoint after window `scn` of a bootstrap server's log.

    `store`: the store that row ids in the request belong to, if it has any.
    """
    checkpoint = Checkpoint(
        ConsumptionMode.CATCHUP,
        window_scn=scn,
        # From here on the server checks row ids, and ALTERs after which rows were read again.
        bootstrap_start_scn=scn,
        bootstrap_target_scn=target_scn,
        extra=_of_store(store),
    )
    return proved(checkpoint, proof)


def snapshot(source: str, row: int, at_scn: int, since_scn: int, store: str) -> Checkpoint:
    """Return the checkpoint after row `row` of a source's snapshot."""
    return Checkpoint(
        ConsumptionMode.SNAPSHOT,
        snapshot_source=source,
        snapshot_offset=row,
        bootstrap_start_scn=at_scn,
        bootstrap_since_scn=since_scn,
        extra=_of_store(store),
    )


def _of_store(store: str) -> dict[str, str]:
    return {STORE_ID_KEY: store} if store else {}


def beginning_after(since_scn: int, proof: Proof = NO_PROOF) -> Checkpoint:
    """Return the checkpoint with which to ask for a start SCN."""
    return proved(Checkpoint(ConsumptionMode.SNAPSHOT, bootstrap_since_scn=since_scn), proof)


def filters_text(
    filters: Mapping[str, EventFilter | None], src_ids: Mapping[str, int]
) -> str | None:
    """Return the text of a `filters` parameter; None without filters."""
    by_id = {src_ids[name]: one for name, one in filters.items() if one is not None}
    return filters_to_json(by_id) if by_id else None


def measure_parameters(
    sources: Sequence[str], checkpoint: Checkpoint, rows: int | None, max_bytes: int
) -> Parameters:
    """Return the parameters of `/measure`; without `rows` everything is counted."""
    # A range that is planned already is counted whole, whatever its size.
    is_all = rows is None
    return {
        Parameter.SOURCES: ",".join(sources),
        Parameter.CHECKPOINT: checkpoint.to_json(),
        Parameter.TRUNCATE: "true",
        Parameter.ROWS: str(ALL_ROWS if is_all else rows),
        Parameter.BYTES: str(MAX_SCN if is_all else max_bytes),
    }


def log_measure(server: str, value: Any) -> LogMeasure:
    """Return the answer to `/measure` of windows, from a relay or bootstrap server."""
    try:
        return LogMeasure(
            int(value["fromScn"]),
            int(value["scn"]),
            int(value["rows"]),
            int(value["bytes"]),
            int(value["timestampNs"]) // 1_000_000,
            int(value["maxScn"]),
            int(value["maxTimestampNs"]) // 1_000_000,
            read_proof(value.get("mark"), value.get("logWindow")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _senseless(server, value, error) from error


def snapshot_measure(server: str, value: Any) -> SnapshotMeasure:
    """Return the answer to `/measure` of a snapshot, from a bootstrap server."""
    try:
        return SnapshotMeasure(
            int(value["snapshotOffset"]),
            int(value["rows"]),
            bool(value["isLast"]),
            int(value["maxRow"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _senseless(server, value, error) from error


def _senseless(server: str, value: Any, error: Exception) -> ServerError:
    text = json.dumps(value)[:200]
    return ServerError(server, f"the answer to /measure is malformed: {text}: {error!r}")
