"""Windows of one physical source from a place on, for a session that the relay itself goes on with.

The front doors of other protocols read with it: their clients do not name a place in each request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from databus.daemon.fair_queue import FairQueue
from databus.relay.monitoring.clients import Caller
from databus.relay.relay import Relay
from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.reading import Reading, in_steps, start_job
from databus.relay.serving.reading.request_tracker import RequestTracker
from databus.relay.serving.reading.stream import StreamJob, StreamResponse
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode


class Feed:
    """Reads on from a selection's checkpoint, down the ladder where that must be. On the loop.

    One reader at a time.
    """

    def __init__(
        self, relay: Relay, queue: FairQueue, caller: Caller, selection: Selection, filters: str
    ) -> None:
        """`caller` and `filters` are what the relay's page shows of it."""
        self.selection = selection
        self.is_ahead = False
        """Whether the place that was read last is behind the newest window."""
        self._relay, self._queue, self._caller, self._filters = relay, queue, caller, filters
        self._reading = Reading(relay)

    def disconnect(self) -> None:
        """End a wait for windows: nobody wants them any more."""
        self._reading.disconnect()

    async def read(self, size_bytes: int, wait_s: float) -> StreamResponse:
        """Return the next events, of whole windows or of a part of a large one, and go on there.

        It is empty when none come in so many seconds. A window larger than `size_bytes` comes in
        parts, and an event larger than that alone. Raises ScnNotFoundError, TableStoppedError and
        any other error of a rung.
        """
        with RequestTracker(self._relay, self._caller) as tracker:
            tracker.asks(self._filters)
            while True:
                response = await self._reading.read(
                    partial(self._jobs, size_bytes),
                    lambda jobs: self._read(jobs, tracker),
                    wait_s,
                )
                if response.pending_event_bytes is None:
                    break
                size_bytes = response.pending_event_bytes
            tracker.serves(len(response.body))
        self.is_ahead = response.is_ahead
        # Before rows of its place are there, nothing has proved that the log is the checkpoint's.
        if response.resume is not None and not response.is_ahead:
            checkpoint = checkpoint_at(response.resume)
            if not response.body:
                # It may wait for the log of its place to be read, which is not compared yet.
                before = self.selection.checkpoint
                checkpoint = checkpoint.with_mark(before.mark).with_log_window(before.log_window)
            self.selection = replace(self.selection, checkpoint=checkpoint, from_latest=False)
        return response

    def _jobs(self, size_bytes: int) -> list[StreamJob]:
        source = self._relay.physical_source(self.selection.physical_source)
        reader = source.reader_for(self.selection)
        spans, schema_text = source.spans_of(reader), self._relay.registry.text_of
        return [StreamJob(reader, self.selection, size_bytes, None, spans, schema_text=schema_text)]

    async def _read(self, jobs: Sequence[StreamJob], tracker: RequestTracker) -> StreamResponse:
        (job,) = jobs
        await start_job(self._queue, tracker, jobs, job.start)
        return await in_steps(self._queue, job.step)


def checkpoint_at(place: Position) -> Checkpoint:
    """Return the checkpoint of one that has read up to a place: (SCN, events of its window)."""
    scn, offset = place
    if offset == WINDOW_DONE:
        return Checkpoint.at(scn) if scn >= 0 else Checkpoint.flexible()
    return Checkpoint(ConsumptionMode.ONLINE, scn, offset)
