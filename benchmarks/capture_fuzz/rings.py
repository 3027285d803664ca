"""Reads windows of a ring with the compiled code and with Python.

The ring is plain memory of just the size that is wanted, so that the sanitizer
sees a byte read beyond it, where a mapped file would end on a page.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from databus.relay.ring.event_selector import EventSelector, select_events
from databus.relay.ring.events import find_event, last_end, sound_windows, stamp_events
from databus.relay.ring.layout import RingFile
from databus.relay.ring.selection import Selection
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError
from databus.schemas.event.v2 import Buffer
from databus.schemas.filters import ModFilter

try:
    from databus.relay.ring._core import RingData
except ImportError:  # not built: both rings are looked at by Python
    RingData = None  # type: ignore[assignment,misc]

MOST_SLACK_BYTES = 64
MOST_STEPS = 10_000
Look = Callable[["MemoryRing"], Any]


class MemoryRing(RingFile):
    """The data of a ring, without a file; with or without the compiled code."""

    def __init__(self, capacity_bytes: int, *, is_compiled: bool) -> None:
        self.capacity_bytes = capacity_bytes
        self._memory = bytearray(capacity_bytes)
        self.core = None
        if is_compiled and RingData is not None:
            self.core = RingData(self._memory, 0, capacity_bytes, True)

    def close(self) -> None:
        """Release the memory."""
        if self.core is not None:
            self.core.release()

    def copy_out(self, position: int, length: int) -> bytes:
        """Copy bytes out of the data, around its end if necessary."""
        at = position % self.capacity_bytes
        first = bytes(self._memory[at : at + length])
        return first + bytes(self._memory[: length - len(first)])

    def copy_in(self, position: int, data: Buffer) -> None:
        """Copy bytes into the data, around its end if necessary."""
        at = position % self.capacity_bytes
        room = min(len(data), self.capacity_bytes - at)
        self._memory[at : at + room] = data[:room]
        self._memory[: len(data) - room] = data[room:]


def look_at(
    draw: random.Random, data: bytes, ways: Sequence[bool] = (False, True)
) -> Iterator[tuple[str, list[Any]]]:
    """Yield each query of a ring with these bytes, and both answers: Python's, compiled."""
    capacity_bytes = len(data) + draw.randrange(MOST_SLACK_BYTES)
    begin = draw.randrange(3 * capacity_bytes)
    rings = [MemoryRing(capacity_bytes, is_compiled=is_compiled) for is_compiled in ways]
    try:
        for ring in rings:
            ring.copy_in(begin, data)
        for name, look in _looks(draw, begin, begin + len(data)):
            yield name, [_answer(look, ring) for ring in rings]
    finally:
        for ring in rings:
            ring.close()


def _looks(draw: random.Random, begin: int, end: int) -> list[tuple[str, Look]]:
    scn, to_skip = (
        draw.choice((0, 1 << 40, 4294967296 + draw.randrange(200_000))),
        draw.randrange(3),
    )
    limit, room_bytes = draw.randrange(begin, end + 1), draw.choice((100, 1 << 20))
    src_ids = draw.choice((None, frozenset({1, 2})))
    filters = draw.choice(({}, {1: ModFilter(3, 0, 2)}))
    selection = Selection("fuzz", Checkpoint.at(1), src_ids, filters, wants_ddl=True)
    selector = EventSelector(selection, None)
    return [
        ("find_event", lambda ring: find_event(ring, begin, end, scn, to_skip)),
        ("last_end", lambda ring: last_end(ring, begin, end, limit)),
        ("sound_windows", lambda ring: [*map(tuple, sound_windows(ring, begin, end, 0))]),
        ("select", lambda ring: _selected(ring, begin, limit, end, selector, room_bytes)),
        ("stamp_events", lambda ring: _stamped(ring, begin, end)),
    ]


def _selected(
    ring: MemoryRing, begin: int, limit: int, end: int, selector: EventSelector, room_bytes: int
) -> Any:
    """Select up to a limit, in as many steps as needed; for damage return only the error's name."""
    found: list[bytes] = []
    position, place = begin, (-1, 0)
    try:
        while position < limit and len(found) < MOST_STEPS:
            selected = select_events(ring, position, limit, end, selector, place, room_bytes)
            found.append(selected.data)
            if selected.position == position:
                return b"".join(found), selected.overflow_bytes
            position, place = selected.position, (selected.scn, selected.offset)
    except DatabusError as error:
        return type(error).__name__
    return b"".join(found), position, place


def _stamped(ring: MemoryRing, begin: int, end: int) -> bytes:
    stamp_events(ring, begin, end, 77, 123_456_789)
    return ring.copy_out(begin, end - begin)


def _answer(look: Look, ring: MemoryRing) -> Any:
    try:
        return look(ring)
    except DatabusError as error:
        return type(error).__name__, str(error)
