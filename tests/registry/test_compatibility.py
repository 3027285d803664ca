"""What can read what, and which field the answer names."""

from __future__ import annotations

import io
import json
import string
from typing import Any

import fastavro
import pytest
from hypothesis import given, strategies as st

from databus.registry.compatibility import check_new_version, check_reader, parse_record
from databus.schemas.errors import IncompatibleSchemaError, SchemaError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests.registry.texts import ORDERS_1, ORDERS_2, ORDERS_3, TEXT_ID, nullable, record


def test_a_new_column_that_may_be_null_is_compatible_both_ways() -> None:
    check_new_version(ORDERS_1, ORDERS_2)
    check_reader("shop.orders", ORDERS_2, ORDERS_1)
    assert parse_record(ORDERS_2).fullname == "shop.orders"


def test_a_new_column_without_default_is_refused_by_name() -> None:
    new = record(("id", "long"), ("total", "double"), ("customer", "long"))
    with pytest.raises(IncompatibleSchemaError) as caught:
        check_new_version(ORDERS_1, new)
    assert caught.value.field == "customer"
    assert caught.value.source == "shop.orders"
    assert "no default" in caught.value.reason


def test_a_dropped_column_is_missed_only_by_a_reader_without_default_for_it() -> None:
    check_new_version(ORDERS_2, ORDERS_3)
    with pytest.raises(IncompatibleSchemaError) as caught:
        check_reader("shop.orders", ORDERS_3, ORDERS_1)
    assert caught.value.field == "total"


def test_a_changed_type_is_refused_with_both_types() -> None:
    with pytest.raises(IncompatibleSchemaError, match=r"'id'.*string.*long"):
        check_new_version(ORDERS_1, TEXT_ID)


@pytest.mark.parametrize(
    ("written", "read", "is_readable"),
    [
        ("int", "long", True),
        ("long", "int", False),
        ("int", "double", True),
        ("double", "float", False),
        ("string", "bytes", True),
        ("bytes", "string", True),
        ("long", ["null", "long"], True),
        (["null", "long"], "long", False),
        (["null", "int"], ["null", "long"], True),
        (["null", "string"], ["null", "long"], False),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, False),
        (
            {"type": "fixed", "name": "f", "size": 4},
            {"type": "fixed", "name": "f", "size": 8},
            False,
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            {"type": "long", "logicalType": "local-timestamp-micros"},
            True,
        ),
    ],
)
def test_types_are_promoted_as_avro_says(written: Any, read: Any, is_readable: bool) -> None:
    writer, reader = record(("a", "int"), ("x", written)), record(("a", "int"), ("x", read))
    if is_readable:
        assert check_reader("s", writer, reader) is None  # type: ignore[func-returns-value]
        return
    with pytest.raises(IncompatibleSchemaError) as caught:
        check_reader("s", writer, reader)
    assert caught.value.field == "x"


def test_the_outer_field_is_named_when_an_inner_one_is_wrong() -> None:
    def customer(zip_type: str) -> dict[str, Any]:
        fields = [{"name": "zip", "type": zip_type}]
        return {"type": "record", "name": "customer", "fields": fields}

    with pytest.raises(IncompatibleSchemaError) as caught:
        check_reader("s", record(("who", customer("string"))), record(("who", customer("int"))))
    assert caught.value.field == "who"
    assert "string" in caught.value.reason


def test_a_record_that_contains_itself_is_checked_to_its_end() -> None:
    def node(value: str) -> str:
        return record(nullable("next", "tree.node"), ("value", value), name="tree.node")

    check_new_version(node("int"), node("long"))
    with pytest.raises(IncompatibleSchemaError):
        check_new_version(node("string"), node("long"))


def test_records_of_different_names_do_not_match_without_an_alias() -> None:
    other = record(("id", "long"), ("total", "double"), name="shop.sales")
    with pytest.raises(IncompatibleSchemaError, match="name mismatch"):
        check_reader("shop.orders", ORDERS_1, other)
    with_alias = json.dumps({**json.loads(other), "aliases": ["shop.orders"]})
    check_reader("shop.orders", ORDERS_1, with_alias)


def test_schemas_made_from_tables_are_checked_without_a_warning() -> None:
    types = ["bigint unsigned", "decimal(10,2)", "date", "time", "datetime", "timestamp", "json"]
    columns = tuple(Column(f"c{i}", t, i) for i, t in enumerate(types))
    text = avro_schema(Table("shop.types", columns))
    wider = (*columns, Column("extra", "int", len(types)))
    check_new_version(text, avro_schema(Table("shop.types", wider)))
    assert [f.name for f in parse_record(text).fields] == [c.name for c in columns]


NO_RECORDS = ["", "{", "null", "3", '"long"', "[]", '{"type":["a"]}', "[" * 100_000]
NO_RECORDS += ['{"type":"record"}', '{"type":"record","name":"a"}']
NO_RECORDS += ['{"type":"record","name":"a","fields":[{"name":"b"}]}']


@pytest.mark.parametrize("text", NO_RECORDS)
def test_what_is_no_record_is_a_schema_error(text: str) -> None:
    with pytest.raises(SchemaError):
        check_reader("s", text, ORDERS_1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["record", "a", "int", "array"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "size"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_record_or_a_schema_error(value: Any) -> None:
    problem = None
    try:
        assert parse_record(json.dumps(value)).type == "record"
    except SchemaError as error:
        problem = str(error)
    assert problem != ""


TYPES = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean"])
VALUES: dict[str, Any] = {"int": 7, "long": 1 << 40, "float": 0.5, "double": 2.5}
VALUES |= {"string": "x", "bytes": b"y", "boolean": True}
FIELDS = st.dictionaries(st.sampled_from(string.ascii_lowercase[:5]), TYPES, min_size=1)


@given(FIELDS, FIELDS)
def test_what_is_called_readable_is_read_by_fastavro(
    written: dict[str, str], read: dict[str, str]
) -> None:
    writer, reader = record(*written.items()), record(*read.items())
    bad_field = None
    try:
        check_reader("s", writer, reader)
    except IncompatibleSchemaError as error:
        bad_field = error.field
    if bad_field is not None:
        assert bad_field in read
        return
    out = io.BytesIO()
    row = {name: VALUES[avro_type] for name, avro_type in written.items()}
    fastavro.schemaless_writer(out, json.loads(writer), row)
    out.seek(0)
    back = fastavro.schemaless_reader(out, json.loads(writer), json.loads(reader))
    assert isinstance(back, dict)
    assert set(back) == set(read)
