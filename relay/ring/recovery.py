"""Recover the state of a ring file when a writer opens it.

The last writer may have been killed between any two stores, and its machine may have gone
down before any page of the file was written. There are two cases:

* All the bookkeeping is sound: pairs match, every index entry is whole and points to an
  event of its SCN, and the machine has not restarted since. Then only the newest part is
  walked with its CRCs up to tail: 16 MiB, and at least two blocks. The rest was written
  before it, and nobody but a writer writes.
* Something is not sound. Then the whole ring is walked from head with its CRCs, and the
  index is rebuilt. The ring ends at the last whole window before the damage. If tail itself
  is damaged, the ring ends where whole windows with rising SCNs end: a window of an earlier
  lap has a lower SCN.

Dropped bytes are overwritten with zeros, so that no later walk takes them for windows.
Windows dropped at the end are captured again, from the ring's newest SCN. UNSOUND is set
during a recovery, so that a recovery that is killed starts over; each step keeps what the
next attempt needs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from databus.relay.ring.events import SoundWindow, scn_at, sound_windows
from databus.relay.ring.layout import (
    BOOT_ID,
    FIRST,
    HEAD,
    MASK,
    NEWEST_SCN,
    NEWEST_TIMESTAMP,
    NEXT,
    PAIRS,
    PREV_SCN,
    TAIL,
    UNSOUND,
    RingFile,
)
from databus.relay.ring.scn_index import IndexEntry, ScnIndex
from databus.schemas.errors import RingCorruptError

_ZEROS_BYTES = 1 << 20  # written at once
_CHECKED_BYTES = 16 << 20  # at every restart, in a fraction of a second


class RingState(NamedTuple):
    """The state from which a writer continues. An SCN is UNKNOWN_SCN if there is none.

    `dropped` describes what the file no longer holds; "" if nothing was dropped.
    """

    first: int
    next: int
    head: int
    tail: int
    prev_scn: int
    newest_scn: int
    newest_timestamp_ns: int
    dropped: str = ""


def recover(ring_file: RingFile, boot_id: tuple[int, int] | None = None) -> RingState:
    """Return the state of the ring, and repair its cells and index to match.

    Raises RingCorruptError if neither cells nor index show what the ring held. `boot_id`
    identifies the current boot of the machine; tests pass another one.
    """
    now = boot_id or read_boot_id()
    index = ScnIndex(ring_file.cells, ring_file.layout.index_slots, ring_file.core)
    state = _passed_over(ring_file, index) or _quick_check(ring_file, index, now)
    if state is None:
        ring_file.cells[UNSOUND] = 1
        heads, tails = ring_file.candidates(HEAD), ring_file.candidates(TAIL)
        state = _full_check(ring_file, index)
        state = state._replace(dropped=_dropped(ring_file, state, heads, tails))
    _store(ring_file, state)
    ring_file.cells[BOOT_ID], ring_file.cells[BOOT_ID + 1] = now
    ring_file.cells[UNSOUND] = 0
    return state


def _dropped(ring_file: RingFile, state: RingState, heads: set[int], tails: set[int]) -> str:
    """Return a description of the loss, given the possible former heads and tails; or ""."""
    if state.head in heads and state.tail in tails:
        return ""
    at = ring_file.data_at + state.tail % ring_file.capacity_bytes
    lost = f"what followed scn {state.newest_scn} is dropped, and captured again from there"
    if state.tail in tails:
        at = ring_file.data_at + min(heads) % ring_file.capacity_bytes
        lost = (
            f"what it had up to scn {state.prev_scn} is dropped: consumers that are not "
            "past it need a bootstrap server"
        )
    return (
        f"ring {ring_file.path} is not whole at byte {at} (damaged, or the machine went down): "
        f"{lost}"
    )


def read_boot_id() -> tuple[int, int]:
    """Return the id of the machine's current boot, in two halves; zeros if there is none."""
    try:
        number = uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).int
    except (OSError, ValueError):
        return 0, 0
    return number >> 64, number & MASK


