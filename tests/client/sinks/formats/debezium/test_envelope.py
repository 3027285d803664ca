"""Debezium's envelope, against the messages of its documentation."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from databus import __version__
from databus.client.sinks.contract import Change, ChangeOp, TransactionInfo
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.formats.debezium.envelope import DebeziumFormat
from databus.client.sinks.formats.message import AvroMessage, Message
from tests.client.sinks.changes import made, moved, mysql_schema

FORMAT = DebeziumFormat("mysql-server-1")
AT_NS = 1_465_581_902_000_000_000
GTID = "0-223344-17"
# Of the table `customers` of the connector's documentation, MySQL, "Change event values".
ANNE = {"id": 1004, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
ANNE_MARIE = {**ANNE, "first_name": "Anne Marie"}
CUSTOMERS = mysql_schema(
    "inventory.customers",
    first_name="varchar(255) not null",
    last_name="varchar(255) not null",
    email="varchar(255) not null",
)
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
    return Change(
        *(ChangeOp(op), "inventory.customers", key, before, after, info, 484, AT_NS),
        schema=CUSTOMERS,
    )


def value_of(change: Change, form: DebeziumFormat = FORMAT) -> Any:
    message = form(change, 1465581902461)
    assert isinstance(message, Message)
    return json.loads(message.value)


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
    halves = [replace(one, schema=mysql_schema()) for one in moved(1, 2)]
    assert [value_of(one)["op"] for one in halves] == ["d", "c"]


def test_a_truncate_has_neither_key_nor_rows_and_a_statement_no_message() -> None:
    truncate = replace(made("truncate", 1), key={}, before=None)
    message = FORMAT(truncate, 0)
    assert isinstance(message, Message)
    assert message.key is None
    found = json.loads(message.value)
    assert (found["op"], found["before"], found["after"]) == ("t", None, None)
    assert FORMAT(made("ddl", 1), 0) is None


TEXT = {"type": "string", "optional": False}
KEY_SCHEMA = {
    "type": "struct",
    "fields": [{"type": "int32", "optional": False, "field": "id"}],
    "optional": False,
    "name": "mysql-server-1.inventory.customers.Key",
}


def value_schema(field: str) -> dict[str, Any]:
    names = ("first_name", "last_name", "email")
    return {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": False, "field": "id"},
            *({**TEXT, "field": name} for name in names),
        ],
        "optional": True,
        "name": "mysql-server-1.inventory.customers.Value",
        "field": field,
    }


def test_a_message_with_schemas_has_those_of_the_documentation() -> None:
    message = replace(FORMAT, converter="json-schemas")(customer("insert", None, ANNE), 5)
    assert isinstance(message, Message)
    assert json.loads(message.key or b"") == {"schema": KEY_SCHEMA, "payload": {"id": 1004}}
    found = json.loads(message.value)
    assert found["payload"]["after"] == ANNE
    schema = found["schema"]
    assert schema["name"] == "mysql-server-1.inventory.customers.Envelope"
    fields = {one["field"]: one for one in schema["fields"]}
    assert fields["before"] == value_schema("before")
    assert fields["after"] == value_schema("after")
    assert fields["op"] == {**TEXT, "field": "op"}
    assert fields["ts_ms"] == {"type": "int64", "optional": True, "field": "ts_ms"}
    assert fields["source"]["name"] == "io.debezium.connector.mysql.Source"
    assert [one["field"] for one in fields["source"]["fields"]] == list(SOURCE)
    assert fields["source"]["fields"][4] == {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": "true,last,false,incremental"},
        "default": "false",
        "field": "snapshot",
    }
    assert fields["transaction"]["name"] == "event.block"


def read(part: Any) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(part.data), json.loads(part.schema), None)


def test_a_message_in_avro_is_read_back_by_its_schema() -> None:
    message = replace(FORMAT, converter="avro")(customer("update", ANNE, ANNE_MARIE), 5)
    assert isinstance(message, AvroMessage)
    assert message.key is not None
    assert message.value is not None
    assert read(message.key) == {"id": 1004}
    found = read(message.value)
    assert (found["before"], found["after"], found["op"]) == (ANNE, ANNE_MARIE, "u")
    assert found["source"] == SOURCE
    schema = json.loads(message.value.schema)
    assert (schema["namespace"], schema["name"]) == (
        "mysql_server_1.inventory.customers",
        "Envelope",
    )
    before, after = schema["fields"][:2]
    assert before["type"][1]["name"] == "Value"
    # The second time a record is named.
    assert after["type"] == ["null", "mysql_server_1.inventory.customers.Value"]


def test_a_row_that_is_not_whole_is_refused_where_a_schema_has_all_columns() -> None:
    part = customer("update", {"id": 1004}, {"id": 1004, "first_name": "Anne"})
    for converter in ("json-schemas", "avro"):
        form = replace(FORMAT, converter=converter)
        with pytest.raises(SinkRefusedError, match="last_name was not logged") as refused:
            form(part, 0)
        assert refused.value.change is part
        # Of the row before, what is not known is left out as a whole.
        whole = replace(part, after=ANNE)
        message = form(whole, 0)
        found = (
            read(message.value)
            if isinstance(message, AvroMessage)
            else json.loads(message.value)["payload"]  # type: ignore[union-attr]
        )
        assert (found["before"], found["after"]) == (None, ANNE)
    assert value_of(part)["after"] == {"id": 1004, "first_name": "Anne"}


def test_names_that_avro_does_not_allow_are_replaced_and_stay_apart() -> None:
    schema = mysql_schema("shop.my-orders", **{"a b": "int", "a-b": "int", "9": "int"})
    row = {"id": 1, "a b": 2, "a-b": 3, "9": 4}
    change = replace(made("insert", 1, "shop.my-orders"), after=row, schema=schema)
    message = DebeziumFormat(converter="avro")(change, 0)
    assert isinstance(message, AvroMessage)
    assert message.value is not None
    assert read(message.value)["after"] == {"id": 1, "a_b": 2, "a_b_2": 3, "_9": 4}
