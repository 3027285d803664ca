"""The layout of a ring file, and the file mapped into memory.

There is one file per physical source: a header page, the SCN index, the data. This module
knows offsets and how a cell is stored. Which windows are in the ring is up to `ring` and
`reader`, and whether the content is sound is up to `recovery`.

    0        header page, 4096 bytes
    4096     SCN index: `index_slots` entries of 32 bytes (see `scn_index`)
    data_at  data, `capacity_bytes`; on a page boundary

The header page is little-endian; its first part never changes after creation:

    0    8s    magic
    8    I     layout version: 2; in version 1 the events had other CRCs and schema ids, see
               `upgrade`
    12   I     0x01020304, to detect another byte order
    16   Q     capacity_bytes
    24   Q     block_bytes
    32   Q     index_slots
    40   256s  name of the physical source, UTF-8, zero-filled
    296  I     CRC32 of bytes 0 to 296
    512        live cells, 8 bytes each (the numbers below are cell numbers)
    1024       two marks of the source's log (`schemas/log_mark.py`), 1024 bytes each, written
               in turn: length (I), CRC32 of the text (I), the text, which contains its SCN

Positions in the data are logical: they only grow, and position `p` is at byte
`data_at + p % capacity_bytes`. The data wraps byte by byte, so an event may wrap around the
end of the file.

A live cell is written with one aligned 8-byte store (a memoryview cast to "Q" compiles to
one `mov`; `struct` would write it byte by byte), so a reader in another process sees the old
number or the new one. Each cell that a restart depends on is followed by its complement,
which is written *before* it: a kill between the two stores, or a damaged byte, shows as a
pair that does not match.

Readers rely on the order of stores. It is program order on x86-64, for which this is built
and tested; `open_file` rejects other byte orders.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from databus.schemas.errors import RingCorruptError, RingError
from databus.schemas.event.v2 import Buffer
from databus.schemas.log_mark import LogMark

try:
    from databus.relay.ring._core import RingData
except ImportError:  # not built: `events` and `event_selector` do the work in Python
    RingData = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from databus.relay.ring._core import RingData as Core

PAGE_BYTES = 4096
MAX_BLOCKS = 65536  # bounds the index, and with it the time to check it at a restart
MASK = (1 << 64) - 1
UNKNOWN_SCN = -1
NEVER_SEALED = -1  # no CRC32 of a file of first SCNs
LARGE_BYTES = 2 << 20  # copies of at least this size, about a millisecond, release the GIL
UNASKED_BYTES = 1 << 20  # written on a lap before any page ahead is asked for
MOST_ASKED_BYTES = 16 << 20  # at a time, by a thread that ends with that
NEVER = 1 << 63  # no position

_STATIC = struct.Struct("<8sIIQQQ256s")
_CRC = struct.Struct("<I")
_MAGIC = b"DBUSRING"
_VERSION = 2
FORMER_VERSION = 1
_BYTE_ORDER = 0x01020304

# Live cells. Those marked with a star are pairs: number, complement.
TAIL = 64  # * logical offset of the next write; the last thing written
HEAD = 66  # * logical offset of the oldest window
FIRST = 68  # * number of the oldest index entry; points to head
NEXT = 70  # * number of the next index entry to be written
PREV_SCN = 72  # * newest SCN no longer held, if the ring is empty; else FIRST's entry has it
NEWEST_SCN = 74  # of the window that ends at tail
NEWEST_TIMESTAMP = 75
GENERATION = 76  # counts openings by a writer; positions from an earlier one may be stale
WRITER_PID = 77
UNSOUND = 78  # not 0 during a recovery
REPLACED = 79  # not 0 once another file replaces this one: resized or emptied
BOOT_ID = 80  # two cells: the boot of the machine in which the last writer opened the file
SOURCES = 82  # * generation of the writer, and CRC32 of its file of first SCNs: 32 bits each
RING_ID = 84  # * random: the same in a copy of another size, another one once it is emptied
PAIRS = (TAIL, HEAD, FIRST, NEXT, PREV_SCN)

_MARKS = (1024, 2048)
_MARK_BYTES = 1024
_MARK_HEAD = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Layout:
    """The part of the header that never changes."""

    name: str
    capacity_bytes: int
    block_bytes: int

    @classmethod
    def choose(cls, name: str, capacity_bytes: int, block_bytes: int | None) -> Layout:
        """Return the layout of a new ring.

        A block is the unit of eviction, and the most that a reader scans to find an SCN:
        32 KiB, less in a tiny ring, more in one over 2 GiB. Larger blocks make appending
        cheaper and each search slower.
        """
        if capacity_bytes < 64 or len(name.encode()) > 256:
            raise RingError(f"ring {name}: {capacity_bytes} bytes is not a valid capacity")
        chosen = block_bytes or max(min(32768, capacity_bytes // 64), capacity_bytes // MAX_BLOCKS)
        return cls(name, capacity_bytes, min(max(chosen, 64), capacity_bytes))

    @property
    def index_slots(self) -> int:
        """Number of entries that the index has room for.

        Two consecutive blocks are together longer than block_bytes, so there are at most
        twice as many blocks as blocks of that size would fit.
        """
        return 2 * (self.capacity_bytes // self.block_bytes) + 4

    @property
    def data_at(self) -> int:
        """Offset of the data in the file."""
        index_bytes = self.index_slots * 32
        return PAGE_BYTES + -(-index_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self.data_at + self.capacity_bytes

    def encode(self) -> bytes:
        """Return the first bytes of the header."""
        sizes = (self.capacity_bytes, self.block_bytes, self.index_slots)
        static = _STATIC.pack(_MAGIC, _VERSION, _BYTE_ORDER, *sizes, self.name.encode())
        return static + _CRC.pack(zlib.crc32(static))

    @staticmethod
    def version_of(page: bytes) -> int | None:
        """Return the layout version that a header names; None if it is not one of a ring."""
        if len(page) < PAGE_BYTES:
            return None
        magic, version, order, *_ = _STATIC.unpack_from(page)
        return version if (magic, order) == (_MAGIC, _BYTE_ORDER) else None

    @classmethod
    def decode(cls, path: Path, page: bytes, wanted_version: int = _VERSION) -> Layout:
        """Read the first bytes of a header; raises RingCorruptError."""
        if len(page) < PAGE_BYTES:
            raise RingCorruptError(str(path), f"the header is cut at byte {len(page)}")
        magic, version, order, capacity, block, slots, name = _STATIC.unpack_from(page)
        if magic != _MAGIC:
            raise RingCorruptError(str(path), "it is not a ring file")
        if order != _BYTE_ORDER:
            raise RingCorruptError(str(path), "written on a machine of another byte order")
        if version == FORMER_VERSION != wanted_version:
            raise RingCorruptError(str(path), "an earlier version wrote it: start the relay once")
        if version != wanted_version:
            raise RingCorruptError(str(path), f"layout version {version}, not {wanted_version}")
        if _CRC.unpack_from(page, _STATIC.size)[0] != zlib.crc32(page[: _STATIC.size]):
            raise RingCorruptError(str(path), "the header's checksum is wrong")
        layout = cls(name.rstrip(b"\0").decode(), capacity, block)
        if slots != layout.index_slots:
            raise RingCorruptError(str(path), f"{slots} index slots, not {layout.index_slots}")
        return layout


class EventBytes(Protocol):
    """Bytes of events: the data of a ring, or events elsewhere in memory.

    `core` does the work per event in compiled code; None if it was not built.
    """

    capacity_bytes: int
    core: Core | None

    def copy_out(self, position: int, length: int) -> bytes:
        """Copy bytes out of the data."""
        ...


class RingFile:
    """A ring file mapped into memory: cells by number, data by logical position.

    `core` does the work per event in compiled code; None if it was not built.
    """

    def __init__(self, path: Path, layout: Layout, fd: int, writable: bool) -> None:
        self.path = path
        self.layout = layout
        self.capacity_bytes = layout.capacity_bytes
        self.data_at = layout.data_at
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.mapping = mmap.mmap(fd, layout.file_bytes, access=access)
        self._bytes = memoryview(self.mapping)
        self._fixed = self._bytes[: self.data_at]
        self.cells = self._fixed.cast("Q")
        self._older_mark: int | None = None  # None until this writer has stored one
        self.core: Core | None = None
        if RingData is not None:
            self.core = RingData(self.mapping, self.data_at, self.capacity_bytes, writable)
        self.pages = PagesAhead(self.core, layout)

    def close(self) -> None:
        """Unmap the file; may be called twice."""
        self.pages.close()
        if self.core is not None:
            self.core.release()
        for view in (self.cells, self._fixed, self._bytes):
            view.release()
        self.mapping.close()

    def put(self, cell: int, value: int) -> None:
        """Store a pair: the complement, then the number."""
        self.cells[cell + 1] = ~value & MASK
        self.cells[cell] = value & MASK

    def is_sound(self, cell: int) -> bool:
        """Return whether a pair matches."""
        return self.cells[cell] ^ self.cells[cell + 1] == MASK

    def candidates(self, cell: int) -> set[int]:
        """Return the possible values of a pair: one if it is sound, otherwise two."""
        return {self.cells[cell], self.cells[cell + 1] ^ MASK}

    def scn(self, cell: int) -> int:
        """Return the SCN in a cell, or UNKNOWN_SCN."""
        value = self.cells[cell]
        return value if value < 1 << 63 else UNKNOWN_SCN

    def sources_crc(self) -> int | None:
        """Return the CRC32 of the last writer's file of first SCNs; NEVER_SEALED if it had none.

        None if it is not known: a writer of a version without such files came later, or it is
        damaged.
        """
        if not self.cells[SOURCES] and not self.cells[SOURCES + 1]:
            return NEVER_SEALED
        generation, crc = divmod(self.cells[SOURCES], 1 << 32)
        # A writer may have been killed after it stored it, before its generation began.
        later = (generation - self.cells[GENERATION]) % (1 << 32)
        return crc if self.is_sound(SOURCES) and later in (0, 1) else None

    def put_sources_crc(self, crc: int | None) -> None:
        """Store what `sources_crc` returns in this generation."""
        if crc is None:
            self.put(SOURCES, 0)  # of no generation
        elif crc != NEVER_SEALED:
            self._seal(crc, self.cells[GENERATION])

    def begin_generation(self) -> int | None:
        """Begin the generation of a new writer, with the same `sources_crc`; return that."""
        if not self.ring_id():  # the file of an earlier version
            self.put(RING_ID, _new_id())
        crc = self.sources_crc()
        if crc is not None and crc != NEVER_SEALED:
            self._seal(crc, self.cells[GENERATION] + 1)
        self.cells[GENERATION] += 1
        return crc

    def _seal(self, crc: int, generation: int) -> None:
        self.put(SOURCES, generation % (1 << 32) << 32 | crc)

    def ring_id(self) -> int:
        """Return the ring's id; 0 without one, in a ring of an earlier version."""
        return self.cells[RING_ID] if self.is_sound(RING_ID) else 0

    def marks(self) -> list[LogMark]:
        """Return the intact marks of the source's log, oldest first."""
        return sorted(mark for mark in map(self._mark, _MARKS) if mark is not None)

    def put_mark(self, mark: LogMark) -> None:
        """Store a mark of the source's log over the older one."""
        older = self._older_mark
        if older is None:
            older = min(_MARKS, key=lambda at: one.scn if (one := self._mark(at)) else UNKNOWN_SCN)
        self._older_mark = _MARKS[0] if older == _MARKS[1] else _MARKS[1]
        text = mark.encode().encode()[: _MARK_BYTES - _MARK_HEAD.size]
        # After a kill between the two stores the CRC does not match; the other mark remains.
        self.mapping[older : older + _MARK_HEAD.size] = _MARK_HEAD.pack(len(text), zlib.crc32(text))
        self.mapping[older + _MARK_HEAD.size : older + _MARK_HEAD.size + len(text)] = text

    def _mark(self, at: int) -> LogMark | None:
        length, crc = _MARK_HEAD.unpack_from(self.mapping, at)
        if not 0 < length <= _MARK_BYTES - _MARK_HEAD.size:
            return None
        text = self.mapping[at + _MARK_HEAD.size : at + _MARK_HEAD.size + length]
        if zlib.crc32(text) != crc:
            return None
        try:
            return LogMark.decode(text.decode("ascii", "replace"))
        except ValueError:
            return None

    def bytes_at(self, position: int, size: int) -> memoryview:
        """Return the bytes themselves, which do not wrap; to be released before `close`."""
        at = position % self.capacity_bytes + self.data_at
        return self._bytes[at : at + size]

    def copy_out(self, position: int, length: int) -> bytes:
        """Copy bytes out of the data; the range may wrap around its end."""
        if length >= LARGE_BYTES and self.core is not None:
            return self.core.copy_out(position, length)
        at = position % self.capacity_bytes + self.data_at
        end = self.layout.file_bytes
        if at + length <= end:
            return self.mapping[at : at + length]
        beyond = at + length - end
        return self.mapping[at:end] + self.mapping[self.data_at : self.data_at + beyond]

    def copy_in(self, position: int, data: Buffer) -> None:
        """Copy bytes into the data; the range may wrap around its end."""
        if position >= self.pages.due_at:
            self.pages.prepare(position)
        if len(data) >= LARGE_BYTES and self.core is not None:
            self.core.copy_in(position, data)
            return
        at = position % self.capacity_bytes + self.data_at
        room = self.layout.file_bytes - at
        if len(data) <= room:
            self.mapping[at : at + len(data)] = data
            return
        self.mapping[at : at + room] = data[:room]
        self.mapping[self.data_at : self.data_at + len(data) - room] = data[room:]


