"""The parameters of the requests that planner and tasks make. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from databus.client.machines.bootstrap_steps import STORE_ID_KEY
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import ServerError
from databus.schemas.filters import EventFilter, filters_to_json

Parameters = dict[str, str]


class LogMeasure(NamedTuple):
    """How far so many rows reach: windows after `from_scn` up to `scn`.

    -1 is what a ring says that has evicted nothing, or held nothing, yet.
    """

    from_scn: int
    scn: int
    rows: int
    size_bytes: int
    time_ms: int
    max_scn: int
    max_time_ms: int


class SnapshotMeasure(NamedTuple):
    """How far so many rows of a snapshot reach: up to row `row`; `max_row` is the last there is."""

    row: int
    rows: int
    is_last: bool
    max_row: int


def online_at(scn: int, offset: int = -1) -> Checkpoint:
    """Return the checkpoint after window `scn`, or after so many events of it."""
    return replace(Checkpoint.at(scn), window_offset=offset)


def catch_up(scn: int, target_scn: int, store: str = "") -> Checkpoint:
    """Return the checkpoint after window `scn` of a bootstrap server's log.

    `store` is whose row ids are asked about, if any are.
    """
    return Checkpoint(
        ConsumptionMode.CATCHUP,
        window_scn=scn,
        bootstrap_start_scn=scn,
        bootstrap_target_scn=target_scn,
        extra=_of_store(store),
    )


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


def beginning_after(since_scn: int) -> Checkpoint:
    """Return the checkpoint that asks for a start SCN."""
    return Checkpoint(ConsumptionMode.SNAPSHOT, bootstrap_since_scn=since_scn)


def filters_text(
    filters: Mapping[str, EventFilter | None], src_ids: Mapping[str, int]
) -> str | None:
    """Return the text of a `filters` parameter; None when there are none."""
    by_id = {src_ids[name]: one for name, one in filters.items() if one is not None}
    return filters_to_json(by_id) if by_id else None


def log_measure(server: str, value: Any) -> LogMeasure:
    """Read the answer to a relay's or bootstrap server's `/measure` of windows."""
    try:
        return LogMeasure(
            int(value["fromScn"]),
            int(value["scn"]),
            int(value["rows"]),
            int(value["bytes"]),
            int(value["timestampNs"]) // 1_000_000,
            int(value["maxScn"]),
            int(value["maxTimestampNs"]) // 1_000_000,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _senseless(server, value, error) from error


def snapshot_measure(server: str, value: Any) -> SnapshotMeasure:
    """Read the answer to a bootstrap server's `/measure` of a snapshot."""
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
    return ServerError(server, f"the answer to /measure makes no sense: {text}: {error!r}")
