"""Events of earlier versions: refused by readers with the reason, brought up to date in stores."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import ddl_event, end_of_period, statement_of
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.layout import V2
from databus.schemas.event.restamping import restamped, restamped_run
from tests.schemas.event.former import former_run, former_v1, former_v2
from tests.schemas.event.independent import events, v1_events

FORMER, NOW, OTHER = b"f" * 16, b"n" * 16, b"o" * 16
IDS = {FORMER: NOW}
ROW = Event(5, 6, 40, 1, 77, Opcode.UPSERT, Part(b"row", FORMER, 3), Part(b"meta", b"crc3", 1))
UPGRADE = "earlier versions of databus .* upgrade the server first"


@given(events())
def test_an_event_gets_the_crcs_of_now_and_keeps_all_else(event: Event) -> None:
    assert restamped(former_v2(event), {}) == event_v2.encode(event)


def test_the_schemas_id_becomes_that_of_now_and_another_stays() -> None:
    renamed = ROW._replace(payload=Part(b"row", NOW, 3))
    assert event_v2.decode(restamped(former_v2(ROW), IDS))[0] == renamed
    foreign = ROW._replace(payload=Part(b"row", OTHER, 3))
    assert event_v2.decode(restamped(former_v2(foreign), IDS))[0] == foreign


def test_ids_that_a_ddl_event_names_become_those_of_now() -> None:
    named = {"shop.orders": FORMER.hex(), "shop.customers": OTHER.hex()}
    event = ddl_event(5, 6, 1, list(named), "shop", "ALTER TABLE orders", named)
    found = statement_of(event_v2.decode(restamped(former_v2(event), IDS))[0])
    assert found.schemas == {"shop.orders": NOW.hex(), "shop.customers": OTHER.hex()}


def test_a_run_of_events_is_taken_whole() -> None:
    data = event_v2.encode(ROW) + event_v2.encode(end_of_period(5, 6))
    assert restamped_run(former_run(data), {}) == data
    assert restamped_run(b"", IDS) == b""


@given(st.data())
def test_a_damaged_byte_is_found(data: st.DataObject) -> None:
    wire = bytearray(former_v2(ROW))
    wire[data.draw(st.integers(0, len(wire) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolError):
        restamped(wire, IDS)


@given(st.integers(0, len(former_v2(ROW)) - 1))
def test_an_event_that_is_cut_is_found(length: int) -> None:
    with pytest.raises(ProtocolError):
        restamped(former_v2(ROW)[:length], IDS)
    if length:
        with pytest.raises(ProtocolError):
            restamped_run(former_v2(ROW)[:length], IDS)


def test_an_event_of_now_is_not_taken_for_one_of_before() -> None:
    with pytest.raises(ProtocolError, match="header CRC does not match"):
        restamped(event_v2.encode(ROW), IDS)


@given(events())
def test_readers_refuse_a_version_2_event_of_before_with_the_remedy(event: Event) -> None:
    wire = former_v2(event)
    with pytest.raises(ProtocolError, match=f"header CRC is as {UPGRADE}"):
        event_v2.decode(wire)
    with pytest.raises(ProtocolError, match=f"header CRC is as {UPGRADE}"):
        event_v2.checked_length(wire, 0)


@given(v1_events())
def test_readers_refuse_a_version_1_event_of_before_with_the_remedy(event: Event) -> None:
    wire = former_v1(event)
    with pytest.raises(ProtocolError, match=f"header CRC is as {UPGRADE}"):
        event_v1.decode(wire)
    with pytest.raises(ProtocolError, match=f"header CRC is as {UPGRADE}"):
        event_v1.checked_length(wire, 0)


def test_a_damaged_event_of_before_is_damaged() -> None:
    wire = bytearray(former_v2(ROW))
    wire[V2.scn.offset] ^= 1
    with pytest.raises(ProtocolError, match="header CRC does not match"):
        event_v2.decode(wire)
