"""The bounded buffer between the network and the callbacks."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from databus.client.puller.buffer import Buffer, BufferClosedError
from databus.client.puller.buffer_items import RolledBack
from tests import PATIENCE_S

ITEM = RolledBack(1, 100)


def test_items_come_out_in_order_and_count_until_they_are_done() -> None:
    buffer: Buffer[RolledBack] = Buffer(1000)
    items = [RolledBack(n, 100) for n in range(3)]
    buffer.put(items)
    assert [buffer.get(0) for _ in items] == items
    assert buffer.held_bytes == 300
    for item in items:
        buffer.done(item)
    assert buffer.held_bytes == 0
    assert buffer.get(0) is None


def test_room_that_was_refused_is_announced_once_when_it_is_there() -> None:
    calls: list[int] = []
    buffer: Buffer[RolledBack] = Buffer(400)
    buffer.on_room = lambda: calls.append(buffer.held_bytes)
    for _ in range(4):
        buffer.put([ITEM])
    assert not buffer.ask_room(200)
    for _ in range(4):
        buffer.done(ITEM)
    assert calls == [200]


def test_more_than_the_capacity_fits_into_an_empty_buffer_only() -> None:
    buffer: Buffer[RolledBack] = Buffer(400)
    assert buffer.ask_room(1000)
    buffer.put([ITEM])
    assert not buffer.ask_room(1000)


def test_a_getter_that_waits_is_woken_by_an_item_and_by_the_end() -> None:
    buffer: Buffer[RolledBack] = Buffer(400)
    got: SimpleQueue[object] = SimpleQueue()

    def take() -> None:
        got.put(buffer.get())
        with pytest.raises(BufferClosedError):
            buffer.get()
        got.put("end")

    thread = threading.Thread(target=take)
    thread.start()
    buffer.put([ITEM])
    assert got.get(timeout=PATIENCE_S) == ITEM
    buffer.close()
    assert got.get(timeout=PATIENCE_S) == "end"
    thread.join()


def test_a_closed_buffer_drops_what_comes() -> None:
    buffer: Buffer[RolledBack] = Buffer(400)
    buffer.close()
    buffer.put([ITEM])
    with pytest.raises(BufferClosedError):
        buffer.get(0)
