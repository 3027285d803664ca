"""Control events that carry a value, and what reads it back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import (
    LoggedStatement,
    ddl_event,
    dml_event,
    end_of_period,
    read_statement,
    statement_of,
)
from databus.schemas.event.v2 import decode, encode

TEXT = st.text(max_size=30)


@given(st.lists(TEXT, max_size=3), TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=2))
def test_the_event_of_a_statement_comes_back_as_it_was(
    sources: list[str], database: str, statement: str, schemas: dict[str, str]
) -> None:
    for is_dml, make in enumerate((ddl_event, dml_event)):
        event = make(7, 8, 0, sources, database, statement, schemas)
        read, _ = decode(encode(event))
        assert read == event
        assert (read.scn, read.timestamp_ns, read.src_id, read.key) == (7, 8, -60 - is_dml, 0)
        assert (read.is_ddl, read.is_dml, read.is_statement) == (not is_dml, bool(is_dml), True)
        assert (read.is_control, read.is_eop, read.is_error) == (True, False, False)
        told = LoggedStatement(tuple(sources), database, statement, schemas, bool(is_dml))
        assert statement_of(read) == told


def test_the_value_of_a_ddl_event_is_json() -> None:
    event = ddl_event(7, 8, 0, ("shop.a",), "shop", "ALTER TABLE a ADD ü INT")
    assert event.value.decode() == (
        '{"sources":["shop.a"],"database":"shop","statement":"ALTER TABLE a ADD ü INT"}'
    )


def test_another_event_tells_of_no_statement() -> None:
    with pytest.raises(ProtocolError, match="-2"):
        statement_of(end_of_period(7, 8))


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
        read_statement(value)
