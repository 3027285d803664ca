"""Canal's frames and messages. Pure: bytes in, values out, and back.

A frame is a length, a signed number of four bytes in network order, and so many bytes: one
protobuf message `Packet`, whose `body` is another message by its `type`:

    Packet       2 version  3 type  4 compression  5 body
    Handshake    2 seeds
    ClientAuth   1 username  2 password  3 net_read_timeout  4 net_write_timeout
                 5 destination  6 client_id  7 filter
    Sub, Unsub   1 destination  2 client_id  7 filter
    Get          1 destination  2 client_id  3 fetch_size  4 timeout  5 unit  6 auto_ack
    Messages     1 batch_id  2 messages
    ClientAck, ClientRollback   1 destination  2 client_id  3 batch_id
    Ack          1 error_code  2 error_message

A number that a client leaves out is 0. What comes from a client is bounded in length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from databus.relay.serving.protobuf import (
    Value,
    bytes_field,
    number_field,
    read_fields,
    signed,
    text_field,
    varint,
)
from databus.schemas.errors import ProtocolError

VERSION = 1
_LENGTH = struct.Struct(">i")
MOST_FRAME_BYTES = 256 << 10  # of a client: a filter is the longest that it sends
MOST_STRANGERS_BYTES = 4 << 10  # before it has said who it is
NO_BATCH = -1


class PacketType(IntEnum):
    """Types of packets that are sent on this port."""

    HANDSHAKE = 1
    AUTHENTICATION = 2
    ACK = 3
    SUBSCRIPTION = 4
    UNSUBSCRIPTION = 5
    GET = 6
    MESSAGES = 7
    CLIENT_ACK = 8
    CLIENT_ROLLBACK = 12


class Packet(NamedTuple):
    """A packet of a client; `kind` may be no PacketType."""

    kind: int
    body: bytes


class ClientAuth(NamedTuple):
    """A login, which may also subscribe; the times are in milliseconds, 0 = none is given."""

    username: str
    password: bytes
    read_timeout_ms: int
    write_timeout_ms: int
    destination: str
    client_id: str
    filter_text: str


class ClientRequest(NamedTuple):
    """Any other message of a client. `number` is `fetch_size` or `batch_id`."""

    destination: str
    client_id: str
    number: int = 0
    timeout: int = 0
    unit: int = 0
    filter_text: str = ""


class FrameReader:
    """Cuts the bytes of a client into frames."""

    def __init__(self, most_bytes: int = MOST_STRANGERS_BYTES) -> None:
        """A longer frame is refused."""
        self.most_bytes = most_bytes
        self._buffer = bytearray()

    @property
    def is_inside(self) -> bool:
        """Whether a frame has begun that has not ended."""
        return bool(self._buffer)

    def receive(self, data: bytes) -> None:
        """Take what has arrived."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Return the next whole frame, without its length; None without one.

        Raises ProtocolError for a length that no client sends.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= self.most_bytes:
            raise ProtocolError(
                f"a frame of {length} bytes; a client of Canal sends 0 to {self.most_bytes}"
            )
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame


def read_packet(frame: bytes) -> Packet:
    """Return the packet of a frame; raises ProtocolError."""
    fields = _fields(frame)
    return Packet(_number(fields, 3, 32), _bytes(fields, 5))


def read_auth(body: bytes) -> ClientAuth:
    """Return a login; raises ProtocolError."""
    fields = _fields(body)
    return ClientAuth(
        _text(fields, 1),
        _bytes(fields, 2),
        _number(fields, 3, 32),
        _number(fields, 4, 32),
        _text(fields, 5),
        _text(fields, 6),
        _text(fields, 7),
    )


def read_request(body: bytes) -> ClientRequest:
    """Return any other message of a client; raises ProtocolError."""
    fields = _fields(body)
    is_text = isinstance(fields.get(7), bytes)
    return ClientRequest(
        _text(fields, 1),
        _text(fields, 2),
        _number(fields, 3),
        _number(fields, 4),
        _number(fields, 5, 32),
        _text(fields, 7) if is_text else "",
    )


def handshake(seeds: bytes) -> bytes:
    """Return the frame with which a server begins."""
    return _frame(PacketType.HANDSHAKE, bytes_field(2, seeds))


def success() -> bytes:
    """Return the frame that says that a request was carried out."""
    return _frame(PacketType.ACK, b"")


def failure(code: int, text: str) -> bytes:
    """Return the frame of an error."""
    return _frame(PacketType.ACK, number_field(1, code) + text_field(2, text))


def messages(batch_id: int, entries: Iterable[bytes]) -> bytes:
    """Return the frame of a batch of entries, NO_BATCH without any."""
    # One copy of what may be a few megabytes.
    parts = [b"", number_field(1, batch_id)]
    for one in entries:
        parts += (_begin_of_entry(len(one)), one)
    size = sum(map(len, parts))
    packet = number_field(2, VERSION) + number_field(3, PacketType.MESSAGES)
    packet += bytes_field(5, b"")[:1] + varint(size)
    parts[0] = _LENGTH.pack(len(packet) + size) + packet
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _begin_of_entry(size: int) -> bytes:
    return bytes_field(2, b"")[:1] + varint(size)


def _frame(kind: PacketType, body: bytes) -> bytes:
    packet = number_field(2, VERSION) + number_field(3, kind)
    if body:
        packet += bytes_field(5, body)
    return _LENGTH.pack(len(packet)) + packet


def _fields(data: bytes) -> dict[int, Value]:
    # The last one of a number counts, as protobuf says.
    return dict(read_fields(data))


def _number(fields: dict[int, Value], field: int, bits: int = 64) -> int:
    value = fields.get(field, 0)
    if not isinstance(value, int):
        raise ProtocolError(f"field {field} is no number")
    return signed(value, bits)


def _bytes(fields: dict[int, Value], field: int) -> bytes:
    value = fields.get(field, b"")
    if not isinstance(value, bytes):
        raise ProtocolError(f"field {field} is a number, and should be bytes")
    return value


def _text(fields: dict[int, Value], field: int) -> str:
    try:
        return _bytes(fields, field).decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"field {field} is no UTF-8 text") from None
