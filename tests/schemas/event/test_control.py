"""Control events that carry a value, and what reads it back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import DdlStatement, ddl_event, ddl_of, end_of_period, read_ddl
from databus.schemas.event.v2 import decode, encode

TEXT = st.text(max_size=30)


@given(st.lists(TEXT, max_size=3), TEXT, TEXT)
def test_a_ddl_event_comes_back_as_it_was(
    sources: list[str], database: str, statement: str
) -> None:
    event = ddl_event(7, 8, 0, sources, database, statement)
    read, _ = decode(encode(event))
    assert read == event
    assert (read.scn, read.timestamp_ns, read.src_id, read.key) == (7, 8, -60, 0)
    assert (read.is_ddl, read.is_control, read.is_eop, read.is_error) == (True, True, False, False)
    assert ddl_of(read) == DdlStatement(tuple(sources), database, statement)


def test_the_value_of_a_ddl_event_is_json() -> None:
    event = ddl_event(7, 8, 0, ("shop.a",), "shop", "ALTER TABLE a ADD ü INT")
    assert event.value.decode() == (
        '{"sources":["shop.a"],"database":"shop","statement":"ALTER TABLE a ADD ü INT"}'
    )


def test_another_event_tells_of_no_statement() -> None:
    with pytest.raises(ProtocolError, match="-2"):
        ddl_of(end_of_period(7, 8))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"\xff",
        b"{}",
        b'{"sources":"a","database":"","statement":""}',
        b'{"sources":[1],"database":"","statement":""}',
        b'{"sources":[],"database":null,"statement":""}',
    ],
)
def test_another_value_is_a_protocol_error(value: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_ddl(value)