class PagesAhead:
    """The pages behind a ring's tail, made ready to be written before the writer gets there.

    The first store to each page of a mapping is a page fault: the system finds its place on disk,
    clears it and maps it, which may take longer than to encode the rows on it. After a lap all
    pages are mapped. Until then a thread asks for those ahead (MADV_POPULATE_WRITE, Linux 5.14 and
    later), which also costs less than a fault each. Elsewhere the writer meets the faults.

    They are memory that holds nothing yet. So there are never more of them than the ring has been
    given bytes since it was opened: a ring without traffic has none.

    The writer calls `prepare` when its position has reached `due_at`; the first one that it calls
    it with begins the lap. `core` is None if the compiled module was not built: nothing is due.
    """

    def __init__(self, core: Core | None, layout: Layout) -> None:
        self._core = core
        self._layout = layout
        self._begin: int | None = None
        self._asked = 0  # up to here
        self._thread: threading.Thread | None = None
        self.due_at = NEVER if core is None else 0

    def prepare(self, position: int) -> None:
        """Begin to make the next pages ready; do nothing while earlier ones are."""
        if self._begin is None:
            self._begin, self.due_at = position, position + UNASKED_BYTES
        if position < self.due_at or (self._thread is not None and self._thread.is_alive()):
            return
        lap_end = self._begin + self._layout.capacity_bytes
        begin = max(position, self._asked)
        end = min(position + min(position - self._begin, MOST_ASKED_BYTES), lap_end)
        self.due_at = NEVER if end == lap_end else (position + end) // 2
        if begin < end:
            self._asked = end
            name, range_ = f"ring-pages-{self._layout.name}", (begin, end - begin)
            self._thread = threading.Thread(None, self._populate, name, range_, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ask for nothing more; wait for what was asked for, which takes milliseconds."""
        self.due_at = NEVER
        if self._thread is not None:
            self._thread.join()

    def _populate(self, position: int, size_bytes: int) -> None:
        if self._core is not None and not self._core.populate(position, size_bytes):
            self.due_at = NEVER  # the system does not know the request


def open_file(path: Path, fd: int, writable: bool) -> RingFile:
    """Map an open ring file; raises RingCorruptError if its header is not valid.

    The file must be as long as its header says: access to a page beyond its end would kill
    the process (SIGBUS).
    """
    if sys.byteorder != "little":
        raise RingError(f"ring {path}: this machine is not little-endian")
    layout = Layout.decode(path, os.pread(fd, PAGE_BYTES, 0))
    size = os.fstat(fd).st_size
    if size < layout.file_bytes:
        if not writable:
            raise RingCorruptError(str(path), f"the file has {size} of {layout.file_bytes} bytes")
        _allocate(path, fd, layout.file_bytes)
    ring_file = RingFile(path, layout, fd, writable)
    if size < layout.file_bytes:
        ring_file.cells[UNSOUND] = 1
    return ring_file


def map_file(path: Path) -> RingFile:
    """Map a ring file to read it; raises RingCorruptError, or RingError if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            return open_file(path, fd, writable=False)
        finally:
            os.close(fd)
    except OSError as error:
        raise RingError(f"ring {path}: {error}") from error


def _new_id() -> int:
    """Return a random id, which is not 0."""
    return int.from_bytes(os.urandom(8), "little") | 1


def create_file(
    path: Path,
    fd: int,
    layout: Layout,
    start_scn: int,
    old: RingFile | None = None,
    *,
    is_copied: bool = True,
) -> None:
    """Fill an empty file with an empty ring: a new one, or one that replaces `old`.

    It has the id of `old` if that `is_copied` into it; otherwise its positions continue those.
    All disk blocks are allocated now: so a full disk is an error here, and does not kill the
    process when a window is written (SIGBUS).
    """
    _allocate(path, fd, layout.file_bytes)
    os.pwrite(fd, layout.encode(), 0)
    start_position = 0 if old is None or is_copied else old.cells[TAIL]
    cells = {TAIL: start_position, HEAD: start_position, FIRST: 0, NEXT: 0}
    cells[PREV_SCN] = start_scn & MASK
    cells[RING_ID] = old.ring_id() if old is not None and is_copied else _new_id()
    for cell, value in cells.items():
        os.pwrite(fd, struct.pack("<QQ", value, value ^ MASK), cell * 8)


def _allocate(path: Path, fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise RingError(
            f"ring {path}: cannot allocate {size} bytes of disk: {error}; make room for them, or "
            "lower ring_bytes of this physical source"
        ) from error
