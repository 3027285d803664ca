"""Sends large bodies: as much as a socket takes in one system call, the rest in slices."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from databus.daemon.fair_queue import FairQueue
from databus.daemon.log_setup import about

log = logging.getLogger(__name__)

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

    async def send(self, parts: Iterable[Buffer]) -> None:
        """Send bytes; return when all are sent, or the connection is closed: see `is_gone`."""
        # Not by RequestHandler.write, which takes only bytes and joins them: the bytes go to the
        # socket without another copy.
        await self.send_batches(batches_of(parts))

    async def send_batches(self, batches: Iterable[Sequence[memoryview]]) -> None:
        """Send what `batches_of` yields."""
        for batch in batches:
            # Copying to fifty sockets in one turn would delay all other requests.
            await self._fair_queue.take()
            if self.is_gone:
                return
            await self.send_rest(batch, self.send_at_once(batch))

    def send_at_once(self, batch: Sequence[memoryview]) -> int:
        """Send what the socket takes now; return how many bytes it took."""
        began = time.perf_counter()
        sent_bytes = send_at_once(self._connection.stream, batch)
        self._fair_queue.spent(time.perf_counter() - began)
        return sent_bytes

    async def send_rest(self, batch: Sequence[memoryview], sent_bytes: int) -> None:
        """Send all of a batch but its first bytes."""
        for one in slices_of(batch, sent_bytes):
            if self.is_gone:
                return
            await self.within_idle_time(self._connection.stream.write(one))

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
