"""The position in an open log, and the proof that it is still the same log."""

from __future__ import annotations

from databus.relay.capture.capture_ring import CaptureRing, newest_of
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.windows import EmptyWindow

# A position in a log: the newest transaction, and the bytes taken of an unfinished one.
Reached = tuple[int, int]
NOWHERE: Reached = (-1, 0)


class LogPlace:
    """The position of one capture loop in its log.

    Written by the capture thread, except for `cast_doubt`; read by any thread.

    A connection is proved when it delivers a transaction newer than all before and than the
    last failure, or when the source reports that nothing follows. A source does both only
    after it has checked that its log is the expected one. Until then the state of the
    database is unknown: it may be another database, stay silent, or repeat a transaction
    that failed.
    """

    def __init__(self, source: str, ring: CaptureRing) -> None:
        self._source = source
        self._ring = ring
        self.is_proved = False
        self.delay_s = 0.0  # from commit to ring, of the newest window; 0 when all is captured
        self.piece_end = 0  # bytes taken of a transaction that arrives in pieces
        self._failed_at = self._known = NOWHERE
        self.scn: int | None = None
        # The newest window, if it is empty and was not appended to the ring.
        self.idle: EmptyWindow | None = None
        self._doubt = ""

    def connecting(self) -> None:
        """Start a new connection, which has to prove its log again."""
        self._doubt = ""

    def begin(self, scn: int | None, known_scn: int) -> None:
        """Set where reading begins, and the newest SCN known before."""
        self.scn, self.idle, self.piece_end = scn, None, 0
        self._known = (known_scn, 0)

    @property
    def _reached(self) -> Reached:
        passed_scn = -1 if self.idle is None else self.idle.scn
        return max(self._ring.max_scn, passed_scn), self.piece_end

    def prove(self, *, is_at_end: bool) -> bool:
        """Return whether the last read proves the connection, for the first time."""
        if is_at_end:
            self.delay_s = 0.0
        if self.is_proved:
            return False
        self.is_proved = is_at_end or self._reached > max(self._known, self._failed_at)
        if self.is_proved:
            self._failed_at = NOWHERE
        return self.is_proved

    def failed(self) -> None:
        """Record that reading or appending failed at the current position."""
        self._failed_at = max(self._failed_at, self._reached)

    def rest(self) -> None:
        """Forget the last failure: the next read may begin anywhere."""
        self._failed_at = NOWHERE

    @property
    def reading_at(self) -> int | None:
        """SCN up to which the log was read, -1 for nothing; None while unproved."""
        if not self.is_proved:
            return None
        return -1 if self.scn is None else self.scn

    @property
    def newest(self) -> Newest | None:
        """The newest transaction in the ring, or an empty one read since."""
        held, passed = newest_of(self._ring), self.idle
        if passed is None or not self.is_proved or (held is not None and passed.scn <= held.scn):
            return held
        return Newest(passed.scn, passed.timestamp_ns)

    def move_to(self, scn: int) -> None:
        """Set the position; raise SourceStoppedError if that goes back."""
        if self.scn is not None and scn <= self.scn:
            # Captured transactions come again only after `open`, and only from its SCN on:
            # a lower SCN means another log.
            raise SourceStoppedError(
                self._source,
                self.scn,
                f"it went back to scn {scn}: its log was reset or replaced; raise `epoch` of this "
                "physical source, or move its ring and MaxSCN files away to start over",
            )
        self.scn = scn

    def cast_doubt(self, doubt: str) -> None:
        """Make capture open the log again, because it may be another one. Thread-safe."""
        self._doubt = doubt

    def check_doubt(self) -> None:
        """Raise SourceUnavailableError if the log is doubted to be the one that was opened."""
        if self._doubt:
            raise SourceUnavailableError(
                f"source {self._source}: {self._doubt}; reconnecting to check which log it is"
            )
