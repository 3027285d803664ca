"""Packs: rows of a table as columns, as a bootstrap store keeps them and sends them.

A pack has the rows of a range of ids of one store's table, in the order of their ids, all of one
schema version. The values of each column are in one piece, in the layout of Arrow's columnar
format, so that a reader of columns decodes nothing. The columns are compressed together: reading
and sending them costs a server more than compressing them once, and a reader unpacks them faster
than it receives them. Before a pack comes a list of its rows that have changed since, which a
reader leaves out: their events follow the packs.

    0   8   MAGIC
    8   4   the CRC of all that follows, up to the pack
    12  4   number of rows to leave out
    16  4   bytes of the header
    20  4   zero
    24  8   bytes of the compressed columns
    32      rows to leave out: their places in the pack, 4 bytes each, ascending
            the header, JSON
            a zstd frame: the columns, each buffer filled up to a multiple of 64 bytes

Numbers are little-endian, as Arrow's are. The header tells whose rows the pack has, and the CRC of
the frame (`event_crc`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError, frame_content_size

from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc

MAGIC: Final = b"\xdbpack\x00\x00\x02"  # no event begins so; the last byte is the format's version
TAKES: Final = "zstd"  # of a request whose sender takes packs of this version
MOST_COLUMN_BYTES: Final = 256 << 20  # of a pack that is unpacked
_LEVEL: Final = 1
_BEGIN: Final = struct.Struct("<8sIIIIQ")
_CHECKED_AT: Final = 12
_ALIGNMENT: Final = 64

Buffer = bytes | bytearray | memoryview
Buffers = tuple[Buffer | None, Buffer | None, Buffer]  # validity, offsets, values of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class PackHead:
    """Whose rows a pack has: those with ids in (`after_id`, `until_id`] of a store's table.

    `scn` is the highest of the rows' SCNs. `sizes`: the bytes of each column's three buffers, in
    the order of the schema, and at last of the rows' SCNs; 0 = it has none. `frame_bytes`
    and `crc` are those of the frame that has all of them. `ids_crc`: of the rows' ids, which the
    store alone has; 0 when there is a row of each id.
    """

    store: str
    src_id: int
    digest: str  # of the rows' schema version, as hex
    after_id: int
    until_id: int
    scn: int
    rows: int
    sizes: tuple[tuple[int, int, int], ...]
    frame_bytes: int
    crc: int
    ids_crc: int = 0

    @property
    def columns_bytes(self) -> int:
        """The bytes of all columns, each buffer filled up."""
        return sum(size + -size % _ALIGNMENT for sizes in self.sizes for size in sizes)

    def to_json(self) -> bytes:
        """Return the header's bytes."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> PackHead:
        """Return the head; raises ProtocolError."""
        try:
            values: dict[str, Any] = json.loads(data)
            sizes = tuple((_size(a), _size(b), _size(c)) for a, b, c in values.pop("sizes"))
            head = cls(sizes=sizes, **values)
            texts, numbers = (head.store, head.digest), (head.src_id, head.scn, head.rows, head.crc)
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("a text is none")
            bytes.fromhex(head.digest)
            for number in (*numbers, head.frame_bytes, head.ids_crc):
                _size(number)
            if not 0 < head.rows <= _size(head.until_id) - _size(head.after_id):
                raise ValueError("more rows than ids")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"the header of a pack cannot be read: {error}") from error
        return head


def _size(number: object) -> int:
    if type(number) is not int or number < 0:
        raise TypeError(f"{number!r} is no number that it can have")
    return number


class Pack(NamedTuple):
    """A received pack: `columns` has the buffers of each column, and at last of the SCNs."""

    head: PackHead
    left_out: memoryview  # of 4-byte numbers
    columns: list[Buffers]


