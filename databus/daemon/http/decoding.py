"""Decodes bodies that a server sent compressed (`Content-Encoding: zstd`), as their bytes arrive.

A few bytes may stand for gigabytes. So what comes out is passed on in small pieces, and all of it
is bounded; so is zstd's own window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zstandard import ZstdDecompressor, ZstdError

ZSTD = "zstd"
_MOST_WINDOW_BYTES = 8 << 20  # RFC 9659: larger ones need not be accepted in HTTP
_PIECE_BYTES = 256 << 10  # two of the largest blocks of zstd: see `BodyDecoder.receive`


class DecodingError(ValueError):
    """A body is not in the encoding that it should have, or has too many bytes."""


class BodyDecoder:
    """Decodes one body of zstd."""

    def __init__(self, take: Callable[[bytes], object], most_bytes: int) -> None:
        """Pass at most `most_bytes` to `take`, in pieces; its errors are raised by `receive`."""
        self._take = take
        self._most_bytes = most_bytes
        self.decoded_bytes = 0
        decompressor = ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
        self._writer = decompressor.stream_writer(self, write_size=_PIECE_BYTES)  # type: ignore[arg-type]

    def receive(self, data: bytes | bytearray) -> None:
        """Decode the next bytes of the body; raise DecodingError.

        All that they decode to is passed on. The writer asks for no output any more once all of
        its input was taken, and a block of output may be left then. So the last byte, without
        which the last block cannot be decoded, comes alone, and finds room for both blocks.
        """
        try:
            with memoryview(data) as view:
                for part in (view[:-1], view[-1:]):
                    self._writer.write(part)
        except ZstdError as error:
            raise DecodingError(f"its body is not sound: {error}") from error

    def write(self, piece: bytes) -> int:
        """Take what was decoded: called by zstd."""
        self.decoded_bytes += len(piece)
        if self.decoded_bytes > self._most_bytes:
            raise DecodingError(f"its decoded body has more than {self._most_bytes} bytes")
        self._take(piece)
        return len(piece)


def is_zstd(headers: Mapping[str, str]) -> bool:
    """Return whether a body is encoded with zstd, by its headers with names in lower case.

    Raises DecodingError for another encoding, which nobody asked for.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", ZSTD):
        raise DecodingError(f"its body is encoded with {encoding!r}")
    return encoding == ZSTD


def decode_body(body: bytearray, most_bytes: int) -> bytearray:
    """Return a whole body of zstd decoded; raise DecodingError."""
    decoded = bytearray()
    BodyDecoder(decoded.extend, most_bytes).receive(body)
    return decoded
