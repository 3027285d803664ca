"""To where an open log was read, and whether it may have become another one meanwhile."""

from __future__ import annotations

from databus.relay.capture.capture_ring import CaptureRing, newest_of
from databus.relay.sources.source import Newest, Transaction
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError


class LogPlace:
    """Written by the capture thread, but for `cast_doubt`; read by any."""

    def __init__(self, source: str, ring: CaptureRing) -> None:
        self._source = source
        self._ring = ring
        self.is_open = False
        self.scn: int | None = None
        # The newest transaction, when it is an empty one that the ring was not given.
        self.idle: Transaction | None = None
        self._doubt = ""

    def connecting(self) -> None:
        """Note that another connection begins: it proves which log it is."""
        self._doubt = ""

    def begin(self, scn: int | None) -> None:
        """Note where reading begins."""
        self.scn, self.idle = scn, None

    @property
    def reading_at(self) -> int | None:
        """To where it was read, -1 where nothing was yet; None while it is not open."""
        if not self.is_open:
            return None
        return -1 if self.scn is None else self.scn

    @property
    def newest(self) -> Newest | None:
        """The newest transaction: of the ring, or that an open stream has passed since."""
        held, passed = newest_of(self._ring), self.idle
        if passed is None or not self.is_open or (held is not None and passed.scn <= held.scn):
            return held
        return Newest(passed.scn, passed.timestamp_ns)

    def move_to(self, scn: int) -> None:
        """Note that it was read to there; raises when that is back."""
        if self.scn is not None and scn <= self.scn:
            # Nothing that is captured once comes again but after `open`, and
            # then only from there on: lower SCNs mean another log.
            raise SourceStoppedError(
                self._source,
                self.scn,
                f"it went back to scn {scn}: its log was reset or replaced; raise `epoch` of this "
                "physical source, or move its ring and MaxSCN files away to start anew",
            )
        self.scn = scn

    def cast_doubt(self, doubt: str) -> None:
        """Have the log opened again, for it may be another one; any thread may call."""
        self._doubt = doubt

    def check_doubt(self) -> None:
        """Raise when somebody doubts that the log is the one that was opened."""
        if self._doubt:
            raise SourceUnavailableError(
                f"source {self._source}: {self._doubt}; the connection is dropped, and the next "
                "one proves which log it is"
            )
