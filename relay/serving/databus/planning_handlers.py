"""The commands for those who plan a read: how far rows reach, and what is archived."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

from databus.relay.catch_up.reader import CatchUpReader
from databus.relay.log.archive.manifest import Manifest
from databus.relay.physical_source import PhysicalSource
from databus.relay.ring.event_selector import Position
from databus.relay.serving.databus.measure import Measured, MeasureJob
from databus.relay.serving.databus.parameters import (
    MeasureRequest,
    parse_measure_request,
    parse_source_list,
)
from databus.relay.serving.databus.read_limits import check_ids, limited
from databus.relay.serving.databus.relay_handler import RelayHandler
from databus.relay.serving.reading.marks import log_window_up_to, names_to_tell, own_mark_up_to
from databus.schemas.errors import (
    DamagedWindowsError,
    InvalidParameterError,
    RelayLogError,
    ScnNotFoundError,
)
from databus.schemas.parameters import parse_number
from databus.schemas.protocol import Header, Parameter
from databus.schemas.scn import MAX_SCN

MOST_WAIT_S = 10.0
_LOOK_EVERY_S = 0.5


class MeasureHandler(RelayHandler):
    """`/measure`: how far a number of rows reaches, for read planning."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with the window at which they end, and the number of rows."""
        asked = parse_measure_request(self.event_parameters(), self.relay.catalog, self.limits)
        selection = limited(asked.selection, self.read_limit(), self.relay.catalog)
        request = replace(asked, selection=selection)
        source = self.relay.physical_source(request.selection.physical_source)
        try:
            try:
                measured = await self._measure(source, request)
            except DamagedWindowsError as error:
                source.note_damage(error, request.selection)
                measured = await self._measure(source, request)  # another rung may have it
        except ScnNotFoundError:
            self.relay.traffic.not_found()
            raise
        if measured.is_ahead:
            self.set_header(Header.AHEAD, "true")
        answer: dict[str, Any] = _measured_json(measured)
        # An idle query asks often, and has one already.
        if request.wants_mark and measured.scn > measured.from_scn:
            reader, scn, names = source.reader, measured.scn, names_to_tell(self.relay, selection)
            answer["mark"] = own_mark_up_to(reader, scn, selection.src_ids)
            are_all = selection.readable is None
            answer["logWindow"] = log_window_up_to(reader, scn, names, are_all=are_all)
        await self.send_json(answer)

    async def _measure(self, source: PhysicalSource, request: MeasureRequest) -> Measured:
        selection, reader = request.selection, source.reader_for(request.selection)
        spans = source.spans_of(reader)
        span = spans.of(selection.src_ids)
        checkpoint = selection.checkpoint
        place = checkpoint.window_scn, checkpoint.window_offset
        if isinstance(reader, CatchUpReader):
            await self._until_read(reader, span.place(place))
        elif not selection.from_latest:
            asked = None if checkpoint.is_flexible else place
            span = span.seen_from(asked, reader.prev_scn)
        job = MeasureJob(reader, request, spans, span, self.relay.registry.text_of)
        return await self.in_time(self.in_steps(job.step))

    async def _until_read(self, reader: CatchUpReader, place: Position) -> None:
        """Wait until a catch-up has something after a place; raise RelayLogError if it takes long.

        Otherwise the answer would be that there is nothing.
        """
        end_s = time.monotonic() + MOST_WAIT_S
        while not reader.has_after(*place):
            with reader.notifier.subscribe() as news, contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news, max(0.0, min(_LOOK_EVERY_S, end_s - time.monotonic())))
            if time.monotonic() >= end_s:
                raise RelayLogError(
                    f"what comes after scn {place[0]} is still being read again from "
                    "the source's log; ask again"
                )


class SegmentsHandler(RelayHandler):
    """`/segments`: the archived segments of a relay log that have the windows of a range.

    They have all sources. Who may not read all of them is told of none, and asks for the windows.
    """

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with the segments, oldest first; none if nothing of the range is archived."""
        parameters = self.parameters()
        ids, limit = parse_source_list(parameters, self.relay.catalog), self.read_limit()
        check_ids(limit, ids, self.relay.catalog)
        names = {self.relay.catalog.physical_source_of(src_id) for src_id in ids}
        if len(names) != 1:
            text = parameters.get(Parameter.SOURCES, "")
            rule = f"sources of one physical source, not of {', '.join(sorted(names))}"
            raise InvalidParameterError(Parameter.SOURCES, text, rule)
        from_scn = parse_number(parameters, Parameter.FROM, 0, 0)
        to_scn = parse_number(parameters, Parameter.TO, MAX_SCN, 0)
        (name,) = names
        source = self.relay.physical_source(name)
        source.check_served()
        recorder = source.recorder
        found = () if recorder is None or limit else recorder.archived_between(from_scn, to_scn)
        segments = [_segment_json(one) for one in found]
        await self.send_json({"physicalSource": name, "segments": segments})


def _segment_json(one: Manifest) -> dict[str, Any]:
    return {
        "path": one.segment_path,
        "prevScn": one.header.prev_scn,
        "firstScn": one.header.first_scn,
        "lastScn": one.end.scn,
        "bytes": one.size_bytes,
        "sha256": one.sha256,
        "manifest": one.to_json(),
    }


def _measured_json(measured: Measured) -> dict[str, int]:
    return {
        "fromScn": measured.from_scn,
        "scn": measured.scn,
        "rows": measured.rows,
        "bytes": measured.size_bytes,
        "timestampNs": measured.timestamp_ns,
        "maxScn": measured.max_scn,
        "maxTimestampNs": measured.max_timestamp_ns,
    }
