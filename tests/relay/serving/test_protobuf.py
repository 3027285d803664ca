"""Fields of protobuf messages: what is written is read, and what is malformed is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.relay.serving.protobuf import (
    bytes_field,
    number_field,
    read_fields,
    signed,
    text_field,
)
from databus.schemas.errors import ProtocolError


@pytest.mark.parametrize(
    ("written", "hexadecimal"),
    [
        (number_field(1, 150), "089601"),  # the examples of protobuf's own documentation
        (text_field(2, "testing"), "120774657374696e67"),
        (number_field(1, -2), "08feffffffffffffffff01"),
        (bytes_field(16, b""), "820100"),
    ],
)
def test_fields_are_written_as_protobuf_defines(written: bytes, hexadecimal: str) -> None:
    assert written.hex() == hexadecimal


@given(st.integers(1, 2**29 - 1), st.integers(-(2**63), 2**63 - 1), st.binary())
def test_what_is_written_is_read(field: int, number: int, data: bytes) -> None:
    (first, value), second = read_fields(number_field(field, number) + bytes_field(field, data))
    assert isinstance(value, int)
    assert (first, signed(value), second) == (field, number, (field, data))


def test_numbers_of_other_kinds_are_bytes() -> None:
    assert list(read_fields(bytes.fromhex("0901000000000000000d01000000"))) == [
        (1, b"\1" + bytes(7)),
        (1, b"\1" + bytes(3)),
    ]


@pytest.mark.parametrize(
    "hexadecimal",
    ["08", "0a05", "0aff", "00", "0b", "09010203", "08ffffffffffffffffffff01", "0affffffff0f"],
)
def test_what_is_no_message_is_refused(hexadecimal: str) -> None:
    with pytest.raises(ProtocolError):
        list(read_fields(bytes.fromhex(hexadecimal)))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        fields = list(read_fields(data))
    except ProtocolError:
        return
    assert all(0 < field < 2**29 for field, _ in fields)
