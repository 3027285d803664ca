"""Splits the bytes of a connection into the server's packets. No I/O here.

packet    length (3, little-endian), sequence number (1), that many bytes;
          one of 0xFFFFFF bytes is continued by the next
payload   00 event | FF code (2) '#' state (5) text | FE, shorter than 9: end
"""

from __future__ import annotations

from collections.abc import Iterator

_CONTINUED = 0xFFFFFF
_EVENT, _ERROR, _END = 0x00, 0xFF, 0xFE
_LENGTH_END = 14  # of the event's own length, in a payload
# The server cannot serve the requested position; a retry fails the same way.
FATAL = frozenset({1236})
# Matched by text, because MariaDB has no error number of its own for it.
SAME_ID = "same server_uuid/server_id"


class StreamEnded(Exception):  # noqa: N818 - said by the server, not always an error
    """The server ended the dump; `code` is its error number, 0 when it gave none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamBrokenError(Exception):
    """Part of the stream is missing, repeated, or from another stream.

    Only a new connection helps; opening it verifies that the log is still the same.
    """


class PacketReader:
    """Collects chunks and yields events. A gap in the packet numbers breaks the stream.

    Chunks are joined only once a packet is complete, so that an event of a
    gigabyte costs one copy and not one a chunk.
    """

    def __init__(self, sequence: int = 1) -> None:
        self._sequence = sequence  # of the next packet; a request has 0
        self._chunks: list[bytes] = []
        self._held = 0
        self._wanted = 4
        self._parts: list[bytes] = []

    def receive(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the events that are complete now; raises StreamEnded, StreamBrokenError."""
        self._chunks.append(chunk)
        self._held += len(chunk)
        if self._held < self._wanted:
            self._check_head()
            return
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        position = 0
        try:
            while (end := _packet_end(data, position)) <= len(data):
                check_sequence(data[position + 3], self._sequence)
                payload = data[position + 4 : end]
                position = end
                self._sequence = (self._sequence + 1) & 0xFF
                event = self._complete(payload)
                if event is not None:
                    yield event
        finally:
            self._keep(data, position)
        self._check_head()

    def _check_head(self) -> None:
        """Check the beginning of an incomplete packet as soon as its bytes have arrived."""
        if len(self._chunks) > 1 and len(self._chunks[0]) < 4 + _LENGTH_END:
            self._chunks = [b"".join(self._chunks)]
        head = self._chunks[0] if self._chunks else b""
        if len(head) >= 4:
            check_sequence(head[3], self._sequence)
        if not self._parts:
            _check_length(head)

    def _keep(self, data: bytes, position: int) -> None:
        rest = data[position:]
        self._chunks = [rest] if rest else []
        self._held = len(rest)
        self._wanted = _packet_end(rest, 0) if len(rest) >= 4 else 4

    def _complete(self, payload: bytes) -> bytes | None:
        if len(payload) == _CONTINUED:
            self._parts.append(payload)
            return None
        if self._parts:
            payload = b"".join([*self._parts, payload])
            self._parts.clear()
        return event_of(payload)


def _packet_end(data: bytes, position: int) -> int:
    if len(data) - position < 4:
        return len(data) + 4
    return position + 4 + int.from_bytes(data[position : position + 3], "little")


def check_sequence(number: int, expected: int) -> None:
    """Raise StreamBrokenError when a packet is not the next one."""
    if number != expected:
        raise StreamBrokenError(f"packet {number} arrived where {expected} was expected")


def _check_length(packet: bytes) -> None:
    """Raise StreamBrokenError when an incomplete packet's length does not fit its event.

    A wrong length would make the reader wait for ever, or swallow the next packets.
    """
    if len(packet) < 4 + _LENGTH_END or packet[4] != _EVENT:
        return
    whole = 1 + int.from_bytes(packet[_LENGTH_END : 4 + _LENGTH_END], "little")
    length = int.from_bytes(packet[:3], "little")
    if length != min(whole, _CONTINUED):
        raise StreamBrokenError(f"a packet of {length} bytes holds {whole} bytes of an event")


def event_of(payload: bytes) -> bytes:
    """Return the event that a packet holds; raises StreamEnded when it holds none."""
    kind = payload[0] if payload else _END
    if kind == _EVENT:
        return payload[1:]
    if kind == _ERROR:
        code = int.from_bytes(payload[1:3], "little")
        text = payload[9:] if payload[3:4] == b"#" else payload[3:]
        raise StreamEnded(code, text.decode("utf-8", "replace"))
    raise StreamEnded(0, "the server ended the stream")
