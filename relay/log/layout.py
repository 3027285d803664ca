"""The bytes of a segment, one file of a relay log. Pure.

    header     2048 bytes: the ring that the log follows, and where the segment begins
    frames     a header of 96 bytes and whole version 2 events, compressed or not
    index      one entry of 56 bytes for each frame        } only once the segment is sealed:
    GTIDs      which frames have which (gtids/)            } nothing is written after that
    footer     96 bytes                                    }

All numbers are little-endian; the events keep their own byte order. Every byte is covered by a
CRC32 (zlib's).

Positions are offsets in the log's events as they are before compression. They begin at 0 and
only grow, from segment to segment too; a log that begins anew begins at 0 again.

A frame has whole windows. A window larger than a frame has several of its own: all but the last
have the flag GOES_ON, and `first_offset` counts the window's events before the frame. A segment
begins and ends with whole windows.

Each frame says what came before it: its position, and the SCN of the last whole window. So a
frame that is missing, repeated or in another's place is noticed. It also says how much of the file
was on disk when it was written: what is not whole before that is damaged, and after it torn.

A frame's header is a skippable frame of zstd (RFC 8878, 3.1.2): compressed frames are, with their
headers, one stream of zstd, which is sent to clients as it lies on disk.
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zlib import crc32

from databus.schemas.errors import RelayLogDamagedError
from databus.schemas.log_mark import LogMark

VERSION = 3
UNKNOWN_SCN = -1

# Header: magic, version, header bytes, ring id, position of the first event, newest SCN before
# the segment, first SCN, its commit time (ns), newest commit time before the segment (ns),
# creation time (ns), lengths of the name and of the mark; then, at fixed offsets, the name of the
# physical source and the mark of its log; at the end, the CRC32 of all before it.
_HEADER = struct.Struct("<8sIIQQqqqqqHH")
_HEADER_MAGIC = b"DBUSRLOG"
HEADER_BYTES = 2048
_NAME_AT, _NAME_BYTES = 512, 256
_MARK_AT, _MARK_BYTES = 1020, 1024
_CRC = struct.Struct("<I")

# Frame: magic of a skippable frame of zstd, bytes of the header after this number; flags, bytes in
# the file, bytes of events, events of the first window before the frame, CRC32 of the bytes in the
# file; first SCN, last SCN, SCN of the last whole window before
# the frame, commit times (ns) of the first and the last window, the newest commit time of the log
# up to the frame's end, position, offset in the file up to which it was synced before the frame was
# written; CRC32 of the fields before it.
_FRAME = struct.Struct("<8sIIIII qqqqqqQQ")
FRAME_HEADER_BYTES = _FRAME.size + _CRC.size
# One of zstd's 16 magic numbers for what is no data of zstd's.
FRAME_MAGIC = struct.pack("<II", 0x184D2A5D, FRAME_HEADER_BYTES - 8)
COMPRESSED = 1
GOES_ON = 2
_FLAGS = COMPRESSED | GOES_ON

# Index entry: first SCN, SCN of the last whole window before, commit time of the first window,
# newest commit time up to the frame's end (ns), position, offset in the file, events of the first
# window before the frame, flags.
_ENTRY = struct.Struct("<qqqqQQII")
ENTRY_BYTES = _ENTRY.size

# Footer: magic, offset and number of the index entries, position of the end, last SCN, its commit
# time, newest commit time of the log (ns), time of sealing (ns), offset and size of the index of
# GTIDs, CRC32 of the index, size and CRC32 of the list that the index of GTIDs ends with; CRC32 of
# the fields before it. A segment that was sealed before there was such an index has sizes of 0.
_FOOTER = struct.Struct("<8sQQQqqqqQQIII")
_FOOTER_MAGIC = b"DBUSRLND"
FOOTER_BYTES = _FOOTER.size + _CRC.size

_NAME = re.compile(r"(?P<scn>\d{19})-\d{4}-\d{2}-\d{2}T\d{2}Z\.segment")
_LAST_S = 253_402_300_799  # the last second of year 9999


class SegmentHeader(NamedTuple):
    """The header: whose log this is, and where in it the segment begins."""

    source: str
    ring_id: int
    position: int
    prev_scn: int
    first_scn: int
    first_timestamp_ns: int
    newest_timestamp_ns: int
    created_ns: int
    mark: LogMark | None

    @property
    def name(self) -> str:
        """The name of the file: sorts by SCN, and shows the hour of the first commit in UTC."""
        first_s = min(max(self.first_timestamp_ns // 1_000_000_000, 0), _LAST_S)
        return f"{self.first_scn:019d}-{datetime.fromtimestamp(first_s, UTC):%Y-%m-%dT%H}Z.segment"

    def encode(self) -> bytes:
        """Return the bytes of the header."""
        name = self.source.encode()
        mark = b"" if self.mark is None else self.mark.encode().encode()
        if len(mark) > _MARK_BYTES:
            mark = b""  # no source has such marks; without one the ring's id has to do
        header = bytearray(HEADER_BYTES)
        sizes = len(name), len(mark)
        _HEADER.pack_into(header, 0, _HEADER_MAGIC, VERSION, HEADER_BYTES, *self[1:8], *sizes)
        header[_NAME_AT : _NAME_AT + len(name)] = name
        header[_MARK_AT : _MARK_AT + len(mark)] = mark
        _CRC.pack_into(header, HEADER_BYTES - _CRC.size, crc32(header[: -_CRC.size]))
        return bytes(header)

    @classmethod
    def decode(cls, path: str, data: bytes) -> SegmentHeader:
        """Read a header; raises RelayLogDamagedError."""
        if len(data) < HEADER_BYTES:
            raise RelayLogDamagedError(path, f"the header is cut at byte {len(data)}")
        fields: tuple[Any, ...] = _HEADER.unpack_from(data)
        magic, version, name_bytes, mark_bytes = *fields[:2], *fields[10:]
        if magic != _HEADER_MAGIC:
            raise RelayLogDamagedError(path, "it is not a segment of a relay log")
        if version != VERSION:
            raise RelayLogDamagedError(path, f"version {version} of the format, not {VERSION}")
        crc: int = _CRC.unpack_from(data, HEADER_BYTES - _CRC.size)[0]
        if crc != crc32(data[: HEADER_BYTES - _CRC.size]):
            raise RelayLogDamagedError(path, "the header's checksum is wrong")
        mark = data[_MARK_AT : _MARK_AT + mark_bytes].decode("ascii")
        name = data[_NAME_AT : _NAME_AT + name_bytes].decode()
        return cls._make((name, *fields[3:10], LogMark.decode(mark) if mark else None))


class FrameHeader(NamedTuple):
    """The header of a frame, without its checksums."""

    flags: int
    stored_bytes: int
    plain_bytes: int
    first_offset: int
    data_crc: int
    first_scn: int
    last_scn: int
    prev_scn: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    newest_timestamp_ns: int
    position: int
    synced: int

    @property
    def goes_on(self) -> bool:
        """Whether the last window has more events, in the next frame."""
        return bool(self.flags & GOES_ON)

    @property
    def end(self) -> int:
        """Position of its end."""
        return self.position + self.plain_bytes

    def encode(self) -> bytes:
        """Return the bytes of the header."""
        fields = _FRAME.pack(FRAME_MAGIC, *self)
        return fields + _CRC.pack(crc32(fields))

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> FrameHeader | None:
        """Read a header; None if none begins there whose checksum is right."""
        if len(data) - at < FRAME_HEADER_BYTES:
            return None
        magic, *fields = _FRAME.unpack_from(data, at)
        crc: int = _CRC.unpack_from(data, at + _FRAME.size)[0]
        if magic != FRAME_MAGIC or crc != crc32(data[at : at + _FRAME.size]):
            return None
        return cls(*fields) if not fields[0] & ~_FLAGS else None


class IndexEntry(NamedTuple):
    """What the index has of one frame; `offset` is that of its header in the file."""

    first_scn: int
    prev_scn: int
    first_timestamp_ns: int
    newest_timestamp_ns: int
    position: int
    offset: int
    first_offset: int
    flags: int

    @classmethod
    def of(cls, frame: FrameHeader, offset: int) -> IndexEntry:
        """Return the entry of a frame at an offset of the file."""
        return cls(
            frame.first_scn,
            frame.prev_scn,
            frame.first_timestamp_ns,
            frame.newest_timestamp_ns,
            frame.position,
            offset,
            frame.first_offset,
            frame.flags,
        )

    def encode(self) -> bytes:
        """Return the bytes of the entry."""
        return _ENTRY.pack(*self)

    @classmethod
    def decode(cls, index: bytes | bytearray, number: int) -> IndexEntry:
        """Read entry `number` of an index."""
        return cls(*_ENTRY.unpack_from(index, number * ENTRY_BYTES))


class Footer(NamedTuple):
    """The end of a sealed segment."""

    index_at: int
    frames: int
    end: int
    last_scn: int
    last_timestamp_ns: int
    newest_timestamp_ns: int
    sealed_ns: int
    gtids_at: int
    gtids_bytes: int
    index_crc: int
    gtid_list_bytes: int
    gtid_list_crc: int

    def encode(self) -> bytes:
        """Return the bytes of the footer."""
        fields = _FOOTER.pack(_FOOTER_MAGIC, *self)
        return fields + _CRC.pack(crc32(fields))

    @classmethod
    def decode(cls, data: bytes) -> Footer | None:
        """Read the last bytes of a file; None if they are no footer whose checksum is right."""
        if len(data) != FOOTER_BYTES:
            return None
        magic, *fields = _FOOTER.unpack_from(data)
        crc: int = _CRC.unpack_from(data, FOOTER_BYTES - _CRC.size)[0]
        if magic != _FOOTER_MAGIC or crc != crc32(data[: -_CRC.size]):
            return None
        return cls(*fields)


def first_scn_of(name: str) -> int | None:
    """Return the first SCN in the name of a segment's file; None if it is another file."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found["scn"])