def _quick_check(ring_file: RingFile, index: ScnIndex, now: tuple[int, int]) -> RingState | None:
    """Return the state if the whole bookkeeping is consistent, otherwise None."""
    cells = ring_file.cells
    # After a restart of the machine, pages may be missing that the kernel had not written.
    if cells[UNSOUND] or now == (0, 0) or (cells[BOOT_ID], cells[BOOT_ID + 1]) != now:
        return None
    if not all(ring_file.is_sound(pair) for pair in PAIRS):
        return None
    first, end, tail = cells[FIRST], cells[NEXT], cells[TAIL]
    entries = _live_entries(ring_file, index, first, end, tail)
    if entries is None:
        return None
    if end - first > len(entries):  # killed after writing an entry, before publishing its window
        index.wipe(end - 1)
    if not entries:
        prev_scn = ring_file.scn(PREV_SCN)
        newest_timestamp_ns = cells[NEWEST_TIMESTAMP]
        return RingState(first, first, tail, tail, prev_scn, prev_scn, newest_timestamp_ns)
    anchor = _anchor(entries, tail)
    windows = list(sound_windows(ring_file, anchor.position, tail, anchor.prev_scn))
    if not windows or windows[-1].end != tail:
        return None
    window = windows[-1]
    head, prev_scn = entries[0].position, entries[0].prev_scn
    end = first + len(entries)
    return RingState(first, end, head, tail, prev_scn, window.scn, window.timestamp_ns)


def _passed_over(ring_file: RingFile, index: ScnIndex) -> RingState | None:
    """Return the state behind a window that only the relay log has; None if it was another kill.

    Killed when its tail was behind the window, but its first block was not yet.
    """
    cells, end, tail = ring_file.cells, ring_file.cells[NEXT], ring_file.cells[TAIL]
    if not all(map(ring_file.is_sound, (HEAD, TAIL, NEXT))) or cells[HEAD] != tail:
        return None
    entry = index.get(end - 1) if end and end - 1 in ring_file.candidates(FIRST) else None
    if entry is None or entry.position >= tail:
        return None
    return RingState(end, end, tail, tail, entry.scn, entry.scn, cells[NEWEST_TIMESTAMP])


def _anchor(entries: list[IndexEntry], tail: int) -> IndexEntry:
    """Return the entry at which the check of the newest part starts."""
    for entry in entries[:-2]:
        if tail - entry.position <= _CHECKED_BYTES:
            return entry
    return entries[-2:][0]


def _live_entries(
    ring_file: RingFile, index: ScnIndex, first: int, end: int, tail: int
) -> list[IndexEntry] | None:
    """Return the entries of published windows; None if one of them is wrong."""
    if not 0 <= end - first <= ring_file.layout.index_slots:
        return None
    entries: list[IndexEntry] = []
    for number in range(first, end):
        entry = index.get(number)
        if entry is None:
            return None
        # The entry of a window that was not published is the last one, and begins at tail.
        if entry.position >= tail:
            return entries if entry.position == tail and number == end - 1 else None
        if entries and not entries[-1].position < entry.position:
            return None
        entries.append(entry)
    if entries and tail - entries[0].position > ring_file.capacity_bytes:
        return None
    return entries if all(_points_to_its_scn(ring_file, entry) for entry in entries) else None


def _points_to_its_scn(ring_file: RingFile, entry: IndexEntry) -> bool:
    return scn_at(ring_file, entry.position) == entry.scn


def _full_check(ring_file: RingFile, index: ScnIndex) -> RingState:
    """Walk the whole ring and rebuild its index."""
    for number, entry in _possible_heads(ring_file, index):
        limit = _limit(ring_file, entry)
        windows = sound_windows(ring_file, entry.position, limit, entry.prev_scn)
        first_window = next(windows, None)
        if first_window is not None and first_window.scn == entry.scn:
            # Stored now: a recovery that is killed after this begins at this window, too.
            ring_file.put(PREV_SCN, entry.prev_scn)
            ring_file.put(FIRST, number)
            ring_file.put(NEXT, number + 1)
            ring_file.put(HEAD, entry.position)
            return _reindex(ring_file, index, number, entry, first_window, windows)
    return _nothing_left(ring_file, index)


