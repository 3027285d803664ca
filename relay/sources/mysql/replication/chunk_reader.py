"""Reads the bytes of a connection in chunks, ahead of the decoder while much arrives.

A second thread doubles the rate of a bulk load, because it receives while the decoder decodes.
But to wake it and to be woken by it costs as much as decoding a small transaction. So it runs
only while the socket has much to give.
"""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue
from socket import SHUT_RDWR
from threading import Thread
from typing import Any

CHUNK_BYTES = 1 << 20
# How far the thread may be ahead.
CHUNKS = 32
# The thread is started by a chunk of so many bytes. It ends after so many smaller ones in a row for
# which the decoder was waiting.
MUCH_BYTES = 32 << 10
LITTLE_TIMES = 100
_WAIT_S = 1.0
Chunk = tuple[memoryview, int]


class ChunkReader:
    """Reads a socket. One thread at a time calls its methods."""

    def __init__(self, sock: Any) -> None:
        self._socket = sock
        self._timeout_s = -1.0
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._ahead: _ReadAhead | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether a thread reads ahead."""
        return self._ahead is not None

    def read(self, timeout_s: float) -> Chunk | None:
        """Return a chunk and how many bytes it has; None if no byte arrived in time.

        At the end of the stream it has 0 bytes. It is valid until the next call. Raises OSError.
        """
        try:
            if self._ahead is not None:
                found = self._ahead.take(timeout_s)
                if found is not None:
                    return found
                self._ahead.end()
                self._ahead = None
            return self._receive(timeout_s)
        except TimeoutError:
            return None

    def end(self) -> None:
        """Shut the socket down, and wait for the end of the thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)
        if self._ahead is not None:
            self._ahead.end()

    def _receive(self, timeout_s: float) -> Chunk:
        if timeout_s != self._timeout_s:
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s
        size: int = self._socket.recv_into(self._chunk)
        if size >= MUCH_BYTES:
            self._ahead = _ReadAhead(self._socket)
            self._timeout_s = -1.0
        return self._chunk, size


class _ReadAhead:
    """A thread that reads a socket into a fixed set of chunks, ahead of the decoder.

    The server waits only when all chunks are full. Chunks are made as they are needed, and
    reused, because allocating one costs more than receiving into it.
    """

    def __init__(self, sock: Any) -> None:
        sock.settimeout(_WAIT_S)
        self._socket = sock
        self._is_over = False
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._full: SimpleQueue[Chunk | Exception | None] = SimpleQueue()
        self._taken: memoryview | None = None
        self._made = 0
        self._thread = Thread(target=self._run, name="binlog-reader", daemon=True)
        self._thread.start()

    def take(self, timeout_s: float) -> Chunk | None:
        """Return the next chunk and its size; None when the thread has ended.

        Raises TimeoutError if nothing arrived in time, and OSError.
        """
        if self._taken is not None:
            self._free.put(self._taken)
            self._taken = None
        try:
            found = self._full.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError from None
        if isinstance(found, Exception):
            raise found
        if found is not None:
            self._taken = found[0]
        return found

    def end(self) -> None:
        """End the thread and wait for it; its socket must be shut down, unless it has ended."""
        self._is_over = True
        self._free.put(None)
        self._thread.join()

    def _run(self) -> None:
        little = 0
        try:
            while little < LITTLE_TIMES and not self._is_over:
                chunk = self._next_chunk()
                if chunk is None:
                    return
                size = self._receive(chunk)
                # Nothing waits for the decoder: it keeps up.
                little = little + 1 if size < MUCH_BYTES and self._full.empty() else 0
                self._full.put((chunk, size))
                if size == 0:
                    return
            self._full.put(None)
        except Exception as error:  # a TLS socket that is shut down raises other errors, too
            self._full.put(error if isinstance(error, OSError) else OSError(repr(error)))

    def _next_chunk(self) -> memoryview | None:
        """Return a free chunk, a new one if there may be more; None at the end."""
        try:
            return self._free.get(block=self._made == CHUNKS)
        except Empty:
            self._made += 1
            return memoryview(bytearray(CHUNK_BYTES))

    def _receive(self, chunk: memoryview) -> int:
        while not self._is_over:
            try:
                size: int = self._socket.recv_into(chunk)
            except TimeoutError:
                continue
            return size
        return 0
