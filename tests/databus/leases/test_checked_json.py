"""Records with a checksum."""

from __future__ import annotations

import json

import pytest

from databus.leases.checked_json import decode_checked, encode_checked


def test_values_come_back_as_json_knows_them() -> None:
    values = {"b": [1, 2], "a": {"x": None}, "ö": "☃"}
    assert decode_checked(encode_checked(values)) == values
    assert decode_checked(encode_checked({"a": (1, 2)})) == {"a": [1, 2]}


def test_a_record_that_was_only_laid_out_anew_is_whole() -> None:
    data = encode_checked({"b": 1, "a": 2})
    assert decode_checked(json.dumps(json.loads(data), sort_keys=True).encode()) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        encode_checked({"a": 1}).replace(b'"a": 1', b'"a": 2'),
        encode_checked({"a": 1}).replace(b'"crc": "', b'"crc": "0'),
    ],
)
def test_what_is_damaged_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"record|checksum|Expecting|decode"):
        decode_checked(data)