def join_columns(columns: Sequence[Buffers]) -> tuple[bytes, tuple[tuple[int, int, int], ...]]:
    """Return the bytes of columns, which `compress` takes, and their sizes for a head."""
    parts: list[Buffer] = []
    sizes = []
    for buffers in columns:
        lengths = [0 if buffer is None else len(buffer) for buffer in buffers]
        sizes.append((lengths[0], lengths[1], lengths[2]))
        for buffer, length in zip(buffers, lengths, strict=True):
            if buffer is not None:
                parts += (buffer, bytes(-length % _ALIGNMENT))
    return b"".join(parts), tuple(sizes)


def compress(columns: bytes) -> bytes:
    """Return the frame of joined columns."""
    return ZstdCompressor(level=_LEVEL).compress(columns)


def beginning(head: PackHead, left_out: Sequence[int]) -> bytes:
    """Return what is sent before a pack's frame."""
    header = head.to_json()
    rest = struct.pack(f"<{len(left_out)}I", *left_out) + header
    numbers = len(left_out), len(header), 0, head.frame_bytes
    crc = event_crc(_BEGIN.pack(MAGIC, 0, *numbers)[_CHECKED_AT:] + rest)
    return _BEGIN.pack(MAGIC, crc, *numbers) + rest


def check_frame(head: PackHead, frame: Buffer) -> None:
    """Raise ProtocolError unless these are the bytes of the frame of a head."""
    if len(frame) != head.frame_bytes or event_crc(frame) != head.crc:
        raise ProtocolError(f"the columns of rows {head.after_id} to {head.until_id} do not match")


def _unpacked(head: PackHead, frame: Buffer) -> memoryview:
    """Return the columns in a frame that was checked."""
    size, what = head.columns_bytes, f"the columns of rows {head.after_id} to {head.until_id}"
    if size > MOST_COLUMN_BYTES:
        raise ProtocolError(f"{what} have {size} bytes; {MOST_COLUMN_BYTES} are the most")
    try:
        # Room is made for the size that the frame itself says.
        if (found := frame_content_size(frame)) != size:
            raise ProtocolError(f"{what} have {found} bytes, and another size, {size}, in the head")
        return memoryview(ZstdDecompressor().decompress(frame))
    except ZstdError as error:
        raise ProtocolError(f"{what} cannot be unpacked: {error}") from error


def begins_with_pack(data: memoryview) -> bool:
    """Return whether an answer, or the rest of one, begins with a pack."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def packs_in(data: memoryview) -> Iterator[tuple[Pack, int]]:
    """Yield the packs at the beginning of an answer, each with the place where it ends.

    Raises ProtocolError for a pack that is not whole, or damaged.
    """
    at = 0
    while begins_with_pack(data[at:]):
        pack, at = _read(data, at)
        yield pack, at


def _read(data: memoryview, at: int) -> tuple[Pack, int]:
    if len(data) - at < _BEGIN.size:
        raise ProtocolError("the answer ends within a pack", at)
    _, crc, count, header_bytes, _, frame_bytes = _BEGIN.unpack_from(data, at)
    header_at = at + _BEGIN.size + 4 * count
    frame_at = header_at + header_bytes
    end = frame_at + frame_bytes
    if end > len(data):
        raise ProtocolError("the answer ends within a pack", at)
    if event_crc(data[at + _CHECKED_AT : frame_at]) != crc:
        raise ProtocolError("a pack's header CRC does not match", at)
    head = PackHead.from_json(bytes(data[header_at:frame_at]))
    left_out = data[at + _BEGIN.size : header_at].cast("I")
    if any(a >= b for a, b in pairwise([-1, *left_out, head.rows])):
        raise ProtocolError("rows to leave out are not in the pack, or not in order", at)
    frame = data[frame_at:end]
    check_frame(head, frame)
    return Pack(head, left_out, list(_cut(head, _unpacked(head, frame)))), end


def _cut(head: PackHead, columns: memoryview) -> Iterator[Buffers]:
    place = 0
    for sizes in head.sizes:
        found: list[memoryview | None] = []
        for size in sizes:
            found.append(columns[place : place + size] if size else None)
            place += size + -size % _ALIGNMENT
        valid, offsets, values = found
        # A column of empty texts has no values.
        yield valid, offsets, values if values is not None else columns[:0]
