"""Encodes bodies with zstd for who asks for it: whole ones, and those that go on, part by part.

The counterpart of `decoding.py`.
"""

from __future__ import annotations

from zstandard import COMPRESSOBJ_FLUSH_BLOCK, ZstdCompressor

_LEVEL = 1  # the fastest; higher ones save little on events


class BodyEncoder:
    """Encodes one body: each part can be decoded as soon as it has come."""

    def __init__(self) -> None:
        self._packer = ZstdCompressor(level=_LEVEL).compressobj()

    def encode(self, part: bytes) -> bytes:
        """Return the next part encoded: whatever is returned must be sent."""
        return self._packer.compress(part) + self._packer.flush(COMPRESSOBJ_FLUSH_BLOCK)

    def end(self) -> bytes:
        """Return what ends the body."""
        return self._packer.flush()


def encode_body(body: bytes) -> bytes:
    """Return a whole body encoded."""
    return ZstdCompressor(level=_LEVEL).compress(body)
