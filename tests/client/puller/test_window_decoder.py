"""From a stream's bytes to what goes into the buffer."""

from __future__ import annotations

import pytest

from databus.client.machines.connection_messages import HalfWindow
from databus.client.machines.position import Position, position_of
from databus.client.puller.buffer_items import ReadWindow, RolledBack
from databus.client.puller.unknown_schemas import UnknownSchemaError
from databus.client.puller.window_decoder import WindowDecoder
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event.control import (
    checkpoint_event,
    ddl_event,
    error_event,
    scn_regress,
    statement_of,
)
from databus.schemas.event.event import Opcode, Part
from databus.schemas.event.v2 import encode
from tests.client.shop import ORDERS_ID, WIDER_ORDERS, change, order, shop_bindings, window


def make_decoder(start: Checkpoint | None = None, max_window_bytes: int = 1 << 20) -> WindowDecoder:
    decoder = WindowDecoder(max_window_bytes)
    decoder.use(shop_bindings())
    decoder.begin(Position(start or Checkpoint.flexible()))
    return decoder


def test_windows_come_whole_whatever_the_chunks() -> None:
    decoder = make_decoder()
    data = window(5, order(5)) + window(6) + window(7, order(7, 1), order(7, 2))
    items = [item for at in range(len(data)) for item in decoder.receive(data[at : at + 1])]
    assert [(i.window.scn, len(i.window.events)) for i in items if isinstance(i, ReadWindow)] == [
        (5, 1),
        (6, 0),
        (7, 2),
    ]
    assert decoder.progress.position == Position(Checkpoint.at(7, 1007).with_mark((7, 1007)))
    assert decoder.progress.half is None


def test_a_window_that_has_begun_is_told_with_its_events() -> None:
    decoder = make_decoder()
    decoder.receive(window(5, order(5)) + encode(order(6, 1)) + encode(order(6, 2)))
    assert decoder.progress.half == HalfWindow(6, 2)
    assert decoder.progress.position is not None
    assert decoder.progress.position.scn == 5
    decoder.reset()
    assert decoder.progress.half is None


def test_a_server_that_goes_back_is_not_believed() -> None:
    decoder = make_decoder(Checkpoint.at(5))
    with pytest.raises(ProtocolError, match="window 5 after window 5"):
        decoder.receive(window(5, order(5)))


def test_a_server_may_go_back_when_it_says_so() -> None:
    decoder = make_decoder(Checkpoint.at(9))
    back, again = decoder.receive(encode(scn_regress(Checkpoint.at(4))) + window(5, order(5)))
    assert back == RolledBack(4)
    assert isinstance(again, ReadWindow)
    assert again.window.scn == 5


def test_an_unknown_schema_is_told_apart_from_damage() -> None:
    decoder = make_decoder()
    event = change(5, {"id": 1, "item": "tea", "note": None}, WIDER_ORDERS)
    with pytest.raises(UnknownSchemaError):
        decoder.receive(window(5, event))


def test_windows_before_an_unknown_schema_are_returned_before_it_is_raised() -> None:
    decoder = make_decoder()
    event = change(6, {"id": 1, "item": "tea", "note": None}, WIDER_ORDERS)
    (item,) = decoder.receive(window(5, order(5)) + window(6, event) + encode(order(7)))
    assert isinstance(item, ReadWindow)
    assert item.window.scn == 5
    with pytest.raises(UnknownSchemaError) as raised:
        decoder.check()
    assert (raised.value.src_id, raised.value.scn) == (ORDERS_ID, 6)
    assert decoder.progress.position == Position(Checkpoint.at(5, 1005).with_mark((5, 1005)))
    decoder.reset()
    decoder.begin(Position(Checkpoint.at(5)))
    decoder.check()


