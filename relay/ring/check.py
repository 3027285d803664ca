"""Check the bytes of a ring before they are read: a file at rest may have been damaged.

Bytes written since the ring was opened were never at rest. All older bytes are checked, a
block at a time, before any of them is returned: every CRC, and that the block holds exactly
the windows between its index entry and the next one. Ranges found sound are remembered.

In a damaged block events cannot be told apart after the first window that is not whole.
So reads are refused from that window to the end of the block. Windows before and after that
range are still served.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from threading import Lock
from typing import NamedTuple

from databus.daemon.log_setup import about
from databus.relay.ring.events import SoundWindow, sound_windows
from databus.relay.ring.layout import FIRST, HEAD, NEWEST_SCN, NEXT, TAIL, RingFile
from databus.relay.ring.scn_index import IndexEntry, ScnIndex
from databus.schemas.errors import DamagedWindowsError, RingCorruptError

log = logging.getLogger(__name__)


class Damage(NamedTuple):
    """A range that cannot be read: windows after `after_scn`, up to `until_scn`."""

    begin: int
    end: int
    after_scn: int
    until_scn: int


class Block(NamedTuple):
    """One block: its index entry, the next block's entry or None, and its end."""

    number: int
    entry: IndexEntry
    following: IndexEntry | None
    end: int


