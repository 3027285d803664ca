"""What an admin may do to the capture of a physical source: pause, resume, drain, restart.

Pausing takes effect at a window's end, as readers see no half window anyway. A
drain is a pause that says when everybody who reads has what there is. A
restart gives the ring up: what clients between it and their place ask for is
answered ScnNotFound, so they bootstrap; nobody gets a gap unawares.

The functions block for up to some seconds: not for the loop.
"""

from __future__ import annotations

import time
from threading import Lock

from databus.relay.admin.models import DrainView
from databus.relay.capture.capture import Capture
from databus.relay.capture.status import RESTING, State
from databus.relay.monitoring.clients import ClientTable
from databus.relay.relay import PhysicalSource, Relay
from databus.schemas.errors import ControlRefusedError, RingError, SourceError

STOP_S = 10.0  # a read of a source may take about a second, a connection more
REST_S = 2.0
_POLL_S = 0.005


class Control:
    """Acts on the physical sources of one relay. Any thread may call."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._locks: dict[str, Lock] = {}

    def pause(self, source: PhysicalSource) -> None:
        """Let capture rest; a drain that was under way is given up."""
        self._relay.draining.discard(source.name)
        self._pause(source)

    def drain(self, source: PhysicalSource) -> None:
        """Let capture rest until `resume`, and say who has yet to read what there is."""
        self._pause(source)
        self._relay.draining.add(source.name)

    def resume(self, source: PhysicalSource) -> None:
        """Go on capturing: after a pause, a drain or an error."""
        self._relay.draining.discard(source.name)
        source.capture.unpause()
        _wait_for(source.capture, State.RUNNING)

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
            self._relay.ring_watch.forget(source.name)
        except BaseException:
            _put_back(capture, before)
            raise
        self._relay.draining.discard(source.name)
        capture.start()
        _wait_for(capture, State.RUNNING)

    def _check(self, source: PhysicalSource, scn: int) -> None:
        """Ask the source for what comes after an SCN; raises ControlRefusedError."""
        try:
            asked = self._relay.open_source(source.settings)
            try:
                asked.open(scn, None)
                asked.read()  # of some, only this says that there is no such place
            finally:
                asked.close()
        except (SourceError, RingError) as error:
            raise ControlRefusedError(
                f"{source.name} cannot begin after scn {scn}, and goes on as it was: {error}"
            ) from error

    def _pause(self, source: PhysicalSource) -> None:
        source.capture.pause()
        if source.capture.status.state in (State.STARTING, State.RUNNING):
            _wait_for(source.capture, State.PAUSED)


def drain_view(source: PhysicalSource, clients: ClientTable, now_s: float) -> DrainView:
    """Return how far a drain is; on the loop's thread."""
    scn, tail = source.reader.newest()
    waiting = clients.waiting_for(source.name, scn, tail, now_s)
    is_resting = source.capture.status.state in RESTING
    return DrainView(until_scn=max(scn, 0), waiting_for=waiting, is_done=is_resting and not waiting)


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
