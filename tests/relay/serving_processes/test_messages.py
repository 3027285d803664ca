"""Messages between the processes of a relay."""

from __future__ import annotations

import asyncio
import socket

import pytest

from databus.relay.captured_spans import SpansContent
from databus.relay.serving_processes.messages import (
    Drain,
    Report,
    SourceState,
    State,
    encode,
    read_message,
    receive,
)

STATE = State({"shop": SourceState(7, True, SpansContent({"shop.orders": 3}, {}, {}))})


def test_messages_come_as_they_were_sent() -> None:
    async def read() -> list[object]:
        reader = asyncio.StreamReader()
        data = b"".join(map(encode, (STATE, Report(stream_bytes=1 << 40), Drain())))
        for at in range(0, len(data), 5):
            reader.feed_data(data[at : at + 5])
        reader.feed_eof()
        found = [await read_message(reader) for _ in range(3)]
        with pytest.raises(asyncio.IncompleteReadError):
            await read_message(reader)
        return found

    assert asyncio.run(read()) == [STATE, Report(stream_bytes=1 << 40), Drain()]


def test_a_message_is_received_alone_and_the_end_is_told() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(encode(STATE) + encode(Drain()))
        ours.close()
        assert receive(theirs) == STATE
        assert receive(theirs) == Drain()
        with pytest.raises(EOFError):
            receive(theirs)
