"""`python -m benchmarks.shared.traced_relay`: `databus` that records times of windows.

For the breakdown of a latency only. What is wrapped: the two methods that
publish windows in the ring, and the one that makes a response. What they
note is written to `relay.stamps` beside the settings file at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.shared.load import write_numbers
from databus.cli.main import main
from databus.relay.ring.ring import Ring
from databus.relay.serving.reading.stream import StreamJob, StreamResponse
from databus.schemas.windows import MARK, EncodedWindow, WindowBatch


class Trace:
    """The times at which each window was published, and first put into a response.

    One consumer, one source: windows are answered in the order of publication.
    """

    def __init__(self) -> None:
        self.published: list[tuple[int, int]] = []
        self.answered_ns: list[int] = []

    def publish(self, scns: Iterable[int]) -> None:
        """Record windows that readers can see from now on."""
        now = time.time_ns()
        self.published.extend((scn, now) for scn in scns)

    def answer(self, response: StreamResponse | None) -> None:
        """Record the windows that this response is the first to contain."""
        if response is None or not response.body or response.resume is None:
            return
        now, newest = time.time_ns(), response.resume[0]
        while len(self.answered_ns) < len(self.published):
            if self.published[len(self.answered_ns)][0] > newest:
                break
            self.answered_ns.append(now)

    def numbers(self) -> list[int]:
        """Return scn, published, answered of each window that was answered."""
        rows = zip(self.published, self.answered_ns, strict=False)
        return [number for (scn, at), answered in rows for number in (scn, at, answered)]


def wrap(trace: Trace) -> None:
    """Make every ring and every stream job of this process record its times."""
    append: Callable[[Ring, Sequence[EncodedWindow]], None] = Ring.append
    append_batch: Callable[[Ring, WindowBatch], None] = Ring.append_batch
    step: Callable[[StreamJob], StreamResponse | None] = StreamJob.step

    def traced_append(ring: Ring, windows: Sequence[EncodedWindow]) -> None:
        append(ring, windows)
        trace.publish(window.scn for window in windows)

    def traced_append_batch(ring: Ring, batch: WindowBatch) -> None:
        append_batch(ring, batch)
        trace.publish(scn for scn, *_ in MARK.iter_unpack(batch.marks))

    def traced_step(job: StreamJob) -> StreamResponse | None:
        response = step(job)
        trace.answer(response)
        return response

    Ring.append = traced_append  # type: ignore[method-assign,assignment]
    Ring.append_batch = traced_append_batch  # type: ignore[method-assign,assignment]
    StreamJob.step = traced_step  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    found = Trace()
    wrap(found)
    try:
        main(prog_name="databus")
    finally:
        write_numbers(Path(sys.argv[-1]).with_name("relay.stamps"), found.numbers())