class RingCheck:
    """Checks one ring file from its opening on, and remembers the results. Thread-safe."""

    def __init__(self, ring_file: RingFile, index: ScnIndex) -> None:
        self._file = ring_file
        self._index = index
        self._cells = ring_file.cells
        self._lock = Lock()
        self.doubts = 0  # how often bytes were distrusted
        self._written_from: int = ring_file.cells[TAIL]
        self._begins: list[int] = []  # of the ranges found sound; `_ends` has their ends
        self._ends: list[int] = []
        self._damages: list[Damage] = []

    def damages(self) -> list[Damage]:
        """Return the damage found that is still in the ring, oldest first."""
        head: int = self._cells[HEAD]
        return sorted(damage for damage in self._damages if damage.end > head)

    def distrust(self, begin: int, end: int) -> None:
        """Forget the results for a range, so that it is checked again before it is read.

        Call it if another check has found damage, or if a consumer reads the same events a
        second time: they may have been damaged since they were written or checked.
        """
        with self._lock:
            self.doubts += 1
            self._forget(begin, min(end, self._cells[TAIL]))

    def reach(self, position: int, end: int) -> int:
        """Return the position between `position` and `end` up to which the bytes are sound.

        If that is not `end`, a whole window ends there. Raises DamagedWindowsError if the
        bytes at `position` are damaged, RingCorruptError if the index is. Bytes that the
        writer has overwritten are not checked; readers find that out from head.
        """
        at = position
        while at < end and at < self._written_from:
            known = self._known_until(at)
            if known is None:
                known = self._check_at(at)
            # Evicted while it was checked: the reader finds out from head.
            if known is None:
                return end
            if known <= at:
                return self._stop_at(position, at)
            at = known
        return end

    def block_reach(self, position: int, tail: int) -> int:
        """Return the end of the block of `position`, or the damage in it; raises as `reach`.

        Returns `tail` if everything from `position` on was written since the ring was opened.
        """
        if position >= self._written_from:
            return tail
        block = self._block_at(position)
        return tail if block is None else self.reach(position, min(block.end, tail))

    def check_block(self, number: int) -> int:
        """Check a block even if it was checked before; return its length, 0 if it was evicted."""
        entry = self._index.get(number)
        block = None if entry is None else self._block_at(entry.position)
        if block is None:
            if self._cells[FIRST] <= number < self._cells[NEXT] and entry is None:
                raise RingCorruptError(str(self._file.path), "its index is damaged")
            return 0
        self._verify(block)
        return block.end - block.entry.position

    def check_at(self, position: int) -> None:
        """Check the block of a position again; raises DamagedWindowsError if it is damaged."""
        block = self._block_at(position)
        if block is None:
            return
        self._verify(block)
        for damage in self.damages():
            if block.entry.position <= damage.begin < block.end:
                raise self.error(damage)

    def _stop_at(self, position: int, at: int) -> int:
        if at > position:
            return at
        found = next((d for d in self.damages() if d.begin <= at < d.end), None)
        if found is None:  # overwritten meanwhile
            return at
        raise self.error(found)

    def error(self, damage: Damage) -> DamagedWindowsError:
        """Return the error that reports a damage."""
        layout = self._file.layout
        return DamagedWindowsError(
            str(self._file.path),
            layout.name,
            (damage.after_scn, damage.until_scn),
            layout.data_at + damage.begin % layout.capacity_bytes,
        )

    def _known_until(self, position: int) -> int | None:
        """Return the end of the sound range around `position`, `position` in damage, or None."""
        with self._lock:
            number = bisect_right(self._begins, position) - 1
            if number >= 0 and position < self._ends[number]:
                return self._ends[number]
            is_damaged = any(d.begin <= position < d.end for d in self._damages)
        return position if is_damaged else None

    def _check_at(self, position: int) -> int | None:
        block = self._block_at(position)
        if block is None:
            return None
        self._verify(block)
        return self._known_until(position)

    def _block_at(self, position: int) -> Block | None:
        """Return the block that contains a position; None if it is not in the ring any more."""
        cells, index = self._cells, self._index
        while True:
            first, end, tail = cells[FIRST], cells[NEXT], cells[TAIL]
            if position < cells[HEAD] or position >= tail or first == end:
                return None
            number = index.find_position(position, first, end)
            entry = index.get(number)
            following = index.get(number + 1) if number + 1 < end else None
            # Read after the entries: these may have been replaced while they were read.
            if cells[FIRST] > number or cells[HEAD] > position:
                return None
            is_whole = entry is not None and entry.position <= position
            if following is None and number + 1 < end:
                is_whole = False
            if entry is None or not is_whole:
                raise RingCorruptError(str(self._file.path), "its index is damaged")
            if following is not None and following.position >= tail:  # not published yet
                following = None
            stop = tail if following is None else following.position
            # Otherwise the writer has added an entry meanwhile: find the position again.
            if position < stop:
                return Block(number, entry, following, stop)

    def _verify(self, block: Block) -> None:
        entry, following = block.entry, block.following
        newest = self._file.scn(NEWEST_SCN)
        first: SoundWindow | None = None
        last: SoundWindow | None = None
        for window in sound_windows(self._file, entry.position, block.end, entry.prev_scn):
            first, last = first or window, window
        # Evicted during the walk: what was read may be newer bytes.
        if self._cells[HEAD] > entry.position:
            return
        is_first = first is not None and first.scn == entry.scn
        sound_end = last.end if last is not None and is_first else entry.position
        scn = last.scn if last is not None and is_first else entry.prev_scn
        is_all = sound_end == block.end and (following is None or following.prev_scn == scn)
        with self._lock:
            if is_all:
                self._note_sound(entry.position, block.end)
                return
            if sound_end == block.end:  # whole windows, but other ones than the index names
                sound_end, scn = entry.position, entry.prev_scn
            self._note_sound(entry.position, sound_end)
            until_scn = newest if following is None else following.prev_scn
            self._note_damage(Damage(sound_end, block.end, scn, until_scn))

    def _note_sound(self, begin: int, end: int) -> None:
        end = min(end, self._written_from)
        if begin >= end:
            return
        low = bisect_right(self._begins, begin)
        if low and self._ends[low - 1] >= begin:
            low -= 1
        high = bisect_right(self._begins, end)
        if low < high:
            begin = min(begin, self._begins[low])
            end = max(end, self._ends[high - 1])
        self._begins[low:high], self._ends[low:high] = [begin], [end]

    def _note_damage(self, damage: Damage) -> None:
        if damage in self._damages:
            return
        head = self._cells[HEAD]
        self._damages = [d for d in self._damages if d.end > head and d.begin != damage.begin]
        self._damages.append(damage)
        self._forget(damage.begin, damage.end)

    def _forget(self, begin: int, end: int) -> None:
        """Remove a range from the sound ones; bytes written since the opening stay sound."""
        if end > self._written_from:
            written_from, self._written_from = self._written_from, end
            self._note_sound(written_from, begin)
        self._cut_sound(begin, end)

    def _cut_sound(self, cut_begin: int, cut_end: int) -> None:
        stretches = list(zip(self._begins, self._ends, strict=True))
        self._begins.clear()
        self._ends.clear()
        for begin, end in stretches:
            for low, high in ((begin, min(end, cut_begin)), (max(begin, cut_end), end)):
                if low < high:
                    self._begins.append(low)
                    self._ends.append(high)


def windows_that_fit(ring_file: RingFile, capacity_bytes: int) -> tuple[int, int, str]:
    """Return the begin of the newest whole blocks that fit, the SCN before them, and any damage.

    Blocks before damage are left out, so that no consumer reads across it unnoticed.
    """
    cells = ring_file.cells
    index = ScnIndex(cells, ring_file.layout.index_slots, ring_file.core)
    check = RingCheck(ring_file, index)
    tail = position = cells[TAIL]
    prev_scn = ring_file.scn(NEWEST_SCN)
    for number in range(cells[NEXT] - 1, cells[FIRST] - 1, -1):
        entry = index.get(number)
        if entry is None or tail - entry.position > capacity_bytes:
            break
        check.check_block(number)
        if found := check.damages():
            damage = f"{check.error(found[0])}; of another size, it begins behind that"
            log.warning("%s", damage, extra=about(physical_source=ring_file.layout.name))
            return position, prev_scn, damage
        position, prev_scn = entry.position, entry.prev_scn
    return position, prev_scn, ""
