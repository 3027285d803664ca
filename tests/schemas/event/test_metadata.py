"""Event metadata, with fastavro as the witness."""

from __future__ import annotations

import json
from base64 import b64decode
from importlib.resources import files
from io import BytesIO
from typing import Any
from zlib import crc32

import fastavro
import pytest
from hypothesis import example, given, strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.event._metadata_reader import read_plain
from databus.schemas.event.metadata import (
    METADATA_CRC32,
    METADATA_DIGESTS,
    METADATA_SCHEMA_TEXT,
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
    with_metadata_schemas,
)

SCHEMA = fastavro.parse_schema(json.loads(METADATA_SCHEMA_TEXT))
FIRST_TEXT = (
    files("databus.schemas").joinpath("avro/databus.metadata.1.avsc").read_text(encoding="utf-8")
)
FIRST_DIGEST = crc32(FIRST_TEXT.encode()).to_bytes(4, "big")
# As it was first written; rings and stores hold this digest.
DIGEST_IN_OLD_RINGS = bytes.fromhex("db8d75e2")
TEXT = st.text(max_size=20)
POSITIONS = st.lists(st.integers(0, 5000), max_size=80).map(tuple)
RAW = st.dictionaries(TEXT, TEXT, max_size=4)
NOTES = st.builds(Notes, POSITIONS, POSITIONS, RAW, RAW)
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
    notes=st.none() | NOTES,
)


def fields_of(metadata: EventMetadata) -> dict[str, Any]:
    """Return what fastavro takes: to it a tuple is a branch of a union."""
    notes = metadata.notes
    return metadata._asdict() | {"notes": None if notes is None else notes._asdict()}


@given(METADATA)
@example(EventMetadata(Op.UPDATE, row_index=63))
@example(EventMetadata(Op.UPDATE, row_index=64))
@example(EventMetadata(Op.UPDATE, before=b"x" * 8192, comment=""))
@example(EventMetadata(Op.TRUNCATE, notes=Notes()))
@example(EventMetadata(Op.INSERT, notes=Notes((1, 200), (), {"b": "0000-00-00", "a": ""})))
def test_the_bytes_are_those_that_fastavro_writes(metadata: EventMetadata) -> None:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, fields_of(metadata))
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
    assert (part.data, part.schema_version) == (b"data", 2)


def test_without_notes_there_is_one_byte_more_than_in_version_1() -> None:
    metadata = EventMetadata(Op.UPDATE, "0-1-2", 1, "log", 4, 0, 7, b"before", "why")
    fields = metadata._asdict()
    del fields["notes"]
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(FIRST_TEXT)), fields)
    assert encode_metadata(metadata) == stream.getvalue() + b"\0"
    assert decode_metadata(stream.getvalue(), FIRST_DIGEST) == metadata


def test_the_schema_of_older_rings_did_not_change() -> None:
    assert FIRST_DIGEST == DIGEST_IN_OLD_RINGS
    assert DIGEST_IN_OLD_RINGS in METADATA_DIGESTS


def test_metadata_of_an_unknown_schema_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="00000000"):
        decode_metadata(encode_metadata(EventMetadata(Op.INSERT)), bytes(4))


def test_a_registration_tells_every_version() -> None:
    told = with_metadata_schemas([])["metadataSchemas"]
    assert [schema["version"] for schema in told] == [1, 2]
    assert [schema["schema"] for schema in told] == [FIRST_TEXT, METADATA_SCHEMA_TEXT]
    assert [b64decode(schema["crc32"], validate=True) for schema in told] == [
        FIRST_DIGEST,
        METADATA_CRC32.to_bytes(4, "big"),
    ]


@given(st.binary(max_size=60), st.sampled_from(sorted(METADATA_DIGESTS)))
def test_random_bytes_are_metadata_or_a_protocol_error(data: bytes, digest: bytes) -> None:
    try:
        metadata = decode_metadata(data, digest)
    except ProtocolError:
        return
    assert metadata.op in Op


@given(METADATA, st.data())
def test_the_compiled_reader_says_what_fastavro_says_of_changed_bytes(
    metadata: EventMetadata, data: st.DataObject
) -> None:
    changed = bytearray(encode_metadata(metadata))
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    plain = read_plain(bytes(changed), tuple(Op))
    if plain is None:
        return
    stream = BytesIO(changed)
    read: Any = fastavro.schemaless_reader(stream, SCHEMA, None)
    assert stream.tell() == len(changed)
    assert EventMetadata._make(plain)._asdict() == read


@given(METADATA)
def test_the_compiled_reader_leaves_no_event_without_notes_to_fastavro(
    metadata: EventMetadata,
) -> None:
    plain = read_plain(encode_metadata(metadata), tuple(Op))
    assert plain == (None if metadata.notes is not None else tuple(metadata))


@given(METADATA, st.data())
def test_cut_metadata_is_a_protocol_error(metadata: EventMetadata, data: st.DataObject) -> None:
    encoded = encode_metadata(metadata)
    for wrong in (encoded[: data.draw(st.integers(0, len(encoded) - 1))], encoded + b"\0"):
        with pytest.raises(ProtocolError):
            decode_metadata(wrong)


def test_a_negative_row_index_is_refused() -> None:
    with pytest.raises(ProtocolError, match="row index"):
        encode_metadata(EventMetadata(Op.INSERT, row_index=-1))
