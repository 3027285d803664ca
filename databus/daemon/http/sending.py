"""Sends large bodies: as much as a socket takes in one system call, the rest in slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tornado.iostream import IOStream, SSLIOStream

SLICE_BYTES = 256 << 10  # a connection that cannot take one in the idle time is dropped
BATCH_BYTES = 1 << 20  # given to a socket in one system call
BATCH_PARTS = 64  # of one system call; the kernel takes up to 1024

Buffer = bytes | memoryview


def batches_of(parts: Iterable[Buffer]) -> Iterator[list[memoryview]]:
    """Yield bytes in lists that one system call sends: of BATCH_BYTES, and of few parts."""
    batch: list[memoryview] = []
    room_bytes = BATCH_BYTES
    for part in parts:
        view = memoryview(part)
        while view:
            batch.append(view[:room_bytes])
            room_bytes -= len(batch[-1])
            view = view[len(batch[-1]) :]
            if not room_bytes or len(batch) == BATCH_PARTS:
                yield batch
                batch, room_bytes = [], BATCH_BYTES
    if batch:
        yield batch


def slices_of(parts: Iterable[memoryview], skipped_bytes: int) -> Iterator[memoryview]:
    """Yield all bytes after the first `skipped_bytes`, in slices of at most SLICE_BYTES."""
    for part in parts:
        view = part[skipped_bytes:]
        skipped_bytes = max(0, skipped_bytes - len(part))
        while view:
            yield view[:SLICE_BYTES]
            view = view[SLICE_BYTES:]


def send_at_once(stream: IOStream, parts: Sequence[memoryview]) -> int:
    """Send what the socket takes now, in one system call; return how many bytes it took.

    It is none if only the stream can send: with TLS, or behind what it has not sent yet. Nor is
    it any after an error of the socket, which the stream's next write meets.
    """
    if isinstance(stream, SSLIOStream) or stream.writing() or stream.socket is None:
        return 0
    try:
        return stream.socket.sendmsg(parts)
    except OSError:
        return 0
