"""What an admin may do to the capture of a physical source: pause, resume, drain, restart.

Pausing takes effect at a window's end, as readers see no half window anyway. A
drain is a pause that says when everybody who reads has what there is. A
restart gives the ring up: what clients between it and their place ask for is
answered ScnNotFound, so they bootstrap; nobody gets a gap unawares.

The functions block for up to some seconds: not for the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.capture import Capture
from databus.relay.capture.status import State
from databus.relay.physical_source import PhysicalSource
from databus.relay.sources.source import Source
from databus.schemas.errors import ControlRefusedError, RingError, SourceError

STOP_S = 10.0  # a read of a source may take about a second, a connection more
SHUTDOWN_S = 5.0
REST_S = 2.0  # a read that runs ends within one
_POLL_S = 0.005


class Control:
    """Acts on the physical sources of one relay. Any thread may call.

    `open_source` gives another reader of a source's database; `forget_ring` is told the
    name of a physical source whose ring was emptied.
    """

    def __init__(
        self,
        open_source: Callable[[PhysicalSourceSettings], Source],
        forget_ring: Callable[[str], None],
    ) -> None:
        self._open_source = open_source
        self._forget_ring = forget_ring
        self._draining: set[str] = set()
        self._locks: dict[str, Lock] = {}

    def is_draining(self, name: str) -> bool:
        """Say whether a physical source rests until its clients have read what there is."""
        return name in self._draining

    def pause(self, source: PhysicalSource) -> None:
        """Let capture rest; a drain that was under way is given up."""
        self._draining.discard(source.name)
        source.capture.pause(REST_S)

    def drain(self, source: PhysicalSource) -> None:
        """Let capture rest until `resume`, and say who has yet to read what there is."""
        source.capture.pause(REST_S)
        self._draining.add(source.name)

    def resume(self, source: PhysicalSource) -> None:
        """Go on capturing: after a pause, a drain or an error."""
        self._draining.discard(source.name)
        source.capture.start()
        _wait_for(source.capture, State.RUNNING)

    def stop(self, source: PhysicalSource) -> None:
        """End capture until `resume`."""
        source.capture.stop(SHUTDOWN_S)

    def restart(self, source: PhysicalSource, scn: int) -> None:
        """Capture from `scn` on, into a ring that begins after it.

        Raises ControlRefusedError when the source does not have what comes
        after it, or cannot be asked: then everything is as it was.
        """
        lock = self._locks.setdefault(source.name, Lock())
        if not lock.acquire(blocking=False):
            raise ControlRefusedError(f"{source.name}: a restart is under way; wait for its end")
        try:
            self._restart(source, scn)
        finally:
            lock.release()

    def _restart(self, source: PhysicalSource, scn: int) -> None:
        capture = source.capture
        before = capture.status.state
        if not capture.stop(STOP_S):
            _put_back(capture, before)
            raise ControlRefusedError(
                f"{source.name}: capture did not stop within {STOP_S:.0f} s, as its source does "
                "not answer; nothing was changed, try again"
            )
        try:
            self._check(source, scn)
            source.ring.restart_after(scn)
            # Killed before this: capture begins after the older of the two, and drops
            # what comes before the ring does.
            source.max_scn.save(scn, 0)
            self._forget_ring(source.name)
        except BaseException:
            _put_back(capture, before)
            raise
        self._draining.discard(source.name)
        capture.start()
        _wait_for(capture, State.RUNNING)

    def _check(self, source: PhysicalSource, scn: int) -> None:
        """Ask the source for what comes after an SCN; raises ControlRefusedError."""
        try:
            asked = self._open_source(source.settings)
            try:
                asked.open(scn, None)
                asked.read()  # of some, only this says that there is no such place
            finally:
                asked.close()
        except (SourceError, RingError) as error:
            raise ControlRefusedError(
                f"{source.name} cannot begin after scn {scn}, and goes on as it was: {error}"
            ) from error


def _put_back(capture: Capture, before: State) -> None:
    """Have capture do again what it did before it was stopped."""
    if before is State.STOPPED:
        return
    capture.start()
    if before is State.PAUSED:
        capture.pause()
    _wait_for(capture, State.PAUSED if before is State.PAUSED else State.RUNNING)


def _wait_for(capture: Capture, state: State) -> None:
    """Wait a while for a state, or for an error: what is answered then says what it is."""
    end = time.monotonic() + REST_S
    while time.monotonic() < end:
        if capture.wait_for(state, _POLL_S) or capture.status.state is State.ERROR:
            return
