"""How far a catch-up reads ahead of its readers, and what is kept for them.

Requests tell where readers are: one asks from a place, is sent what follows, and asks next from the
end of that, or from a place before it. Until then it counts where it asked first: what it was sent
and may have lost is still there. A reader that was not heard of for a while is forgotten, unless it
was the last one: then nothing moves, until the catch-up is dropped as idle.

Positions are those of the catch-up's ring and log. The loop's thread writes, other threads read.
"""

from __future__ import annotations

from dataclasses import dataclass

from databus.relay.log.gate import LogGate

FORGOTTEN_AFTER_S = 10.0


@dataclass(slots=True)
class _Reader:
    """Where a reader is, the SCN that it has everything up to, and the end of what it was sent."""

    position: int
    after_scn: int
    sent_until: int
    heard_at_s: float


class ReadAhead:
    """The places of one catch-up's readers, and the bytes that it may be ahead of the slowest."""

    def __init__(self, most_bytes: int, after_scn: int) -> None:
        """`most_bytes` are those of events, not compressed. `after_scn` is the place asked for."""
        self._most_bytes = most_bytes
        self._readers: list[_Reader] = []
        # Position; None until the place is reached: nobody needs what is read before.
        self.slowest: int | None = None
        self.after_scn = after_scn  # what comes after it is kept
        # Whether the slowest has read everything that it may, before both histories are compared.
        # That needs windows behind it, however large they are.
        self.waits_for_proof = False

    def reached(self, position: int) -> None:
        """Note where the place is that was asked for."""
        if self.slowest is None:
            self.slowest = position

    def asked(self, position: int, after_scn: int, now_s: float) -> None:
        """Note that a reader asks for what follows a position."""
        for one in self._readers:
            if one.position == position or one.position < position <= one.sent_until:
                self._readers.remove(one)
                break
        self._readers.append(_Reader(position, after_scn, position, now_s))
        self._note_slowest()

    def sent(self, begin: int, end: int) -> None:
        """Note that the reader at a position, or at the end of what it was sent, is sent more."""
        for one in self._readers:
            if begin in (one.position, one.sent_until):
                one.sent_until = max(end, one.sent_until)

    def forget(self, now_s: float) -> None:
        """Forget readers that were not heard of for a while."""
        self._readers = [one for one in self._readers if now_s - one.heard_at_s < FORGOTTEN_AFTER_S]
        self._note_slowest()

    def is_far_ahead(self, position: int, part: int = 1) -> bool:
        """Return whether a position is further ahead than a part of what it may be."""
        if self.slowest is None or self.waits_for_proof:
            return False
        return position - self.slowest > self._most_bytes // part

    def _note_slowest(self) -> None:
        slowest = min(self._readers, key=lambda one: one.position, default=None)
        if slowest is not None:
            self.slowest, self.after_scn = slowest.position, slowest.after_scn


class ReadAheadGate:
    """Lets the ring evict what is in the log, as long as that is not far ahead of the readers."""

    def __init__(self, gate: LogGate, read_ahead: ReadAhead) -> None:
        self._gate, self._read_ahead = gate, read_ahead

    def is_open(self, position: int) -> bool:
        """Return whether everything before a position may be evicted."""
        return not self._read_ahead.is_far_ahead(position) and self._gate.is_open(position)

    def wait_for(self, position: int) -> None:
        """Return once everything before a position may be evicted; raise WaitEndedError."""
        if self._read_ahead.is_far_ahead(position):
            self._gate.wait_until(lambda: not self._read_ahead.is_far_ahead(position))
        self._gate.wait_for(position)
