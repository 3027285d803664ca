"""Debezium's envelope, against the messages of its documentation."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus import __version__
from databus.client.sinks.contract import Change, ChangeOp, TransactionInfo
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.debezium import DebeziumFormat
from tests.client.sinks.changes import made, moved

FORMAT = DebeziumFormat("mysql-server-1")
AT_NS = 1_465_581_902_000_000_000
GTID = "0-223344-17"
# Of the table `customers` of the connector's documentation, MySQL, "Change event values".
ANNE = {"id": 1004, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
ANNE_MARIE = {**ANNE, "first_name": "Anne Marie"}
SOURCE = {
    "version": __version__,
    "connector": "mysql",
    "name": "mysql-server-1",
    "ts_ms": 1465581902000,
    "snapshot": "false",
    "db": "inventory",
    "sequence": None,
    "table": "customers",
    "server_id": 223344,
    "gtid": GTID,
    "file": None,
    "pos": 484,
    "row": 0,
    "thread": None,
    "query": None,
}


def customer(op: str, before: Any, after: Any) -> Change:
    info = TransactionInfo(484, AT_NS, GTID, 1)
    key = {"id": 1004}
    return Change(ChangeOp(op), "inventory.customers", key, before, after, info, 484, AT_NS)


def value_of(change: Change, form: DebeziumFormat = FORMAT) -> Any:
    message = form(change, 1465581902461)
    assert message is not None
    return json.loads(message.value)


def column(value: Any, form: DebeziumFormat = FORMAT) -> Any:
    return value_of(made("insert", 1, v=value), form)["after"]["v"]


@pytest.mark.parametrize(
    ("op", "before", "after", "letter"),
    [
        ("insert", None, ANNE, "c"),
        ("update", ANNE, ANNE_MARIE, "u"),
        ("delete", ANNE_MARIE, None, "d"),
        ("snapshot", None, ANNE, "r"),
    ],
)
def test_an_envelope_is_debeziums_field_by_field(
    op: str, before: Any, after: Any, letter: str
) -> None:
    snapshot = "true" if op == "snapshot" else "false"
    wanted = {
        "before": before,
        "after": after,
        "source": {**SOURCE, "snapshot": snapshot},
        "op": letter,
        "ts_ms": 1465581902461,
        "transaction": None,
    }
    found = value_of(customer(op, before, after))
    assert found == wanted
    assert list(found) == list(wanted)
    assert list(found["source"]) == list(SOURCE)


def test_a_key_is_an_object_with_the_columns_of_the_primary_key() -> None:
    message = FORMAT(customer("insert", None, ANNE), 0)
    assert message is not None
    assert message.key == b'{"id":1004}'


def test_a_change_of_the_key_is_a_delete_and_a_create() -> None:
    assert [value_of(one)["op"] for one in moved(1, 2)] == ["d", "c"]


def test_a_truncate_has_neither_key_nor_rows_and_a_statement_no_message() -> None:
    truncate = replace(made("truncate", 1), key={}, before=None)
    message = FORMAT(truncate, 0)
    assert message is not None
    assert message.key is None
    found = json.loads(message.value)
    assert (found["op"], found["before"], found["after"]) == ("t", None, None)
    assert FORMAT(made("ddl", 1), 0) is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        (True, True),
        (-5, -5),
        (Decimal(2**64 - 1), 2**64 - 1),  # BIGINT UNSIGNED, with no digit lost
        (Decimal("123.45"), "MDk="),  # 12345, as in Kafka Connect's documentation of Decimal
        (Decimal("-1.28"), "gA=="),
        (Decimal("0.00"), "AA=="),
        (1.5, 1.5),
        ("héllo", "héllo"),
        (b"\x00\xff", "AP8="),
        (date(1970, 1, 2), 1),
        (date(1969, 12, 31), -1),
        (timedelta(hours=17, minutes=51, seconds=4, microseconds=777777), 64264777777),
        (timedelta(hours=-1), -3600000000),
        # From "Temporal types" of its documentation.
        (datetime(2018, 6, 20, 6, 37, 3), 1529476623000),
        (datetime(2018, 6, 20, 6, 37, 3, 5000), 1529476623005),
        (datetime(2018, 6, 20, 13, 37, 3, tzinfo=UTC), "2018-06-20T13:37:03Z"),
        (datetime(2018, 6, 20, 13, 37, 3, 500000, tzinfo=UTC), "2018-06-20T13:37:03.5Z"),
    ],
)
def test_a_value_is_as_the_connector_sends_it_by_default(value: Any, wanted: Any) -> None:
    assert column(value) == wanted


def test_microseconds_are_sent_if_they_are_asked_for_and_never_lost() -> None:
    moment = datetime(2018, 6, 20, 6, 37, 3, 5001)
    assert column(moment, DebeziumFormat(datetimes="micros")) == 1529476623005001
    change = made("insert", 1, v=moment)
    with pytest.raises(SinkRefusedError, match="v has microseconds") as refused:
        FORMAT(change, 0)
    assert refused.value.change is change


def test_decimals_are_text_or_doubles_if_they_are_asked_for() -> None:
    assert column(Decimal("1.50"), DebeziumFormat(decimals="string")) == "1.50"
    assert column(Decimal("1.50"), DebeziumFormat(decimals="double")) == 1.5


@given(st.integers(-(10**65) + 1, 10**65 - 1), st.integers(1, 30))
def test_a_precise_decimal_is_javas_shortest_number(unscaled: int, scale: int) -> None:
    value = Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    sent = b64decode(column(value))
    assert int.from_bytes(sent, "big", signed=True) == unscaled
    shorter = sent[1:]
    assert not shorter or int.from_bytes(shorter, "big", signed=True) != unscaled


@given(st.datetimes())
def test_moments_are_read_back(moment: datetime) -> None:
    micros = column(moment, DebeziumFormat(datetimes="micros"))
    assert datetime(1970, 1, 1) + timedelta(microseconds=micros) == moment
    told = column(moment.replace(tzinfo=UTC))
    assert datetime.fromisoformat(told) == moment.replace(tzinfo=UTC)
