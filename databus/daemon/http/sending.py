"""Sends large bodies: as much as a socket takes in one system call, the rest in slices."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from databus.daemon.fair_queue import FairQueue
from databus.daemon.files import OpenFile
from databus.daemon.log_setup import about

log = logging.getLogger(__name__)

SLICE_BYTES = 256 << 10  # a connection that cannot take one in the idle time is dropped
BATCH_BYTES = 1 << 20  # given to a socket in one system call
BATCH_PARTS = 64  # of one system call; the kernel takes up to 1024

Buffer = bytes | memoryview


class FilePart(NamedTuple):
    """Bytes of a file, which the system sends out of it."""

    file: OpenFile
    offset: int
    size_bytes: int

    def slices(self, slice_bytes: int, skipped_bytes: int = 0) -> Iterator[FilePart]:
        """Yield the part after its first `skipped_bytes` in slices."""
        for at in range(skipped_bytes, self.size_bytes, slice_bytes):
            size_bytes = min(slice_bytes, self.size_bytes - at)
            yield FilePart(self.file, self.offset + at, size_bytes)

    def read(self) -> memoryview:
        """Return the bytes; raise OSError, also if the file has fewer."""
        data = os.pread(self.file.fd, self.size_bytes, self.offset)
        if len(data) < self.size_bytes:
            raise OSError(f"a file ends {self.size_bytes - len(data)} bytes before it should")
        return memoryview(data)


Batch = Sequence[memoryview] | FilePart  # what one system call sends


def batches_of(parts: Iterable[Buffer | FilePart]) -> Iterator[Batch]:
    """Yield bytes in lists that one system call sends: of BATCH_BYTES, and of few parts."""
    batch: list[memoryview] = []
    room_bytes = BATCH_BYTES
    for part in parts:
        if isinstance(part, FilePart):
            if batch:
                yield batch
            batch, room_bytes = [], BATCH_BYTES
            yield from part.slices(BATCH_BYTES)
            continue
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


def size_of(batch: Batch) -> int:
    """Return how many bytes a batch has."""
    return batch.size_bytes if isinstance(batch, FilePart) else sum(map(len, batch))


def slices_of(batch: Batch, skipped_bytes: int) -> Iterator[memoryview]:
    """Yield all bytes after the first `skipped_bytes`, in slices of at most SLICE_BYTES.

    Raises OSError if a file cannot be read.
    """
    if isinstance(batch, FilePart):
        for slice_ in batch.slices(SLICE_BYTES, skipped_bytes):
            yield slice_.read()
        return
    for part in batch:
        view = part[skipped_bytes:]
        skipped_bytes = max(0, skipped_bytes - len(part))
        while view:
            yield view[:SLICE_BYTES]
            view = view[SLICE_BYTES:]


def send_at_once(stream: IOStream, batch: Batch) -> int:
    """Send what the socket takes now, in one system call; return how many bytes it took.

    It is none if only the stream can send: with TLS, or behind what it has not sent yet. Nor is
    it any after an error of the socket, which the stream's next write meets, or of a file.
    """
    if isinstance(stream, SSLIOStream) or stream.writing() or stream.socket is None:
        return 0
    try:
        if isinstance(batch, FilePart):
            to, source = stream.socket.fileno(), batch.file.fd
            return os.sendfile(to, source, batch.offset, batch.size_bytes)
        return stream.socket.sendmsg(batch)
    except OSError:
        return 0


class Sender:
    """Sends the answer of one request, at the pace its client reads.

    A client that takes not one slice in `idle_s` is dropped.
    """

    def __init__(self, connection: Any, fair_queue: FairQueue, idle_s: float) -> None:
        """`connection` is tornado's of one request."""
        self._connection = connection
        self._fair_queue = fair_queue
        self._idle_s = idle_s

    @property
    def is_gone(self) -> bool:
        """Whether the connection is closed."""
        stream = self._connection.stream
        return stream is None or bool(stream.closed())

    def drop(self) -> None:
        """Close the connection without another byte."""
        if self._connection.stream is not None:
            self._connection.stream.close()

    async def send(self, parts: Iterable[Buffer | FilePart]) -> None:
        """Send bytes; return when all are sent, or the connection is closed: see `is_gone`."""
        # Not by RequestHandler.write, which takes only bytes and joins them: the bytes go to the
        # socket without another copy.
        await self.send_batches(batches_of(parts))

    async def send_batches(self, batches: Iterable[Batch]) -> None:
        """Send what `batches_of` yields."""
        for batch in batches:
            # Copying to fifty sockets in one turn would delay all other requests.
            await self._fair_queue.take()
            if self.is_gone:
                return
            await self.send_rest(batch, self.send_at_once(batch))

    def send_at_once(self, batch: Batch) -> int:
        """Send what the socket takes now; return how many bytes it took."""
        began = time.perf_counter()
        sent_bytes = send_at_once(self._connection.stream, batch)
        self._fair_queue.spent(time.perf_counter() - began)
        return sent_bytes

    async def send_rest(self, batch: Batch, sent_bytes: int) -> None:
        """Send all of a batch but its first bytes."""
        slices = slices_of(batch, sent_bytes)
        while not self.is_gone and (one := self._next_of(slices)) is not None:
            await self.within_idle_time(self._connection.stream.write(one))

    def _next_of(self, slices: Iterator[memoryview]) -> memoryview | None:
        """Return the next bytes; drop the client if they cannot be read: its answer has begun."""
        try:
            return next(slices, None)
        except OSError as error:
            client = self._connection.context.remote_ip
            log.error("dropping %s: %s", client, error, extra=about(client=client))
            self.drop()
            return None

    async def within_idle_time(self, sending: asyncio.Future[None]) -> None:
        """Wait until a write is done, or the connection is closed: see `is_gone`."""
        if not sending.done():
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._idle_s, self._drop_idle)
            try:
                await sending
            except StreamClosedError as error:
                error.__traceback__ = None  # it would keep this frame, and with it the body
                return
            finally:
                timer.cancel()
        elif not self.is_gone:
            sending.result()

    def _drop_idle(self) -> None:
        client = self._connection.context.remote_ip
        log.info("dropping %s: it stopped reading", client, extra=about(client=client))
        self.drop()
