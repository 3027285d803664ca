"""Parts of names that are made of values: plain, and different for different values."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from databus.client.sinks.ready.rows import key_text
from databus.client.sinks.ready.templates import Template
from tests.client.sinks.changes import made


def test_a_decimal_has_plain_digits_in_keys_and_in_templates() -> None:
    for value, text in {
        Decimal("1E-30"): f"0.{'0' * 29}1",
        Decimal("1E+3"): "1000",
        Decimal("-0.10"): "-0.10",
    }.items():
        change = replace(made("insert", value), key={"id": value})
        assert key_text(change) == text
        assert Template("{table}-{id}").fill(change) == f"orders-{text}"
