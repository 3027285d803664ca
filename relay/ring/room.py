"""Where the next bytes of a ring go, and what is evicted for them.

`RingRoom` keeps the ring's bounds and its blocks; `Ring` writes the windows. Where a gate is
given, nothing is evicted before the gate lets it go: the writer waits.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol

from databus.daemon.log_setup import about
from databus.relay.ring.layout import (
    FIRST,
    HEAD,
    MASK,
    NEWEST_SCN,
    NEWEST_TIMESTAMP,
    NEXT,
    PREV_SCN,
    REPLACED,
    TAIL,
    UNKNOWN_SCN,
    WRITER_PID,
    RingFile,
)
from databus.relay.ring.recovery import recover
from databus.relay.ring.scn_index import IndexEntry, ScnIndex
from databus.schemas.errors import RingError, TransactionTooLargeError
from databus.schemas.event.v2 import Buffer

log = logging.getLogger(__name__)


class WaitEndedError(Exception):
    """A wait for the gate was ended, because the writer is to do something else."""


class EvictionGate(Protocol):
    """Decides what may be evicted. Positions are the ring's."""

    def is_open(self, position: int) -> bool:
        """Return whether everything before a position may be evicted."""
        ...

    def wait_for(self, position: int) -> None:
        """Return once everything before a position may be evicted; raise WaitEndedError."""


