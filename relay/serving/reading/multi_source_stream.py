"""Several physical sources in one response: `checkPointMult`.

SCNs of different physical sources cannot be compared, so their windows are not merged: the
windows of each source follow one another, one source after the other. A source with a
half-read window comes first, because that window must continue where it was cut. The others
are sorted by the timestamp of their next window, the oldest first, so that over many
requests all have the same lag and none starves. Only the first source may have a window cut,
and then nothing follows it. The position to continue from is sent per physical source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from databus.relay.log.archive.away import Steps
from databus.relay.ring.event_selector import Position
from databus.relay.serving.reading.stream import StreamJob, StreamResponse


@dataclass(frozen=True, slots=True)
class MultiSourceResponse:
    """The response; `resume` has the physical sources with a position."""

    body: bytes
    resume: Mapping[str, Position]
    pending_event_bytes: int | None = None
    is_ahead: bool = False
    is_caught_up: bool = False


class MultiSourceJob:
    """Reads several rings for one request, as `StreamJob` reads one."""

    def __init__(self, jobs: Sequence[StreamJob], size_bytes: int) -> None:
        self._jobs = jobs
        self._size_bytes = size_bytes
        self._steps = Steps(self._run)

    def start(self) -> None:
        """Start reading the rings; raise ScnNotFoundError."""
        for job in self._jobs:
            job.start()
        self._steps = Steps(self._run)

    def step(self) -> MultiSourceResponse | None:
        """Read on; return None while there is more to read. Raises ScnNotFoundError."""
        return self._steps.step()

    def _run(self) -> Iterator[MultiSourceResponse | None]:
        answered: dict[str, StreamResponse] = {}
        left = self._size_bytes
        is_cut = False
        for job in sorted(self._jobs, key=_turn):
            response = StreamResponse(b"", job.told_begin)
            if left > 0 and not is_cut:
                job.start(left)
                while (found := job.step()) is None:
                    yield None
                if left == self._size_bytes or not found.is_cut:
                    response = found
            answered[job.selection.physical_source] = response
            left -= len(response.body)
            is_cut = is_cut or response.is_cut
        yield _together(answered)


def _turn(job: StreamJob) -> tuple[bool, float]:
    event = job.next_event()
    return not job.is_inside_window, float("inf") if event is None else event.timestamp_ns


def _together(answered: Mapping[str, StreamResponse]) -> MultiSourceResponse:
    responses = answered.values()
    pending = [r.pending_event_bytes for r in responses if r.pending_event_bytes is not None]
    body = b"".join(r.body for r in responses)
    return MultiSourceResponse(
        body,
        {name: r.resume for name, r in answered.items() if r.resume is not None},
        # Not sent with a body: the next request will get it.
        None if body or not pending else max(pending),
        any(r.is_ahead for r in responses),
        all(r.is_caught_up for r in responses),
    )
