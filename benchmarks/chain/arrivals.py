"""When each window can be read at a relay: one held request after the other, on a thread."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from databus.schemas.checkpoint import Checkpoint
from tests.promises.running import RunningRelay, cut_windows

WAIT_MS = 500
_RETRY_S = 0.05


class Arrivals:
    """A context manager; `at_s` has the time of each window with rows, by SCN."""

    def __init__(self, relay: RunningRelay, scn: int) -> None:
        self.at_s: dict[int, float] = {}
        self._relay, self._scn = relay, scn
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                self._read()
                continue
            self._ended.wait(_RETRY_S)  # it was killed

    def _read(self) -> None:
        answer = self._relay.stream(Checkpoint.at(self._scn), wait=WAIT_MS)
        now_s = time.monotonic()
        self.at_s |= dict.fromkeys(cut_windows(answer.body), now_s)
        if answer.body:
            self._scn = int(answer.headers["x-databus-resume"].split(",")[0])
