"""Parses the query strings of the bootstrap server's commands.

A parsed request is valid in itself: every error is reported here, with the parameter's
name and the rule. Whether the store can answer it is checked elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from databus.conf.settings import HttpSettings
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode, LogWindow
from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import EventFilter, parse_filters
from databus.schemas.parameters import Parameters, parse_bool, parse_form, parse_json, parse_number
from databus.schemas.protocol import Parameter
from databus.schemas.rendering import AnswerForm
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.packs import TAKES


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A valid request for a start SCN. `sources` are names or ids as text."""

    sources: tuple[str, ...]
    since_scn: int
    mark: tuple[int, int] | None = None  # (SCN, timestamp) of a window that the consumer has
    log_window: LogWindow | None = None  # and one that its relay had


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The rows of a snapshot or of a catch-up that a request asks for.

    `sources` are ids or names as text. `every_filter` applies to every source that is
    not in `filters` (by src_id). Truncates are left out unless `wants_truncates`. Only rows
    with ids in (`after_row`, `until_row`] are read; in a snapshot only those after the
    checkpoint's row as well.
    """

    sources: tuple[str, ...]
    checkpoint: Checkpoint
    filters: Mapping[int, EventFilter]
    every_filter: EventFilter | None = None
    wants_truncates: bool = True
    after_row: int = 0
    until_row: int = MAX_SCN

    def filter_of(self, src_id: int) -> EventFilter | None:
        """Return the filter of a source, or None when all its rows are requested."""
        return self.filters.get(src_id, self.every_filter)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest(Reading):
    """A valid request for a page of a snapshot or of a catch-up.

    With `takes_packs` rows of a snapshot may be in packs, before the events.
    """

    form: AnswerForm
    takes_packs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest(Reading):
    """A valid request to measure how far a number of rows and bytes reaches."""

    most_rows: int
    most_bytes: int


def parse_start_request(parameters: Parameters) -> StartRequest:
    """Return the request; raises InvalidParameterError, CheckpointError."""
    sources = parse_sources(parameters, Parameter.SOURCES)
    text, checkpoint = _parse_checkpoint(parameters)
    if checkpoint.mode is not ConsumptionMode.SNAPSHOT:
        raise InvalidParameterError(
            Parameter.CHECKPOINT,
            text,
            f"a start SCN is asked for in mode {ConsumptionMode.SNAPSHOT}",
        )
    # A consumer whose checkpoint has no SCN has nothing yet.
    since_scn = max(checkpoint.bootstrap_since_scn, 0)
    return StartRequest(sources, since_scn, checkpoint.mark, checkpoint.log_window)


def parse_page_request(parameters: Parameters, limits: HttpSettings) -> PageRequest:
    """Return the request; raises InvalidParameterError, CheckpointError."""
    return PageRequest(
        **_parse_reading(parameters, limits),
        form=parse_form(parameters, Parameter.BATCH_SIZE, limits.max_response_bytes),
        # Packs of another version would be no use to the sender; events are to everyone.
        takes_packs=parameters.get(Parameter.PACKS) == TAKES,
    )


def parse_measure_request(parameters: Parameters, limits: HttpSettings) -> MeasureRequest:
    """Return the request; raises InvalidParameterError, CheckpointError."""
    return MeasureRequest(
        **_parse_reading(parameters, limits),
        most_rows=min(parse_number(parameters, Parameter.ROWS, MAX_SCN, least=1), MAX_SCN),
        most_bytes=min(parse_number(parameters, Parameter.BYTES, MAX_SCN, least=1), MAX_SCN),
    )


def _parse_reading(parameters: Parameters, limits: HttpSettings) -> dict[str, Any]:
    text, checkpoint = _parse_checkpoint(parameters)
    checkpoint = _from_stock(checkpoint)
    sources = _parse_page_sources(parameters, checkpoint)
    _check_page(text, checkpoint)
    filters, every_filter = _parse_filter(parameters, limits)
    return {
        "sources": sources,
        "checkpoint": checkpoint,
        "filters": filters,
        "every_filter": every_filter,
        "wants_truncates": parse_bool(parameters, Parameter.TRUNCATE),
        **_parse_rows(parameters, sources, checkpoint),
    }


def _parse_page_sources(parameters: Parameters, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the sources whose rows a page has.

    LinkedIn's servers read the checkpoint alone. Its client names all sources with each
    page, or none with protocols 3 and 4, and sends the filter of the checkpoint's source.
    """
    is_snapshot = checkpoint.mode is ConsumptionMode.SNAPSHOT
    source = checkpoint.snapshot_source if is_snapshot else checkpoint.catchup_source
    is_named = bool(parameters.get(Parameter.SOURCES, "").strip())
    if checkpoint.is_stock_catch_up or (source and not is_named):
        return (source,)
    return parse_sources(parameters, Parameter.SOURCES)