class LargeWindows(Protocol):
    """Takes a window that is larger than the ring, and keeps it in another place."""

    def write(self, at: int, data: Buffer) -> None:
        """Write bytes of the window, `at` bytes after its beginning; at 0 a new one begins.

        What was written after them before is discarded. Raises OSError.
        """

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Return once all `length` bytes are durable; raise WaitEndedError or ProtocolError.

        `length` includes the EOP. The window has to be written again after an error.
        """

    def discard(self) -> None:
        """Forget the window."""


class RingRoom:
    """The bounds of a ring file that is written to. One thread at a time may call it."""

    gate: EvictionGate | None = None
    large: LargeWindows | None = None

    def __init__(self, ring_file: RingFile, fd: int) -> None:
        self._use(ring_file, fd)

    def _use(self, ring_file: RingFile, fd: int) -> None:
        """Recover a file's state, and write to it from now on."""
        self._file = ring_file
        self._fd = fd
        self._cells = ring_file.cells
        self._mapping = ring_file.mapping
        layout = ring_file.layout
        self._capacity_bytes, self._block_bytes = layout.capacity_bytes, layout.block_bytes
        self._index_slots = layout.index_slots
        self._index = ScnIndex(ring_file.cells, layout.index_slots, ring_file.core)
        state = recover(ring_file)
        self._first, self._next, self._head, self._tail, self._prev_scn = state[:5]
        self._newest, self._timestamp_ns = state[5:7]
        self.dropped = state.dropped  # the loss by damage, in words; "" without any
        if self.dropped:
            log.warning("%s", self.dropped, extra=about(physical_source=layout.name))
        self._unfinished_bytes = self._reserved_end = 0
        self._is_outside = False  # whether the unfinished window is in `large`
        self._block_end = self._end_of_last_block()
        self._see_barrier(self._tail)
        # A writer may have been killed after it set this, before the new file took the name.
        self._cells[REPLACED] = 0
        self._cells[WRITER_PID] = os.getpid()
        self.sources_crc = ring_file.begin_generation()

    @property
    def name(self) -> str:
        """Name of the physical source."""
        return self._file.layout.name

    @property
    def capacity_bytes(self) -> int:
        """Size of the data region, and of the largest window that fits."""
        return self._capacity_bytes

    @property
    def head(self) -> int:
        """Logical position of the oldest window."""
        return self._head

    @property
    def tail(self) -> int:
        """Logical position of the newest window's end; equal to head if the ring is empty."""
        return self._tail

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; -1 if the ring is empty."""
        entry = self._index.get(self._first) if self._first < self._next else None
        return UNKNOWN_SCN if entry is None else entry.scn

    @property
    def max_scn(self) -> int:
        """SCN of the newest window ever appended, or capture's start; -1 if unknown."""
        return self._newest

    @property
    def newest_timestamp_ns(self) -> int:
        """Timestamp of the newest window; 0 if there never was one."""
        return self._timestamp_ns

    @property
    def prev_scn(self) -> int:
        """Newest SCN no longer held, or capture's start; -1 if unknown."""
        return self._prev_scn

    def _publish(self, tail: int, newest: int, timestamp_ns: int) -> None:
        # The complement first and tail last: see RingReader.newest.
        cells = self._cells
        cells[TAIL + 1] = tail ^ MASK
        cells[NEWEST_SCN] = newest & MASK
        cells[NEWEST_TIMESTAMP] = timestamp_ns
        cells[TAIL] = tail
        self._tail, self._newest, self._timestamp_ns = tail, newest, timestamp_ns

    def _check_rises(self, scn: int, newest: int) -> None:
        if scn <= newest:
            raise RingError(f"ring {self.name}: window {scn} comes after {newest}: SCNs must rise")

    def _pass_barrier(self, scn: int, size: int) -> None:
        """Make room for a window that begins a block, or wraps around the end of the file."""
        tail = self._tail
        if tail + size > self._block_end:
            if size > self._capacity_bytes:
                raise TransactionTooLargeError(self.name, scn, size, self._capacity_bytes)
            self._begin_block(scn, size)
        self._see_barrier(tail + size)

    def _begin_block(self, scn: int, size: int) -> None:
        """Make room for a block that begins at tail with a window of `size`, and index it."""
        tail, capacity = self._tail, self._capacity_bytes
        # Room for the whole block, so that its other windows need no check.
        room = min(max(size, self._block_bytes), capacity)
        self._evict(tail + room - capacity)
        self._block_end = tail + room
        if tail >= self._file.pages.due_at:
            self._file.pages.prepare(tail)
        # Readers and restarts ignore an entry at tail or past it.
        self._index.put(self._next, IndexEntry(scn, tail, self._newest))
        self._next += 1
        self._file.put(NEXT, self._next)

    def _evict(self, needed_head: int) -> None:
        """Evict whole blocks until head reaches `needed_head` and an index slot is free."""
        first, head, end, prev_scn = self._first, self._head, self._next, self._prev_scn
        oldest_slot = end - self._index_slots + 1
        if head >= needed_head and first >= oldest_slot:
            return
        while head < needed_head or first < oldest_slot:
            first += 1
            if first < end:
                head, prev_scn = self._index.begin_of(first)
            else:
                head, prev_scn = self._tail, self._newest
                # An empty ring has no entry for it, so store it before the last one goes.
                self._file.put(PREV_SCN, prev_scn)
        if self.gate is not None:
            self.gate.wait_for(head)
        # A restart relies on the entry that FIRST names, so head is stored after it.
        cells = self._cells
        cells[FIRST + 1] = MASK ^ first
        cells[FIRST] = first
        cells[HEAD + 1] = MASK ^ head
        cells[HEAD] = head
        self._first, self._head, self._prev_scn = first, head, prev_scn

    def _pass_over(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Empty the ring, and move it behind a window of `length` bytes that it does not have.

        Positions go on as if it had been written. A reader sees the ring before the window until
        tail is stored, and after it from then on: the index entry says both SCNs.
        """
        tail, number = self._tail, self._next
        self._evict(tail)
        self._index.put(number, IndexEntry(scn, tail, self._newest))
        self._file.put(NEXT, number + 1)
        end = tail + length
        self._file.put(HEAD, end)
        self._publish(end, scn, timestamp_ns)
        self._file.put(PREV_SCN, scn)
        self._file.put(FIRST, number + 1)
        self._first = self._next = number + 1
        self._head, self._prev_scn, self._block_end = end, scn, end
        self._see_barrier(end)

    def _see_barrier(self, tail: int) -> None:
        """Set the position up to which windows are only copied: end of the block or the file."""
        in_lap = tail % self._capacity_bytes
        lap_end = tail - in_lap + self._capacity_bytes
        self._shift = self._file.data_at + in_lap - tail
        self._barrier = lap_end if lap_end < self._block_end else self._block_end

    def _end_of_last_block(self) -> int:
        """Return the limit to which the last block may grow after a restart."""
        entry = self._index.get(self._next - 1) if self._first < self._next else None
        if entry is None:
            return self._tail
        return min(entry.position + self._block_bytes, self._head + self._capacity_bytes)
