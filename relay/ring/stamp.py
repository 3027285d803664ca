"""Stamp the events of a window: its SCN and time, and with them the CRC of each header.

An unstamped event has SCN 0, timestamp 0 and header CRC 0, and everything else
as it will be: a transaction is written as its rows come, and when it commits
only the headers are touched again.
"""

from __future__ import annotations

import struct
from zlib import crc32

from databus.relay.ring.layout import RingFile
from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import EOP_SRC_ID
from databus.schemas.event.v2 import MAGIC, SMALLEST_BYTES, TIMESTAMP_OFFSET, VERSION

_HEADER_CRC_OFFSET = 9
_COVERED_OFFSET = 13  # from here to its end the CRC is over the header
_SCN_OFFSET = 37
# Of an event's header: version, magic, header length, total length, src_id.
_STEP = struct.Struct(">BII8xI10xi")
_CRC = struct.Struct(">I")
_LONG = struct.Struct(">q")


def stamp_events(ring_file: RingFile, position: int, end: int, scn: int, timestamp_ns: int) -> None:
    """Stamp the events of [position, end): the whole of a window, an EOP the last of it.

    Raises ProtocolError when something else lies there; the events before it
    are stamped by then.
    """
    if ring_file.core is not None:
        ring_file.core.stamp(position, end, scn, timestamp_ns)
        return
    src_id = 0
    while position < end:
        if end - position < SMALLEST_BYTES:
            raise ProtocolError("an event is cut", position)
        step = ring_file.copy_out(position, _STEP.size)
        version, magic, header_length, length, src_id = _STEP.unpack(step)
        if version != VERSION or magic != MAGIC or length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", position)
        if not SMALLEST_BYTES <= header_length <= length <= end - position:
            raise ProtocolError("an event is cut", position)
        header = bytearray(ring_file.copy_out(position, header_length))
        _LONG.pack_into(header, TIMESTAMP_OFFSET, timestamp_ns)
        _LONG.pack_into(header, _SCN_OFFSET, scn)
        _CRC.pack_into(header, _HEADER_CRC_OFFSET, crc32(header[_COVERED_OFFSET:]))
        ring_file.copy_in(position, header)
        position += length
    if src_id != EOP_SRC_ID:
        raise ProtocolError("a window does not end with an EOP", position)