def _possible_heads(ring_file: RingFile, index: ScnIndex) -> Iterator[tuple[int, IndexEntry]]:
    """Yield the index entries, oldest first, starting at the one that FIRST names."""
    slots = ring_file.layout.index_slots
    heads = ring_file.candidates(HEAD)
    found = {n: entry for n in ring_file.candidates(FIRST) if (entry := index.get(n))}
    # If FIRST is damaged, both its readings may be valid entries; head shows which is right.
    first = [n for n, entry in found.items() if entry.position in heads] or list(found)
    start = min(first or ring_file.candidates(FIRST))
    for number in range(start, start + slots):
        entry = index.get(number)
        if entry is not None:
            yield number, entry


def _limit(ring_file: RingFile, head: IndexEntry) -> int:
    """Return the limit of a walk from `head`: tail, or one lap if its cells name none.

    Whole windows may lie beyond tail that were written there, but never handed over.
    """
    end = head.position + ring_file.capacity_bytes
    if ring_file.is_sound(TAIL):
        return min(ring_file.cells[TAIL], end)
    # Killed between the two stores, or damaged.
    return max((at for at in ring_file.candidates(TAIL) if head.position < at <= end), default=end)


def _reindex(
    ring_file: RingFile,
    index: ScnIndex,
    first: int,
    head: IndexEntry,
    window: SoundWindow,
    windows: Iterator[SoundWindow],
) -> RingState:
    """Rebuild the index up to the last window, one entry per block as in `Ring.append`."""
    entries = [head]
    block_end = head.position + max(ring_file.layout.block_bytes, window.end - window.start)
    for following in windows:
        if following.end > block_end:
            entries.append(IndexEntry(following.scn, following.start, window.scn))
            size = following.end - following.start
            block_end = following.start + max(ring_file.layout.block_bytes, size)
        window = following
    # The first entry stays throughout: a killed recovery starts over from it.
    _wipe_all_but(ring_file, index, first)
    for number, entry in enumerate(entries[1:], first + 1):
        index.put(number, entry)
    _write_zeros(ring_file, window.end, head.position + ring_file.capacity_bytes)
    end = first + len(entries)
    scns = head.prev_scn, window.scn
    return RingState(first, end, head.position, window.end, *scns, window.timestamp_ns)


def _nothing_left(ring_file: RingFile, index: ScnIndex) -> RingState:
    """Return the state of a ring without a whole window: empty, but with a known SCN."""
    ends = ring_file.candidates(FIRST) & ring_file.candidates(NEXT)
    positions = ring_file.candidates(HEAD) & ring_file.candidates(TAIL)
    heads = next(_possible_heads(ring_file, index), None)
    if heads is not None:
        number, (_, position, scn) = heads
        _write_zeros(ring_file, position, position + ring_file.capacity_bytes)
        _wipe_all_but(ring_file, index, number)
    elif ring_file.is_sound(PREV_SCN) and ends and positions:
        number, position, scn = max(ends), max(positions), ring_file.scn(PREV_SCN)
    else:
        raise RingCorruptError(str(ring_file.path), "both its cells and its index are damaged")
    return RingState(number, number, position, position, scn, scn, 0)


def _wipe_all_but(ring_file: RingFile, index: ScnIndex, kept: int) -> None:
    for number in range(kept + 1, kept + ring_file.layout.index_slots):
        index.wipe(number)


def _write_zeros(ring_file: RingFile, start: int, end: int) -> None:
    """Overwrite [start, end) with zeros, up to the last position that an old tail names."""
    # Beyond every possible tail nothing was ever published in this lap.
    tails = [tail for tail in ring_file.candidates(TAIL) if start < tail <= end]
    end = max(tails, default=start)
    while start < end:
        length = min(_ZEROS_BYTES, end - start)
        ring_file.copy_in(start, bytes(length))
        start += length


def _store(ring_file: RingFile, state: RingState) -> None:
    ring_file.put(PREV_SCN, state.prev_scn)
    ring_file.put(FIRST, state.first)
    ring_file.put(NEXT, state.next)
    ring_file.put(HEAD, state.head)
    ring_file.cells[NEWEST_SCN] = state.newest_scn & MASK
    ring_file.cells[NEWEST_TIMESTAMP] = state.newest_timestamp_ns
    ring_file.put(TAIL, state.tail)
