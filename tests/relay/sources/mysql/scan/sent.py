"""The packets in which a server sends the rows of a SELECT."""

from __future__ import annotations

from collections.abc import Sequence

from databus.relay.sources.mysql.scan._text_rows import END, TextRows
from databus.relay.sources.mysql.scan.columns import RawRow

CONTINUED = 0xFFFFFF
EOF = b"\xfe\x00\x00\x02\x00"


def packet(payload: bytes, sequence: int) -> bytes:
    """Return a packet."""
    return len(payload).to_bytes(3, "little") + bytes([sequence & 0xFF]) + payload


def text(value: bytes | None) -> bytes:
    """Return a value as the server writes it."""
    if value is None:
        return b"\xfb"
    for most, mark, width in ((250, b"", 1), (0xFFFF, b"\xfc", 2), (0xFFFFFF, b"\xfd", 3)):
        if len(value) <= most:
            return mark + len(value).to_bytes(width, "little") + value
    return b"\xfe" + len(value).to_bytes(8, "little") + value


def result(rows: Sequence[RawRow], sequence: int = 250) -> bytes:
    """Return the packets of rows and of their end."""
    found = b""
    for payload in [b"".join(map(text, row)) for row in rows] + [EOF]:
        parts = [payload[at : at + CONTINUED] for at in range(0, len(payload) + 1, CONTINUED)]
        for part in parts:
            found += packet(part, sequence)
            sequence += 1
    return found


def read(rows: Sequence[RawRow], columns: int, piece: int = 1 << 20) -> TextRows:
    """Return what is made of rows that come in pieces."""
    found = TextRows(columns, 250)
    data = result(rows)
    for at in range(0, len(data), piece):
        status = found.feed(data[at : at + piece])
    assert status == END
    return found


def texts_of(rows: TextRows) -> list[RawRow]:
    """Return every row's texts."""
    return [rows[at] for at in range(len(rows))]
