"""Event metadata, with fastavro as the witness."""

from __future__ import annotations

import json
from io import BytesIO
from zlib import crc32

import fastavro
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.metadata import (
    METADATA_CRC32,
    METADATA_SCHEMA_TEXT,
    EventMetadata,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)

SCHEMA = fastavro.parse_schema(json.loads(METADATA_SCHEMA_TEXT))
TEXT = st.text(max_size=20)
METADATA = st.builds(
    EventMetadata,
    op=st.sampled_from(Op),
    gtid=st.none() | TEXT,
    server_id=st.integers(0, (1 << 32) - 1),
    file=TEXT,
    offset=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, 255),
    row_index=st.integers(0, (1 << 31) - 1),
    before=st.none() | st.binary(max_size=200),
    comment=st.none() | TEXT,
)


@given(METADATA)
@example(EventMetadata(Op.UPDATE, row_index=63))
@example(EventMetadata(Op.UPDATE, row_index=64))
@example(EventMetadata(Op.UPDATE, before=b"x" * 8192, comment=""))
def test_the_bytes_are_those_that_fastavro_writes(metadata: EventMetadata) -> None:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, metadata._asdict())
    assert encode_metadata(metadata) == stream.getvalue()
    assert decode_metadata(stream.getvalue()) == metadata


def test_the_operation_comes_back_as_an_op() -> None:
    assert decode_metadata(encode_metadata(EventMetadata(Op.SNAPSHOT))).op is Op.SNAPSHOT


def test_the_fields_are_those_of_the_schema() -> None:
    names = {field["name"] for field in json.loads(METADATA_SCHEMA_TEXT)["fields"]}
    assert names == set(EventMetadata._fields)


def test_the_part_names_its_schema_by_crc32() -> None:
    part = metadata_part(b"data")
    assert part.digest == crc32(METADATA_SCHEMA_TEXT.encode()).to_bytes(4, "big")
    assert part.digest == METADATA_CRC32.to_bytes(4, "big")
    assert (part.data, part.schema_version) == (b"data", 1)


@given(st.binary(max_size=60))
def test_random_bytes_are_metadata_or_a_protocol_error(data: bytes) -> None:
    try:
        metadata = decode_metadata(data)
    except ProtocolError:
        return
    assert metadata.op in Op


@given(METADATA, st.data())
def test_cut_metadata_is_a_protocol_error(metadata: EventMetadata, data: st.DataObject) -> None:
    encoded = encode_metadata(metadata)
    for wrong in (encoded[: data.draw(st.integers(0, len(encoded) - 1))], encoded + b"\0"):
        with pytest.raises(ProtocolError):
            decode_metadata(wrong)


def test_a_negative_row_index_is_refused() -> None:
    with pytest.raises(ProtocolError, match="row index"):
        encode_metadata(EventMetadata(Op.INSERT, row_index=-1))
