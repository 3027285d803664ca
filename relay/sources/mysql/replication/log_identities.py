"""Tracks the identity of the log along one stream. Pure.

See `log_identity.py`. The stored identities may be of several SCNs, because MaxSCN and the
ring's header are written one after the other. The newest one at or before the start of reading
is proved before anything is yielded, later ones when the stream passes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import HEARTBEAT_V2, Event
from databus.relay.sources.mysql.binlog.executed import ExecutedGtids
from databus.relay.sources.mysql.replication.log_cursor import is_made_up
from databus.relay.sources.mysql.replication.log_identity import (
    AnotherLogError,
    FileBeginning,
    Identity,
    Proof,
    Trail,
    crc_of,
    first_event_crc,
    time_text,
)
from databus.schemas.scn import MAX_OFFSET, binlog_position

_HEARTBEATS = (B.HEARTBEAT_LOG_EVENT, HEARTBEAT_V2)
NEVER = (1 << 63) - 1
_MOST_NOTED = 10_000


class Place(Protocol):
    """The position of a stream."""

    file: str
    file_number: int
    offset: int


class Expected(NamedTuple):
    """A transaction that the log must have: known by its digest, or else by its commit time."""

    scn: int
    kept: Identity | None
    timestamp_ns: int = 0


class Identities:
    """The identities of the log at the transactions that a stream passes."""

    def __init__(
        self,
        server: str = "",
        proof: Proof | None = None,
        expected: Sequence[Expected] = (),
        born_before_ns: int = 0,
    ) -> None:
        self.server = server
        # None: what was executed is of no interest.
        self.executed: ExecutedGtids | None = None
        self.trail = Trail()
        # The identity before the first rotation that is not checked yet (`SameLog.look_behind`).
        self.rotated_from: Identity | None = None
        self.latest: Identity | None = None
        self._proof = proof
        self._expected = sorted(expected, key=lambda one: one.scn)
        self._born_before_ns = born_before_ns
        self._beginning: FileBeginning | None = None
        self._noted: dict[int, Identity] = {}

    @property
    def is_proving(self) -> bool:
        """Whether events are compared with a stored identity instead of being assembled."""
        return self._proof is not None

    @property
    def is_proved(self) -> bool:
        """Whether all stored identities have been found in the log."""
        return self._proof is None and not self._expected

    @property
    def expected_scn(self) -> int:
        """The next SCN at which the log must have a known transaction; NEVER without one."""
        return self._expected[0].scn if self._expected else NEVER

    def at(self, scn: int) -> Identity | None:
        """Return the identity at an SCN, and forget those before it."""
        for older in [noted for noted in self._noted if noted < scn]:
            del self._noted[older]
        return self._noted.get(scn)

    def prove(self, event: Event, data: bytes, cursor: Place) -> None:
        """Compare an event with the stored identity; raises AnotherLogError."""
        assert self._proof is not None
        place = (cursor.file, cursor.file_number, cursor.offset)
        stands = event.type_code != B.ROTATE_EVENT and not is_made_up(event)
        if event.type_code in _HEARTBEATS:
            raise self.refuted(f"which ends at {cursor.file}:{cursor.offset}")
        self._proof.take(event, data, place, stands=stands)
        if self._proof.is_over:
            self.latest = self._proof.kept
            self._proof = None

    def refuted(self, found: str) -> AnotherLogError:
        """Return the error for a stream that cannot be read during the proof."""
        assert self._proof is not None
        return AnotherLogError(self._proof.kept, f"{self._proof.describe()}, {found}")

    def follow(
        self, event: Event, data: bytes, cursor: Place, *, is_inside: bool, has_checksum: bool
    ) -> None:
        """Add an event whose position is known; raises AnotherLogError."""
        if self.executed is not None and not self.is_proving:
            self.executed.follow(event)
        is_first = event.type_code == B.FORMAT_DESCRIPTION_EVENT
        if event.type_code == B.ROTATE_EVENT:
            self._rotate()
        elif is_first:
            self._begin_file(cursor, data)
        if event.type_code == B.ROTATE_EVENT or is_made_up(event):
            return
        if not is_inside:
            self.trail.restart(event.start_offset)
        crc = first_event_crc(data) if is_first else crc_of(data, has_checksum=has_checksum)
        self.trail.add(crc, len(data))

    def _rotate(self) -> None:
        """Record a rotation, unless it is the one that a stream begins with."""
        # That one comes before the first FORMAT_DESCRIPTION.
        if self.rotated_from is None and self._beginning is not None:
            self.rotated_from = self.latest

    def _begin_file(self, cursor: Place, data: bytes) -> None:
        """Record a file's first event, or the copy of it that a stream begins with."""
        self._beginning = FileBeginning.of(data)
        if self._born_before_ns:
            self._check_birth(cursor.file, self._beginning.born_s)
        if self.latest is None and not self.is_proving:
            # At a first start there is no transaction yet: a position only.
            scn = binlog_position(0)._replace(
                file_number=cursor.file_number, offset=min(cursor.offset, MAX_OFFSET)
            )
            self.latest = self._make(scn.to_scn(), cursor, cursor.offset, 0, "")

    def _check_birth(self, file: str, born_s: int) -> None:
        before_s, self._born_before_ns = self._born_before_ns // 10**9, 0
        if born_s > before_s:
            kept = f"a log whose {file} existed at {time_text(before_s)}"
            raise AnotherLogError(kept, f"a {file} begun {time_text(born_s)}")

    def note(self, scn: int, cursor: Place, gtid: str, timestamp_ns: int) -> None:
        """Record the end of the current transaction; raises AnotherLogError."""
        trail = self.trail
        if self.executed is not None and gtid:
            keep = self.executed.hold if cursor.offset > MAX_OFFSET else self.executed.add
            keep(gtid)
        if cursor.offset <= MAX_OFFSET:  # transactions beyond have no SCN of their own
            self.take(scn, cursor, trail.begin, trail.digest, gtid, timestamp_ns)

    def take(
        self, scn: int, cursor: Place, begin: int, digest: int, gtid: str, timestamp_ns: int
    ) -> None:
        """Record a transaction that ended; raises AnotherLogError when another one was expected."""
        made = self._make(scn, cursor, begin, digest, gtid)
        while scn >= self.expected_scn:
            _check(self._expected.pop(0), scn, made, timestamp_ns)
        if made is not None:
            self._remember(made)

    def has_reached(self, cursor: Place, offset: int) -> bool:
        """Return whether an offset is known already, as that of a transaction or a point."""
        if self.latest is None:
            return cursor.offset >= offset
        newest = binlog_position(self.latest.scn)
        return (newest.file_number, newest.offset) >= (cursor.file_number, offset)

    def note_point(self, scn: int, cursor: Place) -> None:
        """Record a position without a transaction: a start, or a jump over unsent events."""
        point = self._make(scn, cursor, cursor.offset, 0, "")
        if point is not None:
            self._remember(point)

    def _remember(self, made: Identity) -> None:
        self.latest = self._noted[made.scn] = made
        if len(self._noted) > _MOST_NOTED:  # nothing was appended to the ring for long
            self.at(made.scn)

    def _make(self, scn: int, cursor: Place, begin: int, digest: int, gtid: str) -> Identity | None:
        if self._beginning is None:
            return None
        born_s, first = self._beginning
        return Identity(scn, self.server, cursor.file, born_s, first, begin, digest, gtid)


def _check(expected: Expected, scn: int, found: Identity | None, timestamp_ns: int) -> None:
    kept = expected.kept
    is_same = scn == expected.scn
    if is_same and kept is not None and found is not None:
        is_same = (kept.begin, kept.digest) == (found.begin, found.digest)
    elif is_same:
        is_same = timestamp_ns == expected.timestamp_ns
    if not is_same:
        what = kept or f"a transaction that ends at {binlog_position(expected.scn)}"
        raise AnotherLogError(what, str(found) if found else f"one at {binlog_position(scn)}")
