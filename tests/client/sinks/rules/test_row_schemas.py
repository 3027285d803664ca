"""A change carries the schema of its rows as they are: after columns, names and masks."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from struct import pack, unpack
from typing import Any

import pytest

from databus.client.sinks.contract import Change
from databus.client.sinks.rules.changes import TableRule, changes_of, with_short_floats
from databus.client.sinks.rules.compaction import compacted
from databus.client.sinks.running.plan import make_plan
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings
from databus.schemas.avro_rows import row_codec
from databus.schemas.columns.avro_columns import Kind, columns_of
from databus.testing import change, make_window
from databus.testing.recorder import Recorder
from tests.client.sinks.changes import made, mysql_schema

ROW = {"id": 1, "mail": "a@b.at", "price": Decimal("1.50"), "note": "x"}


def rule_of(**table: Any) -> TableRule:
    given = {
        "name": "x",
        "kind": "recorder",
        "sources": ["shop.*"],
        "tables": [{"sources": ["shop.orders"], **table}] if table else [],
    }
    return make_plan(build_settings(given, SinkSettings), Recorder().sink).rule_of("shop.orders")


def only(op: str = "insert", **table: Any) -> Change:
    window = make_window(change("shop.orders", ROW, op), scn=5)  # type: ignore[arg-type]
    (found,) = changes_of(window, lambda _: rule_of(**table), with_statements=False)
    return found


def kinds(one: Change) -> dict[str, Kind]:
    assert one.schema is not None
    return {column.name: column.kind for column in columns_of(one.schema)}


def test_it_has_the_columns_and_types_of_the_row() -> None:
    one = only()
    assert list(kinds(one)) == list(ROW)
    assert kinds(one)["price"] is Kind.DECIMAL
    assert one.schema is not None
    assert one.schema.source == "shop.orders"
    assert one.schema.version == 1


@pytest.mark.parametrize(
    "table",
    [
        {"columns": ["id", "price"]},
        {"without": ["note"]},
        {"rename": {"mail": "e-mail", "id": "9"}},
        {"mask": {"price": "redact", "mail": "truncate:2"}},
        {"without": ["mail"], "mask": {"price": "redact"}, "rename": {"price": "mail"}},
    ],
)
@pytest.mark.parametrize("op", ["insert", "delete"])
def test_the_row_is_one_of_its_schema_and_its_key_is_known(table: dict[str, Any], op: str) -> None:
    one = only(op, **table)
    assert one.schema is not None
    row = one.after or one.before
    assert row is not None
    codec = row_codec(one.schema.text, has_durations=True)
    assert codec.decode(codec.encode(dict(row))) == row
    assert codec.key_columns == tuple(one.key)


def test_a_redacted_number_is_a_column_of_texts_that_may_be_null() -> None:
    one = only(mask={"price": "redact"})
    assert one.schema is not None
    (price,) = (column for column in columns_of(one.schema) if column.name == "price")
    assert (price.kind, price.branches, price.sql_type) == (Kind.STRING, ("null", "string"), "")


def test_a_truncate_has_none() -> None:
    assert only("truncate").schema is None


def test_rows_of_two_schemas_are_not_made_one() -> None:
    later = make_window(change("shop.orders", {"id": 1, "price": 2}, "update"), scn=6)
    rule = rule_of()
    changes = [only(), *changes_of(later, lambda _: rule, with_statements=False)]
    assert [list(one.after or ()) for one in compacted(changes)] == [list(ROW), ["id", "price"]]


def test_values_of_a_float_have_the_fewest_digits_and_those_of_a_double_all() -> None:
    schema = mysql_schema(f="float", d="double")
    single = unpack("f", pack("f", 0.1))[0]
    row = {"id": 1, "f": single, "d": single}
    one = made("update", 1, f=single, d=single, before_f=None, before_d=single)
    short = with_short_floats(replace(one, schema=schema))
    assert short.after == row | {"f": 0.1}
    assert short.before == row | {"f": None}
    assert with_short_floats(one) is one  # nothing is known of its columns
