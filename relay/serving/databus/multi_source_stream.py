"""Several physical sources in one response: `checkPointMult`.

SCNs of different physical sources cannot be compared, so their windows are not
merged: each source's windows stand together, one source after the other. A
source with a half-read window comes first, for its window must go on where it
was cut; then they come by the timestamp of their next window, the oldest
first, so that over many requests all are equally far behind and none is
starved. Only the first may have a window cut, and then nothing follows it.
Where to go on is told for each physical source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from databus.relay.ring.event_selector import Position
from databus.relay.serving.databus.stream import StreamJob, StreamResponse


@dataclass(frozen=True, slots=True)
class TogetherResponse:
    """What to answer; `resume` has each physical source that has a position."""

    body: bytes
    resume: Mapping[str, Position]
    pending_event_bytes: int | None = None
    is_ahead: bool = False
    is_caught_up: bool = False


class TogetherJob:
    """One request's way through several rings; the counterpart of `StreamJob`."""

    def __init__(self, jobs: Sequence[StreamJob], size_bytes: int) -> None:
        self._jobs = jobs
        self._size_bytes = size_bytes
        self._steps: Iterator[TogetherResponse | None] = iter(())

    def start(self) -> None:
        """Begin a look at the rings; raises ScnNotFoundError."""
        for job in self._jobs:
            job.start()
        self._steps = self._run()

    def step(self) -> TogetherResponse | None:
        """Look further; None when there is more to look at. Raises ScnNotFoundError."""
        return next(self._steps)

    def _run(self) -> Iterator[TogetherResponse | None]:
        answered: dict[str, StreamResponse] = {}
        left = self._size_bytes
        is_cut = False
        for job in sorted(self._jobs, key=_turn):
            response = StreamResponse(b"", job.begin)
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


def _together(answered: Mapping[str, StreamResponse]) -> TogetherResponse:
    responses = answered.values()
    pending = [r.pending_event_bytes for r in responses if r.pending_event_bytes is not None]
    body = b"".join(r.body for r in responses)
    return TogetherResponse(
        body,
        {name: r.resume for name, r in answered.items() if r.resume is not None},
        # Not worth telling with a body: the next request will find out.
        None if body or not pending else max(pending),
        any(r.is_ahead for r in responses),
        all(r.is_caught_up for r in responses),
    )