def test_from_latest_a_window_of_an_unknown_schema_is_read_again() -> None:
    decoder = make_decoder()
    decoder.begin(Position(Checkpoint.flexible(), is_latest=True))
    event = change(6, {"id": 1, "item": "tea", "note": None}, WIDER_ORDERS)
    with pytest.raises(UnknownSchemaError):
        decoder.receive(window(6, event) + window(7, order(7)) + encode(order(8)))
    assert decoder.progress.half == HalfWindow(6, 0)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_windows_before_damage_are_returned_before_it_is_raised(chunk_bytes: int) -> None:
    decoder = make_decoder()
    data = bytearray(window(5, order(5)) + window(6, order(6)) + window(7, order(7)))
    data[len(window(5, order(5)) + window(6, order(6))) + 70] ^= 1
    scns = []

    def read() -> None:
        for at in range(0, len(data), chunk_bytes):
            items = decoder.receive(bytes(data[at : at + chunk_bytes]))
            scns.extend([item.window.scn for item in items if isinstance(item, ReadWindow)])
            decoder.check()

    with pytest.raises(ProtocolError, match="CRC"):
        read()
    assert scns == [5, 6]
    assert decoder.progress.position is not None
    assert decoder.progress.position.scn == 6


def test_an_event_of_a_source_that_was_not_asked_for_is_refused() -> None:
    decoder = make_decoder()
    with pytest.raises(ProtocolError, match="source 99"):
        decoder.receive(window(5, order(5)._replace(src_id=99)))


def test_an_event_without_a_row_is_refused() -> None:
    decoder = make_decoder()
    with pytest.raises(ProtocolError, match="without a row"):
        decoder.receive(window(5, order(5)._replace(payload=None)))


def test_ddl_events_are_told_with_their_window() -> None:
    told = ddl_event(5, 1, 0, ["shop.orders"], "shop", "ALTER TABLE orders")
    decoder = make_decoder()
    decoder.receive(encode(told))
    assert decoder.progress.half == HalfWindow(5, 1)
    (item,) = decoder.receive(encode(order(5)) + window(5))
    assert isinstance(item, ReadWindow)
    assert item.window.statements == ((0, statement_of(told)),)
    assert len(item.window.events) == 1


def test_the_value_of_a_ddl_event_must_be_one() -> None:
    bad = ddl_event(5, 1, 0, [], "", "")._replace(payload=Part(b"[]", bytes(16)))
    with pytest.raises(ProtocolError, match="statement"):
        make_decoder().receive(window(5, bad))


def test_that_a_table_was_emptied_needs_no_row() -> None:
    emptied = order(5)._replace(opcode=Opcode.DELETE, key=b"", payload=None)
    (item,) = make_decoder().receive(window(5, emptied))
    assert isinstance(item, ReadWindow)
    with pytest.raises(ProtocolError, match="source 99"):
        make_decoder().receive(window(5, emptied._replace(src_id=99)))


def test_control_events_that_have_no_place_in_a_stream_are_refused() -> None:
    with pytest.raises(ProtocolError, match="the server sent error event -4: out of memory"):
        make_decoder().receive(encode(error_event(-4, "out of memory")))
    with pytest.raises(ProtocolError, match="src_id -3"):
        make_decoder().receive(encode(checkpoint_event(Checkpoint.at(5))))


def test_a_window_beyond_the_limit_is_refused_by_its_own_error() -> None:
    decoder = make_decoder(max_window_bytes=300)
    with pytest.raises(WindowTooLargeError, match="max_window_bytes"):
        decoder.receive(window(5, *(order(5, n) for n in range(10))))


def test_an_answer_that_ends_inside_an_event_is_damaged() -> None:
    decoder = make_decoder()
    decoder.receive(window(5, order(5))[:-3])
    with pytest.raises(ProtocolError):
        decoder.end()


def test_a_stored_checkpoint_within_a_window_leads_to_the_windows_start() -> None:
    within = Checkpoint.at(5).after_event(6).after_event(6)
    assert position_of(within).checkpoint.window_scn == 5
    assert position_of(within).checkpoint.is_whole_window
