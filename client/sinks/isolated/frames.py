"""Messages on a socket: four bytes of length, then so many bytes."""

from __future__ import annotations

import socket
import time
from struct import Struct

_LENGTH = Struct(">I")
_CHUNK = 1 << 20


class FrameError(Exception):
    """What was received is no message, or a longer one than is taken."""


class FrameSocket:
    """Sends and receives messages. Deadlines are of `time.monotonic`; None = wait for ever."""

    def __init__(self, stream: socket.socket, most_bytes: int) -> None:
        """`most_bytes` is the longest message that is taken."""
        self._stream, self._most = stream, most_bytes

    def send(self, *messages: bytes, end_s: float | None = None) -> None:
        """Send messages; raise TimeoutError, and OSError if the other end is gone."""
        for message in messages:
            self._set_timeout(end_s)
            # Of all of it, and not of each part.
            self._stream.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self, end_s: float | None = None) -> bytes:
        """Return the next message; raise TimeoutError, EOFError, FrameError and OSError."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, end_s))
        if length > self._most:
            raise FrameError(f"a message of {length} bytes: at most {self._most} are taken")
        return self._exactly(length, end_s)

    def close(self) -> None:
        """Close the socket."""
        self._stream.close()

    def _exactly(self, size: int, end_s: float | None) -> bytes:
        found = bytearray()
        while len(found) < size:
            self._set_timeout(end_s)
            part = self._stream.recv(min(size - len(found), _CHUNK))
            if not part:
                raise EOFError("the other end has closed the connection")
            found += part
        return bytes(found)

    def _set_timeout(self, end_s: float | None) -> None:
        left_s = None if end_s is None else end_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise TimeoutError("too late")
        self._stream.settimeout(left_s)
