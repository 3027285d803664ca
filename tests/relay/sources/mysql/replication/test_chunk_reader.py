"""The bytes of a connection arrive in order, however many threads read them."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from databus.relay.sources.mysql.replication.chunk_reader import (
    CHUNK_BYTES,
    CHUNKS,
    LITTLE_TIMES,
    MUCH_BYTES,
    ChunkReader,
)
from tests import PATIENCE_S


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    server, client = socket.socketpair()
    with server, client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MUCH_BYTES)
        yield server, client


@pytest.fixture
def server(pair: tuple[socket.socket, socket.socket]) -> socket.socket:
    return pair[0]


@pytest.fixture
def reader(pair: tuple[socket.socket, socket.socket]) -> Iterator[ChunkReader]:
    made = ChunkReader(pair[1])
    yield made
    made.end()


def receive(reader: ChunkReader, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        chunk = reader.read(PATIENCE_S)
        assert chunk is not None
        assert chunk[1] > 0
        found += chunk[0][: chunk[1]]
    return bytes(found)


def send_much(server: socket.socket, reader: ChunkReader) -> None:
    """Send until a thread reads ahead, and receive it."""
    data = random.Random(1).randbytes(4 * MUCH_BYTES)
    while not reader.is_ahead:
        sender = Thread(target=server.sendall, args=(data,))
        sender.start()
        assert receive(reader, len(data)) == data
        sender.join()


def test_little_is_read_without_a_thread(server: socket.socket, reader: ChunkReader) -> None:
    for number in range(10):
        server.sendall(b"%d" % number)
        assert receive(reader, 1) == b"%d" % number
    assert not reader.is_ahead


def test_nothing_in_time_is_none(server: socket.socket, reader: ChunkReader) -> None:
    assert reader.read(0.001) is None
    send_much(server, reader)
    assert reader.read(0.001) is None
    server.sendall(b"a")
    assert receive(reader, 1) == b"a"


def test_much_is_read_ahead_by_a_thread(server: socket.socket, reader: ChunkReader) -> None:
    send_much(server, reader)
    # The reader's caller takes nothing, and yet the server gets rid of all this.
    data = random.Random(2).randbytes(CHUNK_BYTES)
    server.settimeout(PATIENCE_S)
    server.sendall(data)
    assert receive(reader, len(data)) == data


def test_a_thread_is_ahead_by_a_number_of_chunks_at_most(
    server: socket.socket, reader: ChunkReader
) -> None:
    send_much(server, reader)
    server.settimeout(0.5)
    with pytest.raises(TimeoutError):
        server.sendall(bytes(2 * CHUNKS * CHUNK_BYTES))


def test_the_thread_ends_when_little_arrives_and_no_byte_is_lost(
    server: socket.socket, reader: ChunkReader
) -> None:
    send_much(server, reader)
    for number in range(LITTLE_TIMES + 10):
        server.sendall(b"%4d" % number)
        assert receive(reader, 4) == b"%4d" % number
    assert not reader.is_ahead
    send_much(server, reader)
    assert reader.is_ahead


@pytest.mark.parametrize("is_ahead", [False, True])
def test_the_end_of_a_stream_is_a_chunk_without_bytes(
    server: socket.socket, reader: ChunkReader, *, is_ahead: bool
) -> None:
    if is_ahead:
        send_much(server, reader)
    server.sendall(b"last")
    server.shutdown(socket.SHUT_WR)
    assert receive(reader, 4) == b"last"
    chunk = reader.read(PATIENCE_S)
    assert chunk is not None
    assert chunk[1] == 0


class _Broken:
    """A socket that gives much once, and then fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self._is_new = True

    def settimeout(self, timeout_s: float) -> None:
        """Do nothing."""

    def shutdown(self, how: int) -> None:
        """Fail, as a socket that has been closed."""
        raise OSError("closed")

    def recv_into(self, chunk: memoryview) -> int:
        """Receive much, or raise the error."""
        if not self._is_new:
            raise self._error
        self._is_new = False
        return len(chunk)


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), ValueError("a TLS socket")])
def test_an_error_of_the_thread_is_raised_as_one_of_the_socket(error: Exception) -> None:
    reader = ChunkReader(_Broken(error))
    assert reader.read(PATIENCE_S) is not None
    with pytest.raises(OSError, match=str(error)):
        reader.read(PATIENCE_S)
    reader.end()
