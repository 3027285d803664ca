"""The CRC of events: that of a header and that of a body, in version 1 and 2.

It has zlib's polynomial, 0xEDB88320, but starts with 0 and is not inverted in the end. So it
is not `zlib.crc32`, and everything that writes or checks an event takes it from here; compiled
code takes it from `crc32.pxi`. Digests of schemas, binlog checksums and those of this
project's own files are zlib's.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from databus.schemas.errors import ProtocolError

Buffer = bytes | bytearray | memoryview

__all__ = ["CHECK_VALUE", "event_crc", "event_crc_in_python", "former_crc", "wrong_crc"]

CHECK_VALUE: Final = 0x2DFD2D88  # of b"123456789"
_ONES = 0xFFFFFFFF  # zlib inverts before and after; this takes both back


def event_crc_in_python(data: Buffer, begin: int = 0) -> int:
    """Return the CRC of `data`, continued from `begin`, that of the bytes before them."""
    return crc32(data, begin ^ _ONES) ^ _ONES


try:
    from databus.schemas.event._crc import event_crc
except ImportError:  # not built
    event_crc = event_crc_in_python


def former_crc(data: Buffer) -> int:
    """Return the CRC that earlier versions of this project gave events: zlib's."""
    return crc32(data)


def wrong_crc(part: str, checked: Buffer, stated: int, offset: int) -> ProtocolError:
    """Return the error of a header, value or body whose CRC is not the `stated` one.

    An event of an earlier version of this project is not damaged; the error says what it is.
    """
    if former_crc(checked) == stated:
        return ProtocolError(
            f"{part} CRC is as earlier versions of databus computed it, which the server runs: "
            "upgrade the server first",
            offset,
        )
    return ProtocolError(f"{part} CRC does not match", offset)
