"""The ring: the newest windows of one physical source, in a memory-mapped file.

`Ring` is the one writer. It never waits for a reader, but for the relay log where there is one
(`room.EvictionGate`). Readers (`RingReader`) see whole windows
only, because of the order in which it stores:
1. Room is made first: head moves past whole blocks, and is published, before a byte of theirs is
   overwritten. A reader that copies and then finds head where it was has copied what it meant to.
2. At the start of a block its index entry, then the window's bytes, then tail, in one 8-byte
   store. An entry at tail or past it counts for nobody, and there is at most one: tail is
   published before each block.
3. A window too large to be held in memory is written beyond tail as it comes (`extend`), where no
   reader and no restart looks; room is made for it as for any other. Its events have no SCN yet.
   `finish` stamps them there, and only then come the index entry, if it begins a block, and tail.
4. A source may write whole windows beyond tail itself, in room made for them (`reserve`);
   `append_batch` publishes them there, block by block.
5. A window larger than the ring goes to the relay log, where there is one (`room.LargeWindows`).
   Once it is durable there, the ring is emptied and its tail moves past the window (`_pass_over`).

`prev_scn` is the SCN that the oldest block's index entry names: the *newest* SCN no longer held.
(In Databus it was the oldest evicted window's: a slow client was served on with windows missing.)
The file survives the process: killed at any instruction, it opens again with every published window
and no half of one (`recovery`). Nothing is synced to disk on the way; what a machine going down
takes along is found by the CRCs, and capture continues from the ring's newest SCN.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from databus.relay.ring.check import windows_that_fit
from databus.relay.ring.events import stamp_events, windows_between
from databus.relay.ring.layout import (
    MASK,
    NEWEST_SCN,
    NEWEST_TIMESTAMP,
    REPLACED,
    TAIL,
    UNKNOWN_SCN,
    Layout,
    create_file,
    open_file,
)
from databus.relay.ring.lock import discard, make_locked, open_locked, take_name
from databus.relay.ring.room import RingRoom
from databus.relay.ring.upgrade import FormerRing, is_former, upgraded
from databus.schemas.errors import RingError, TransactionTooLargeError
from databus.schemas.event.v2 import Buffer
from databus.schemas.log_mark import LogMark
from databus.schemas.windows import MARK, NO_PLACE, EncodedWindow, WindowBatch

try:
    from databus.relay.ring._core import find_run
except ImportError:  # not built
    from databus.relay.ring.events import find_run

log = logging.getLogger(__name__)

__all__ = ["UNKNOWN_SCN", "EncodedWindow", "Ring", "WindowBatch"]

# The part of a ring that is evicted before it is known how much will be written there.
RESERVED_PART = 32
MOVED_BYTES = 1 << 20  # at a time, of a window that has become larger than the ring


class Ring(RingRoom):
    """The writer of a ring file. One thread at a time may call it."""

    @classmethod
    def open(
        cls,
        path: Path,
        name: str,
        capacity_bytes: int,
        block_bytes: int | None = None,
        *,
        start_scn: int = UNKNOWN_SCN,
        former_ids: Callable[[], Mapping[bytes, bytes]] = dict,
    ) -> Ring:
        """Open the ring at `path`, or create it.

        A ring of another capacity is replaced by one of this capacity, with the newest
        windows that fit. `start_scn` is for a new ring: the SCN after which capture starts,
        0 for the beginning of the source. Without it, a client that asks for anything before
        the first window appended gets ScnNotFound.

        A ring that an earlier version wrote is replaced by one with its windows, in which events
        have today's CRCs and today's schema ids; `former_ids` returns these by the earlier ids.

        Raises RingError if another process has the ring open or the disk is full, and
        RingCorruptError if the file is damaged beyond use.
        """
        wanted = Layout.choose(name, capacity_bytes, block_bytes)
        fd = open_locked(path)
        if fd is None:
            return _make(path, wanted, start_scn, None)
        if is_former(path, fd):
            return upgraded(path, fd, wanted, start_scn, former_ids(), _make)
        ring = _open(path, fd)
        if ring.name != name:
            ring.close()
            raise RingError(f"ring {path} is of physical source {ring.name!r}, not {name!r}")
        if ring.capacity_bytes == capacity_bytes:
            return ring
        try:
            return _make(path, wanted, UNKNOWN_SCN, ring)
        finally:
            ring.close()

    def close(self) -> None:
        """Unmap the file and release its lock; may be called twice."""
        if self._fd >= 0:
            self._file.close()
            os.close(self._fd)
            self._fd = -1

    @property
    def ring_id(self) -> int:
        """Changes when the ring begins anew."""
        return self._file.ring_id()

    def restart_after(self, scn: int) -> None:
        """Empty the ring, so that it begins after `scn`, which may be any SCN.

        The empty ring is a new file that takes the name once it is complete. After a kill at any
        instruction there is either the old ring or the new one. Readers are notified to open it
        again. Positions continue from the old tail, so an old one is never valid in the new file.

        Raises RingError if the disk has no room for both files; then nothing has changed.
        """
        fresh = _make(self._file.path, self._file.layout, scn, self, is_copied=False)
        old_file, old_fd = self._file, self._fd
        self._use(fresh._file, fresh._fd)
        old_file.close()
        os.close(old_fd)

    def seal_sources(self, crc: int | None) -> None:
        """Store the CRC32 of this writer's file of first SCNs, which is on disk."""
        self._file.put_sources_crc(crc)
        self.sources_crc = crc

    def note_mark(self, mark: LogMark) -> None:
        """Store a mark of the source's log at an appended SCN."""
        self._file.put_mark(mark)

    def log_marks(self) -> list[LogMark]:
        """Return the stored marks of the source's log; their SCNs may be older than the newest."""
        return self._file.marks()

    def append(self, windows: Iterable[EncodedWindow]) -> None:
        """Append windows and publish them.

        Raises TransactionTooLargeError for a window larger than the ring, unless `large` takes
        it, and RingError for one whose SCN does not rise. The windows before that one are appended.
        """
        self._discard_unfinished()
        mapping = self._mapping
        newest, tail, barrier, shift = self._newest, self._tail, self._barrier, self._shift
        timestamp_ns = self._timestamp_ns
        try:
            for scn, data, window_timestamp_ns in windows:
                if scn <= newest:
                    self._check_rises(scn, newest)
                end = tail + len(data)
                if end <= barrier:
                    mapping[tail + shift : end + shift] = data
                else:
                    # Published before the eviction, because that may move head past it.
                    self._publish(tail, newest, timestamp_ns)
                    if not self._append_outside(scn, data, window_timestamp_ns):
                        self._pass_barrier(scn, len(data))
                        self._file.copy_in(tail, data)
                    barrier, shift = self._barrier, self._shift
                tail = end
                newest = scn
                timestamp_ns = window_timestamp_ns
        finally:
            # `_publish` inlined: the call costs a tenth of appending one window.
            if newest != self._newest:
                cells = self._cells
                cells[TAIL + 1] = tail ^ MASK
                cells[NEWEST_SCN] = newest
                cells[NEWEST_TIMESTAMP] = timestamp_ns
                cells[TAIL] = tail
                self._tail, self._newest, self._timestamp_ns = tail, newest, timestamp_ns

    def append_batch(self, batch: WindowBatch) -> None:
        """Append the windows of a batch and publish them; raises as `append`.

        Windows that were written where `reserve` said are only published.
        """
        self._discard_unfinished()
        is_there = batch.place == self._tail
        if batch.is_placed:
            if not self._tail <= batch.place <= self._reserved_end - batch.size_bytes:
                raise RingError(f"ring {self.name}: no windows were written at {batch.place}")
            batch = batch if is_there else self.lift(batch)
        data, marks = memoryview(batch.data), batch.marks
        number, begin, count = 0, 0, batch.window_count
        while number < count:
            # Copy all windows that fit the block at once; the next one begins a block.
            room_end = begin + self._barrier - self._tail
            run_end = find_run(marks, number, self._newest, room_end)
            if run_end > number:
                number = run_end
                scn, stop, timestamp_ns, _ = MARK.unpack_from(marks, (number - 1) * MARK.size)
                tail = self._tail + stop - begin
                if not is_there:
                    self._mapping[self._tail + self._shift : tail + self._shift] = data[begin:stop]
                self._publish(tail, scn, timestamp_ns)
            else:
                scn, stop, timestamp_ns, _ = MARK.unpack_from(marks, number * MARK.size)
                number += 1
                self._check_rises(scn, self._newest)
                if not self._append_outside(scn, data[begin:stop], timestamp_ns):
                    self._pass_barrier(scn, stop - begin)
                    if not is_there:
                        self._file.copy_in(self._tail, data[begin:stop])
                    self._publish(self._tail + stop - begin, scn, timestamp_ns)
            begin = stop

    def reserve(self, size_bytes: int) -> tuple[int, memoryview] | None:
        """Make room behind the newest window; return its position, and its bytes to write to.

        They count once a batch of that place is appended, may be fewer than asked for, and are
        released by the caller. None where an unfinished window lies, or a block much larger than
        they are had to go, or may not go yet.
        """
        if self._unfinished_bytes:
            return None
        tail, capacity = self._tail, self._capacity_bytes
        size = min(size_bytes, capacity - tail % capacity, capacity // RESERVED_PART)
        needed_head = tail + size - capacity
        if needed_head > self._head:
            begin = self._index.next_begin(needed_head, self._first, self._next, tail)
            if begin >= min(needed_head + size, tail):
                return None
            if self.gate is not None and not self.gate.is_open(begin):
                return None
            self._evict(needed_head)
        self._reserved_end = tail + size
        return tail, self._file.bytes_at(tail, size)

    def lift(self, batch: WindowBatch) -> WindowBatch:
        """Return a placed batch with its data; raises RingError if it is not there."""
        data = self._file.copy_out(batch.place, batch.size_bytes)
        return batch._replace(data=data, place=NO_PLACE)

    def extend(self, at: int, data: Buffer) -> None:
        """Write bytes of the unfinished window, `at` bytes after its beginning.

        Bytes written after them before are discarded; appending another window discards the
        whole unfinished one. No reader sees any of it. Windows in its way are evicted.

        Raises TransactionTooLargeError if the ring is too small and `large` does not take it;
        then nothing has changed. The error names the newest SCN, because this window has none yet.
        Raises RingError if `at` would leave a gap.
        """
        size, capacity, tail = at + len(data), self._capacity_bytes, self._tail
        if not 0 <= at <= self._unfinished_bytes:
            raise RingError(
                f"ring {self.name}: bytes at {at} of a window of which "
                f"{self._unfinished_bytes} are written"
            )
        if at == 0:  # a new window, or all of this one was rolled back
            self._discard_unfinished()
        if self._is_outside or size > capacity:
            self._extend_outside(at, data)
            return
        if tail + size > self._head + capacity:
            self._evict(tail + size - capacity)
            if self._first == self._next:
                # The block around tail is evicted too, so the next window begins a block.
                self._block_end = tail
                self._see_barrier(tail)
        self._file.copy_in(tail + at, data)
        self._unfinished_bytes = size
        self._reserved_end = 0

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Stamp the events of the unfinished window, `length` bytes with its EOP, and publish it.

        Raises RingError for an SCN that does not rise or a length that was not written, and
        ProtocolError if the bytes are not whole events that end with an EOP; WaitEndedError if
        it is larger than the ring, and the wait for it was ended. Then nothing is published, and
        the window has to be written again.
        """
        self._check_rises(scn, self._newest)
        if not 0 < length <= self._unfinished_bytes:
            raise RingError(
                f"ring {self.name}: window {scn} has {self._unfinished_bytes} bytes, not {length}"
            )
        if self._is_outside and self.large is not None:
            self._is_outside, self._unfinished_bytes = False, 0
            self.large.finish(length, scn, timestamp_ns)
            self._pass_over(length, scn, timestamp_ns)
            return
        end = self._tail + length
        stamp_events(self._file, self._tail, end, scn, timestamp_ns)
        self._unfinished_bytes = 0
        if end > self._block_end:
            self._begin_block(scn, length)
        self._publish(end, scn, timestamp_ns)
        self._see_barrier(end)

    def _extend_outside(self, at: int, data: Buffer) -> None:
        """Write bytes of the unfinished window, which is larger than the ring, to `large`."""
        size, large = at + len(data), self.large
        if large is None:
            capacity = self._capacity_bytes
            raise TransactionTooLargeError(self.name, self._newest, size, capacity, is_whole=False)
        if not self._is_outside:
            self._is_outside = True
            for begin in range(0, at, MOVED_BYTES):
                moved = min(MOVED_BYTES, at - begin)
                large.write(begin, self._file.copy_out(self._tail + begin, moved))
        large.write(at, data)
        self._unfinished_bytes = size
        self._reserved_end = 0

    def _append_outside(self, scn: int, data: Buffer, timestamp_ns: int) -> bool:
        """Append a window that is larger than the ring; return False for any other."""
        if self.large is None or len(data) <= self._capacity_bytes:
            return False
        self.large.write(0, data)
        self.large.finish(len(data), scn, timestamp_ns)
        self._pass_over(len(data), scn, timestamp_ns)
        return True

    def _discard_unfinished(self) -> None:
        self._unfinished_bytes = 0
        if self._is_outside and self.large is not None:
            self._is_outside = False
            self.large.discard()


def _open(path: Path, fd: int) -> Ring:
    """Open an existing ring; close `fd` on failure."""
    ring_file = None
    try:
        ring_file = open_file(path, fd, writable=True)
        return Ring(ring_file, fd)
    except BaseException:
        if ring_file is not None:
            ring_file.close()
        os.close(fd)
        raise


def _make(
    path: Path,
    layout: Layout,
    start_scn: int,
    old: Ring | None,
    *,
    is_copied: bool = True,
    former: FormerRing | None = None,
) -> Ring:
    """Make a ring with the newest windows of `old`; it takes the name once it is complete.

    If not `is_copied` it has no windows, and its positions begin at the tail of `old`.
    """
    position = 0
    if old is not None and is_copied:
        position, start_scn, damage = windows_that_fit(old._file, layout.capacity_bytes)
        old.dropped = damage or old.dropped
    fd = make_locked(path)
    try:
        create_file(path, fd, layout, start_scn, old._file if old else None, is_copied=is_copied)
        ring = _open(path, os.dup(fd))
    except BaseException:
        discard(path)
        raise
    finally:
        os.close(fd)
    try:
        if former is not None:
            _fill(ring, former.windows(), former.marks())
        if old is not None:
            if is_copied:
                _fill(ring, windows_between(old._file, position, old.tail), old.log_marks())
                ring.dropped = old.dropped
            ring.seal_sources(old.sources_crc)
            # Notifies its readers to open the ring again. It is set before the name is taken:
            # a reader notified too early finds the old file again and retries, but one never
            # notified would read the old file for ever.
            old._cells[REPLACED] = 1
        take_name(path, ring._fd)
    except BaseException:
        if old is not None:
            old._cells[REPLACED] = 0
        ring.close()
        discard(path)
        raise
    return ring


def _fill(ring: Ring, windows: Iterable[EncodedWindow], marks: Iterable[LogMark]) -> None:
    for window in windows:
        ring.append((window,))
    for mark in marks:
        ring.note_mark(mark)
