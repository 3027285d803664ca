"""Events as lines of JSON."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.json import json_line, json_plain_value_line, json_value
from databus.schemas.event.metadata import EventMetadata, Notes, Op, encode_metadata, metadata_part
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

TEXT = avro_schema(
    Table("shop.t", (Column("id", "int", 0, False, 0), Column("n", "decimal(5,2)", 1)))
)
CODEC = RowCodec(TEXT)
ROW = Event(
    scn=5,
    timestamp_ns=6,
    src_id=40,
    partition_id=7,
    key=1,
    opcode=Opcode.UPSERT,
    payload=Part(CODEC.encode({"id": 1, "n": Decimal("2.50")}), schema_id(TEXT), 3),
    metadata=None,
)
HEADER = {
    "opcode": "UPSERT",
    "key": 1,
    "sequence": 5,
    "logicalPartitionId": 7,
    "physicalPartitionId": 7,
    "timestampInNanos": 6,
    "srcId": 40,
    "schemaId": b64encode(schema_id(TEXT)).decode(),
}


def test_json_has_the_keys_of_databus_and_the_value_in_base64() -> None:
    line = json_line(ROW)
    assert line.endswith(b"}\n")
    assert b"\n" not in line[:-1]
    fields = json.loads(line)
    assert b64decode(fields.pop("value")) == ROW.value
    assert fields == {**HEADER, "valueEnc": "JSON"}


def test_a_byte_key_goes_in_base64() -> None:
    fields = json.loads(json_line(ROW._replace(key=b"\xff,1")))
    assert b64decode(fields["keyBytes"]) == b"\xff,1"
    assert "key" not in fields


def test_an_end_of_period_says_so_and_has_no_opcode() -> None:
    for line in (json_line(end_of_period(5, 6)), json_plain_value_line(end_of_period(5, 6), None)):
        fields = json.loads(line)
        assert fields["endOfPeriod"] is True
        assert (fields["srcId"], fields["sequence"], fields["value"]) == (-2, 5, "")
        assert "opcode" not in fields


def test_the_plain_value_is_the_row() -> None:
    fields = json.loads(json_plain_value_line(ROW, CODEC))
    assert fields == {**HEADER, "valueEnc": "JSON_PLAIN_VALUE", "value": {"id": 1, "n": "2.50"}}


def test_the_plain_value_comes_with_the_metadata_and_the_row_before() -> None:
    before = CODEC.encode({"id": 1, "n": None})
    metadata = EventMetadata(Op.UPDATE, gtid="0-1-2", row_index=3, before=before)
    event = ROW._replace(metadata=metadata_part(encode_metadata(metadata)))
    fields = json.loads(json_plain_value_line(event, CODEC))
    assert fields["before"] == {"id": 1, "n": None}
    assert fields["metadata"]["op"] == "update"
    assert (fields["metadata"]["gtid"], fields["metadata"]["row_index"]) == ("0-1-2", 3)
    assert "before" not in fields["metadata"]


def test_columns_that_are_absent_are_left_out_of_the_plain_value() -> None:
    data = CODEC.encode({"id": 7}, [1])
    notes = Notes((1,), (1,), {"n": "0000-00-00"})
    metadata = EventMetadata(Op.UPDATE, before=data, notes=notes)
    event = ROW._replace(
        payload=Part(data, schema_id(TEXT)), metadata=metadata_part(encode_metadata(metadata))
    )
    fields = json.loads(json_plain_value_line(event, CODEC))
    assert fields["value"] == fields["before"] == {"id": 7}
    assert fields["metadata"]["notes"] == {
        "absent": [1],
        "before_absent": [1],
        "raw": {"n": "0000-00-00"},
        "before_raw": {},
    }


def test_an_event_about_a_whole_table_has_no_value() -> None:
    told = metadata_part(encode_metadata(EventMetadata(Op.TRUNCATE)))
    event = ROW._replace(opcode=Opcode.DELETE, key=b"", payload=None, metadata=told)
    fields = json.loads(json_plain_value_line(event, None))
    assert (fields["value"], fields["keyBytes"], fields["opcode"]) == (None, "", "DELETE")
    assert fields["metadata"]["op"] == "truncate"
    assert "notes" not in fields["metadata"]


def test_metadata_of_another_maker_is_left_out() -> None:
    event = ROW._replace(metadata=Part(b"?", b"else", 9))
    assert "metadata" not in json.loads(json_plain_value_line(event, CODEC))


def test_a_traced_event_says_so() -> None:
    assert json.loads(json_line(ROW._replace(is_traced=True)))["traceEnabled"] is True


def test_a_value_that_is_no_row_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        json_plain_value_line(ROW._replace(payload=Part(b"", schema_id(TEXT))), CODEC)


def test_values_that_json_has_no_word_for() -> None:
    value = {
        "a": Decimal("1E+2"),
        "b": b"\x00\xff",
        "c": datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "d": date(2024, 1, 2),
        "e": [math.inf, -math.inf, math.nan, 1.5],
        "f": {"g": None, "h": True, "i": 1 << 60},
    }
    assert json_value(value) == {
        "a": "100",
        "b": "AP8=",
        "c": "2024-01-02T03:04:05.000006+00:00",
        "d": "2024-01-02",
        "e": ["Infinity", "-Infinity", "NaN", 1.5],
        "f": {"g": None, "h": True, "i": 1 << 60},
    }
