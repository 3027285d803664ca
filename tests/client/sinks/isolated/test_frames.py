"""Messages on a socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from databus.client.sinks.isolated.frames import FrameError, FrameSocket
from tests import PATIENCE_S


@pytest.fixture
def pair() -> Iterator[tuple[FrameSocket, socket.socket]]:
    """One end with messages of 10 MB at most, and the other one as it is."""
    ours, theirs = socket.socketpair()
    yield FrameSocket(ours, 10_000_000), theirs
    ours.close()
    theirs.close()


def test_messages_of_any_size_come_whole_and_in_order(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    ours, theirs = pair
    sent = [b"", b"a", b"b" * 5_000_000, b"c"]
    thread = threading.Thread(target=FrameSocket(theirs, 0).send, args=sent)
    thread.start()
    end_s = time.monotonic() + PATIENCE_S
    assert [ours.receive(end_s) for _ in sent] == sent
    thread.join()


def test_a_message_that_is_too_long_is_not_read(pair: tuple[FrameSocket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(FrameError, match="4294967295 bytes: at most 10000000"):
        ours.receive()


def test_a_message_that_is_cut_off_is_an_end(pair: tuple[FrameSocket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"\x00\x00\x00\x05abc")
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()


def test_the_deadline_is_of_the_whole_message(pair: tuple[FrameSocket, socket.socket]) -> None:
    ours, theirs = pair
    is_over = threading.Event()

    def drip() -> None:
        theirs.sendall(b"\x00\x00\xff\xff")
        while not is_over.wait(0.02):
            theirs.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError):
        ours.receive(time.monotonic() + 0.3)
    is_over.set()
    thread.join()


def test_sending_to_one_that_does_not_read_ends_at_the_deadline(
    pair: tuple[FrameSocket, socket.socket],
) -> None:
    with pytest.raises(TimeoutError):
        pair[0].send(b"x" * 50_000_000, end_s=time.monotonic() + 0.2)
