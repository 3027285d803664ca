"""From a stream's bytes to what goes into the buffer."""

from __future__ import annotations

import pytest

from databus.client.machines.connection_messages import HalfWindow
from databus.client.machines.position import Position, position_of
from databus.client.puller.window_decoder import Intake, ReadWindow, RolledBack, UnknownSchemaError
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event.control import (
    checkpoint_event,
    ddl_event,
    ddl_of,
    error_event,
    scn_regress,
)
from databus.schemas.event.event import Opcode, Part
from databus.schemas.event.v2 import encode
from tests.client.shop import WIDER_ORDERS, change, order, shop_bindings, window


def make_intake(start: Checkpoint | None = None, max_window_bytes: int = 1 << 20) -> Intake:
    intake = Intake(max_window_bytes)
    intake.use(shop_bindings())
    intake.begin(Position(start or Checkpoint.flexible()))
    return intake


def test_windows_come_whole_whatever_the_chunks() -> None:
    intake = make_intake()
    data = window(5, order(5)) + window(6) + window(7, order(7, 1), order(7, 2))
    items = [item for at in range(len(data)) for item in intake.receive(data[at : at + 1])]
    assert [(i.window.scn, len(i.window.events)) for i in items if isinstance(i, ReadWindow)] == [
        (5, 1),
        (6, 0),
        (7, 2),
    ]
    assert intake.progress.position == Position(Checkpoint.at(7, 1007).with_mark((7, 1007)))
    assert intake.progress.half is None


def test_a_window_that_has_begun_is_told_with_its_events() -> None:
    intake = make_intake()
    intake.receive(window(5, order(5)) + encode(order(6, 1)) + encode(order(6, 2)))
    assert intake.progress.half == HalfWindow(6, 2)
    assert intake.progress.position is not None
    assert intake.progress.position.scn == 5
    intake.reset()
    assert intake.progress.half is None


def test_a_server_that_goes_back_is_not_believed() -> None:
    intake = make_intake(Checkpoint.at(5))
    with pytest.raises(ProtocolError, match="window 5 after window 5"):
        intake.receive(window(5, order(5)))


def test_a_server_may_go_back_when_it_says_so() -> None:
    intake = make_intake(Checkpoint.at(9))
    back, again = intake.receive(encode(scn_regress(Checkpoint.at(4))) + window(5, order(5)))
    assert back == RolledBack(4)
    assert isinstance(again, ReadWindow)
    assert again.window.scn == 5


def test_an_unknown_schema_is_told_apart_from_damage() -> None:
    intake = make_intake()
    event = change(5, {"id": 1, "item": "tea", "note": None}, WIDER_ORDERS)
    with pytest.raises(UnknownSchemaError):
        intake.receive(window(5, event))


def test_an_event_of_a_source_that_was_not_asked_for_is_refused() -> None:
    intake = make_intake()
    with pytest.raises(ProtocolError, match="source 99"):
        intake.receive(window(5, order(5)._replace(src_id=99)))


def test_an_event_without_a_row_is_refused() -> None:
    intake = make_intake()
    with pytest.raises(ProtocolError, match="without a row"):
        intake.receive(window(5, order(5)._replace(payload=None)))


def test_ddl_events_are_told_with_their_window() -> None:
    told = ddl_event(5, 1, 0, ["shop.orders"], "shop", "ALTER TABLE orders")
    intake = make_intake()
    intake.receive(encode(told))
    assert intake.progress.half == HalfWindow(5, 1)
    (item,) = intake.receive(encode(order(5)) + window(5))
    assert isinstance(item, ReadWindow)
    assert item.window.ddl == ((0, ddl_of(told)),)
    assert len(item.window.events) == 1


def test_the_value_of_a_ddl_event_must_be_one() -> None:
    bad = ddl_event(5, 1, 0, [], "", "")._replace(payload=Part(b"[]", bytes(16)))
    with pytest.raises(ProtocolError, match="DDL"):
        make_intake().receive(window(5, bad))


def test_that_a_table_was_emptied_needs_no_row() -> None:
    emptied = order(5)._replace(opcode=Opcode.DELETE, key=b"", payload=None)
    (item,) = make_intake().receive(window(5, emptied))
    assert isinstance(item, ReadWindow)
    with pytest.raises(ProtocolError, match="source 99"):
        make_intake().receive(window(5, emptied._replace(src_id=99)))


def test_control_events_that_have_no_place_in_a_stream_are_refused() -> None:
    with pytest.raises(ProtocolError, match="the server sent error event -4: out of memory"):
        make_intake().receive(encode(error_event(-4, "out of memory")))
    with pytest.raises(ProtocolError, match="src_id -3"):
        make_intake().receive(encode(checkpoint_event(Checkpoint.at(5))))


def test_a_window_beyond_the_limit_is_refused_by_its_own_error() -> None:
    intake = make_intake(max_window_bytes=300)
    with pytest.raises(WindowTooLargeError, match="max_window_bytes"):
        intake.receive(window(5, *(order(5, n) for n in range(10))))


def test_an_answer_that_ends_inside_an_event_is_damaged() -> None:
    intake = make_intake()
    intake.receive(window(5, order(5))[:-3])
    with pytest.raises(ProtocolError):
        intake.end()


def test_a_stored_checkpoint_within_a_window_leads_to_the_windows_start() -> None:
    within = Checkpoint.at(5).after_event(6).after_event(6)
    assert position_of(within).checkpoint.window_scn == 5
    assert position_of(within).checkpoint.is_whole_window
