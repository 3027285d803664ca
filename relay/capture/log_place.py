"""To where an open log was read, and whether it may have become another one meanwhile."""

from __future__ import annotations

from databus.relay.capture.capture_ring import CaptureRing, newest_of
from databus.relay.sources.source import Newest, Transaction
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError

# How far a log was taken: the newest transaction, and so many bytes of one that comes in pieces.
Reached = tuple[int, int]
NOWHERE: Reached = (-1, 0)


class LogPlace:
    """Written by the capture thread, but for `cast_doubt`; read by any.

    A connection is proved by what it brings: something that is newer than all that was had
    before and than what failed last, or the word of the source that nothing follows. A source
    says that, and hands over what is newer, only once its log was proved to be the one that
    was left. Until then nobody knows whether the database is well: it may be another one, say
    nothing, or bring again what could not be taken.
    """

    def __init__(self, source: str, ring: CaptureRing) -> None:
        self._source = source
        self._ring = ring
        self.is_proved = False
        self.piece_end = 0  # of a transaction that comes in pieces: so many bytes were taken
        self._failed_at = self._known = NOWHERE
        self.scn: int | None = None
        # The newest transaction, when it is an empty one that the ring was not given.
        self.idle: Transaction | None = None
        self._doubt = ""

    def connecting(self) -> None:
        """Note that another connection begins: it proves which log it is."""
        self._doubt = ""

    def begin(self, scn: int | None, known_scn: int) -> None:
        """Note where reading begins, and the newest that was had before."""
        self.scn, self.idle, self.piece_end = scn, None, 0
        self._known = (known_scn, 0)

    @property
    def _reached(self) -> Reached:
        passed_scn = -1 if self.idle is None else self.idle.scn
        return max(self._ring.max_scn, passed_scn), self.piece_end

    def prove(self, *, is_at_end: bool) -> bool:
        """Say whether what a read has brought is the proof, and the first one."""
        if self.is_proved:
            return False
        self.is_proved = is_at_end or self._reached > max(self._known, self._failed_at)
        if self.is_proved:
            self._failed_at = NOWHERE
        return self.is_proved

    def failed(self) -> None:
        """Note that what comes next could not be had or taken."""
        self._failed_at = max(self._failed_at, self._reached)

    def rest(self) -> None:
        """Forget what failed: what is read next may begin anywhere."""
        self._failed_at = NOWHERE

    @property
    def reading_at(self) -> int | None:
        """To where it was read, -1 where nothing was yet; None while that is not proved."""
        if not self.is_proved:
            return None
        return -1 if self.scn is None else self.scn

    @property
    def newest(self) -> Newest | None:
        """The newest transaction: of the ring, or that an open stream has passed since."""
        held, passed = newest_of(self._ring), self.idle
        if passed is None or not self.is_proved or (held is not None and passed.scn <= held.scn):
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
