"""Kinds of damage to a file at rest: a flipped byte, runs of bytes, zeros, a cut. Pure."""

from __future__ import annotations

from random import Random

PAGE_BYTES = 4096
FLIP, RUN, ZEROS, CUT = "flip", "run", "zeros", "cut"


def damaged(data: bytes, kind: str, chosen: Random) -> bytes:
    """Return the bytes with one kind of damage."""
    at = chosen.randrange(len(data))
    changed = bytearray(data)
    if kind == FLIP:
        changed[at] ^= chosen.randrange(1, 256)
    elif kind == RUN:
        length = min(chosen.randrange(2, 64), len(data) - at)
        changed[at : at + length] = chosen.randbytes(length)
    elif kind == ZEROS:
        begin = at - at % PAGE_BYTES
        end = min(begin + PAGE_BYTES, len(data))
        changed[begin:end] = bytes(end - begin)
    elif kind == CUT:
        del changed[at:]
    return bytes(changed)