def _from_stock(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint; LinkedIn's client begins a catch-up at offset 0 of the start SCN.

    The snapshot has that window already, and the log need not reach back to it.
    """
    is_begin = (checkpoint.window_scn, checkpoint.window_offset) == (
        checkpoint.bootstrap_start_scn,
        0,
    )
    if checkpoint.is_stock_catch_up and is_begin:
        return replace(checkpoint, window_offset=-1)
    return checkpoint


def _parse_rows(
    parameters: Parameters, sources: Sequence[str], checkpoint: Checkpoint
) -> dict[str, int]:
    """Return the range of row ids to read, (after, until]."""
    after_row = _parse_row(parameters, Parameter.AFTER_ROW, 0)
    until_row = _parse_row(parameters, Parameter.UNTIL_ROW, MAX_SCN)
    if checkpoint.mode is ConsumptionMode.SNAPSHOT:
        least, where = checkpoint.snapshot_offset, "the checkpoint's snapshot_offset"
        if after_row:
            raise InvalidParameterError(
                Parameter.AFTER_ROW, str(after_row), f"a snapshot goes on after {where} {least}"
            )
    else:
        least, where = after_row, Parameter.AFTER_ROW
        if len(sources) > 1 and (after_row, until_row) != (0, MAX_SCN):
            raise InvalidParameterError(
                Parameter.SOURCES,
                ",".join(sources),
                "one: afterRow and untilRow are ids of its rows",
            )
    if until_row < least:
        raise InvalidParameterError(
            Parameter.UNTIL_ROW, str(until_row), f"not below {where} {least}"
        )
    return {"after_row": after_row, "until_row": until_row}


def _parse_row(parameters: Parameters, name: str, default: int) -> int:
    row = parse_number(parameters, name, default, least=0)
    if row > MAX_SCN:
        raise InvalidParameterError(name, str(row), f"at most {MAX_SCN}")
    return row


def parse_sources(parameters: Parameters, name: str) -> tuple[str, ...]:
    """Return the named sources without duplicates; raises InvalidParameterError for none."""
    text = parameters.get(name, "")
    sources = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not sources:
        raise InvalidParameterError(name, text, "the sources' ids or names; it is required")
    return sources


def _parse_checkpoint(parameters: Parameters) -> tuple[str, Checkpoint]:
    text = parameters.get(Parameter.CHECKPOINT, "").strip()
    if not text:
        raise InvalidParameterError(
            Parameter.CHECKPOINT, "", "where the consumer is; it is required"
        )
    return text, Checkpoint.from_json(text)


def _check_page(text: str, checkpoint: Checkpoint) -> None:
    """Raise unless the checkpoint is inside a snapshot or a catch-up."""
    if not checkpoint.is_bootstrap:
        raise InvalidParameterError(
            Parameter.CHECKPOINT,
            text,
            f"a page is asked for in mode {ConsumptionMode.SNAPSHOT} or {ConsumptionMode.CATCHUP}",
        )
    if checkpoint.bootstrap_start_scn < 0:
        raise InvalidParameterError(
            Parameter.CHECKPOINT, text, "bootstrap_start_scn is what /startSCN answered"
        )
    if checkpoint.mode is ConsumptionMode.SNAPSHOT:
        _check_snapshot(text, checkpoint)
    else:
        _check_catch_up(text, checkpoint)


def _check_snapshot(text: str, checkpoint: Checkpoint) -> None:
    if not checkpoint.snapshot_source:
        raise InvalidParameterError(
            Parameter.CHECKPOINT, text, "snapshot_source names the source to read"
        )
    # No default is safe: "from the beginning" may send a table twice, "finished"
    # may lose the table of a consumer that forgot the offset.
    if checkpoint.snapshot_offset < 0:
        raise InvalidParameterError(
            Parameter.CHECKPOINT,
            text,
            "snapshot_offset is 0 at a snapshot's begin, and -1 when it is over",
        )
    if checkpoint.bootstrap_since_scn > checkpoint.bootstrap_start_scn:
        raise InvalidParameterError(
            Parameter.CHECKPOINT, text, "bootstrap_since_scn is not above bootstrap_start_scn"
        )


def _check_catch_up(text: str, checkpoint: Checkpoint) -> None:
    if checkpoint.bootstrap_target_scn < 0:
        raise InvalidParameterError(
            Parameter.CHECKPOINT, text, "bootstrap_target_scn is what /targetSCN answered"
        )
    if not 0 <= checkpoint.window_scn <= checkpoint.bootstrap_target_scn:
        raise InvalidParameterError(
            Parameter.CHECKPOINT, text, "windowScn is between the start and bootstrap_target_scn"
        )


def _parse_filter(
    parameters: Parameters, limits: HttpSettings
) -> tuple[Mapping[int, EventFilter], EventFilter | None]:
    """Return the filters by source, and the filter for all other sources.

    The JSON is the relay's `filters`, or only one source's part of it: that is what the
    original Databus client sends, which requests one source at a time.
    """
    text = parameters.get(Parameter.FILTER, "").strip()
    if not text:
        return {}, None
    max_chars = limits.max_filter_bytes
    value = parse_json(Parameter.FILTER, text) if len(text) <= max_chars else None
    if isinstance(value, dict) and "partitionType" in value:
        return {}, parse_filters(json.dumps({"1": value}), max_chars=2 * max_chars)[1]
    return parse_filters(text, max_chars=max_chars), None
