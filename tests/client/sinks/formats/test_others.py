"""Maxwell's messages, Canal's flat message and CloudEvents, against their documentation."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.sinks.contract import Change, ChangeOp, Position, TransactionInfo
from databus.client.sinks.formats.canal import canal_message
from databus.client.sinks.formats.choosing import DebeziumSettings, chosen_format
from databus.client.sinks.formats.cloud_events import cloud_event
from databus.client.sinks.formats.maxwell import maxwell_message
from databus.client.sinks.formats.message import AvroMessage, Message
from databus.client.sinks.formats.plain import plain_json
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.changes import made, mysql_schema

AT_NS = 1_477_053_217_523_000_000
POSITION = Position("shop", Checkpoint.at(23396))
# The table `test.e` of Maxwell's "Data format".
ROW = {
    "id": 1,
    "m": 4.2341,
    "c": datetime(2016, 10, 21, 5, 33, 37, 523000, tzinfo=UTC),
    "comment": "I am a creature of light.",
}
NEW = {**ROW, "m": 5.444, "c": datetime(2016, 10, 21, 5, 33, 54, 631000, tzinfo=UTC)}
DATA = {**ROW, "c": "2016-10-21 05:33:37.523000"}
NEW_DATA = {**NEW, "c": "2016-10-21 05:33:54.631000"}


def change(op: str, before: Any, after: Any) -> Change:
    info = TransactionInfo(23396, AT_NS)
    return Change(
        ChangeOp(op),
        "test.e",
        {"id": 1},
        before,
        after,
        info,
        23396,
        AT_NS,
        position=POSITION,
    )


def maxwell(one: Change) -> Any:
    message = maxwell_message(one, 0)
    assert message is not None
    return json.loads(message.value, parse_float=Decimal)


def canal(one: Change) -> Any:
    return json.loads(canal_message(one, 1_589_373_515_477).value)


@pytest.mark.parametrize(
    ("op", "before", "after", "rest"),
    [
        ("insert", None, ROW, {"data": DATA}),
        (
            "update",
            ROW,
            NEW,
            {"data": NEW_DATA, "old": {"m": 4.2341, "c": "2016-10-21 05:33:37.523000"}},
        ),
        ("delete", NEW, None, {"data": NEW_DATA}),
    ],
)
def test_maxwells_messages_field_by_field(op: str, before: Any, after: Any, rest: Any) -> None:
    head = {"database": "test", "table": "e", "type": op, "ts": 1477053217}
    wanted = {**head, "xid": 23396, "commit": True, **rest}
    message = maxwell_message(change(op, before, after), 0)
    assert message is not None
    assert json.loads(message.value) == wanted
    assert list(json.loads(message.value)) == list(wanted)
    assert json.loads(message.key or b"") == {"database": "test", "table": "e", "pk.id": 1}


def test_maxwells_rows_within_a_transaction_have_their_number() -> None:
    found = maxwell(replace(change("insert", None, ROW), position=None, index=3))
    assert found["xoffset"] == 3
    assert "commit" not in found


def test_maxwells_bootstrap_has_no_transaction() -> None:
    found = maxwell(change("snapshot", None, ROW))
    assert found["type"] == "bootstrap-insert"
    assert not {"xid", "commit", "xoffset"} & found.keys()


def test_maxwell_sends_neither_truncates_nor_statements() -> None:
    assert maxwell_message(made("truncate", 1), 0) is None
    assert maxwell_message(made("ddl", 1), 0) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=10))
def test_maxwells_decimals_are_numbers_with_all_digits(value: Decimal) -> None:
    message = maxwell_message(made("insert", 1, v=value), 0)
    assert message is not None
    found = json.loads(message.value, parse_float=Decimal)["data"]["v"]
    assert format(found, "f") == format(value, "f")


@pytest.mark.parametrize(
    ("op", "before", "after", "data", "old"),
    [
        ("INSERT", None, ROW, DATA, None),
        ("UPDATE", ROW, NEW, NEW_DATA, {"m": "4.2341", "c": "2016-10-21 05:33:37.523000"}),
        ("DELETE", NEW, None, NEW_DATA, None),
    ],
)
def test_canals_flat_message_field_by_field(
    op: str, before: Any, after: Any, data: Any, old: Any
) -> None:
    wanted = {
        "data": [{name: str(value) for name, value in data.items()}],
        "database": "test",
        "es": 1477053217523,
        "gtid": "",
        "id": 23396,
        "isDdl": False,
        "mysqlType": None,
        "old": None if old is None else [old],
        "pkNames": ["id"],
        "sql": "",
        "sqlType": None,
        "table": "e",
        "ts": 1589373515477,
        "type": op,
    }
    assert canal(change(op.lower(), before, after)) == wanted


def test_canals_truncate_has_no_rows() -> None:
    found = canal(replace(made("truncate", 1), key={}))
    assert (found["type"], found["isDdl"], found["data"]) == ("TRUNCATE", True, None)


@pytest.mark.parametrize(
    ("value", "in_maxwell", "in_canal"),
    [
        (None, None, None),
        (True, True, "1"),
        (Decimal(2**64 - 1), 2**64 - 1, str(2**64 - 1)),
        (b"\x00\xff", "AP8=", "\x00\xff"),
        (date(2026, 11, 28), "2026-11-28", "2026-11-28"),
        (datetime(2026, 11, 28, 1, 2, 3), "2026-11-28 01:02:03", "2026-11-28 01:02:03"),
        (timedelta(hours=-838, minutes=-59, seconds=-59), "-838:59:59", "-838:59:59"),
        (timedelta(seconds=1, microseconds=5), "00:00:01.000005", "00:00:01.000005"),
    ],
)
def test_values_are_as_mysql_writes_them(value: Any, in_maxwell: Any, in_canal: Any) -> None:
    one = made("insert", 1, v=value)
    assert maxwell(one)["data"]["v"] == in_maxwell
    assert canal(one)["data"][0]["v"] == in_canal


def test_a_cloud_event_has_what_version_1_requires() -> None:
    one = replace(change("insert", None, ROW), source="my db.e")
    message = cloud_event(one, 0)
    assert json.loads(message.value) == {
        "specversion": "1.0",
        "id": "23396:0",
        "source": "/databus/my%20db.e",
        "type": "databus.insert",
        "time": "2016-10-21T12:33:37.523000Z",
        "datacontenttype": "application/json",
        "data": plain_json(one),
    }
    assert message.headers == {"content-type": b"application/cloudevents+json; charset=UTF-8"}
    assert message.key == b'{"id":1}'


def test_each_format_is_chosen_by_its_name() -> None:
    row = {"id": 1, "v": "x"}
    one = replace(change("insert", None, row), schema=mysql_schema("test.e", v="text"))
    firsts = []
    for name in ("plain", "debezium", "maxwell", "canal", "cloudevents"):
        message = chosen_format(name, DebeziumSettings())(one, 5)
        assert isinstance(message, Message)
        firsts.append(next(iter(json.loads(message.value))))
    assert firsts == ["op", "before", "database", "data", "specversion"]
    assert isinstance(chosen_format("avro", DebeziumSettings())(one, 5), AvroMessage)
