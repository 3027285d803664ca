"""What an event says beyond its row: where in the source's log it stands, and why.

Databus has no such fields; it is what consumers in the manner of Canal, Ptubes
and Debezium need. The bytes are Avro, the schema is
`avro/databus.metadata.1.avsc`, and fastavro reads them. Writing happens for
each event of the relay, so the few bytes of a row's own fields are put
together here (a test compares them with fastavro's), after the fields of the
transaction, which fastavro writes once for all its rows.
"""

from __future__ import annotations

import json
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from typing import Any, NamedTuple
from zlib import crc32

import fastavro

from databus.schemas.errors import ProtocolError
from databus.schemas.event import Part

METADATA_SCHEMA_VERSION = 1
METADATA_SCHEMA_TEXT = (
    files("databus.schemas")
    .joinpath("avro", f"databus.metadata.{METADATA_SCHEMA_VERSION}.avsc")
    .read_text(encoding="utf-8")
)
METADATA_CRC32 = crc32(METADATA_SCHEMA_TEXT.encode())
METADATA_DIGEST = METADATA_CRC32.to_bytes(4, "big")

_DEFINITION = json.loads(METADATA_SCHEMA_TEXT)
_SCHEMA = fastavro.parse_schema(_DEFINITION)
_TRANSACTION_FIELDS = 5  # gtid … epoch: those before `op`
_TRANSACTION_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "databus.TransactionMetadata",
        "fields": _DEFINITION["fields"][:_TRANSACTION_FIELDS],
    }
)


class Op(StrEnum):
    """What happened to the row."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    SNAPSHOT = "snapshot"  # nothing: it is how the row stands


class EventMetadata(NamedTuple):
    """One event's metadata. `before` is written with the schema of the payload."""

    op: Op
    gtid: str | None = None
    server_id: int = 0
    file: str = ""
    offset: int = 0  # of the transaction's first byte
    epoch: int = 0
    row_index: int = 0  # in the transaction
    before: bytes | None = None
    comment: str | None = None


# Avro writes an enum as the index of its symbol, an index as a zigzag varint,
# and a union as the branch's index and the value.
_OP_BYTES = {op: bytes([2 * index]) for index, op in enumerate(Op)}
_OPS = {op.value: op for op in Op}
_NULL = b"\x00"
_SMALL_NUMBERS = [bytes([2 * number]) for number in range(64)]


def encode_metadata(metadata: EventMetadata) -> bytes:
    """Return the Avro bytes of an event's metadata."""
    op, gtid, server_id, file, offset, epoch, row_index, before, comment = metadata
    return b"".join(
        (
            _transaction_bytes(gtid, server_id, file, offset, epoch),
            _OP_BYTES[op],
            _SMALL_NUMBERS[row_index] if 0 <= row_index < 64 else _varint(row_index),
            _NULL if before is None else b"\x02" + _varint(len(before)) + before,
            _NULL if comment is None else _text_branch(comment),
        )
    )


def decode_metadata(data: bytes) -> EventMetadata:
    """Read metadata; raises ProtocolError when `data` is not what `encode_metadata` writes."""
    stream = BytesIO(data)
    try:
        fields: Any = fastavro.schemaless_reader(stream, _SCHEMA, None)
        fields["op"] = _OPS[fields["op"]]
    except (EOFError, LookupError, ValueError, OverflowError, TypeError) as error:
        raise ProtocolError(f"metadata cannot be read: {error!r}", stream.tell()) from error
    if stream.tell() != len(data):
        raise ProtocolError("bytes after the metadata", stream.tell())
    return EventMetadata(**fields)


def metadata_part(data: bytes) -> Part:
    """Return the part of an event that carries encoded metadata."""
    return Part(data, METADATA_DIGEST, METADATA_SCHEMA_VERSION)


# The rows of a transaction come one after another, so a few are enough.
@lru_cache(maxsize=16)
def _transaction_bytes(
    gtid: str | None, server_id: int, file: str, offset: int, epoch: int
) -> bytes:
    stream = BytesIO()
    fields = {
        "gtid": gtid,
        "server_id": server_id,
        "file": file,
        "offset": offset,
        "epoch": epoch,
    }
    fastavro.schemaless_writer(stream, _TRANSACTION_SCHEMA, fields)
    return stream.getvalue()


def _text_branch(text: str) -> bytes:
    data = text.encode()
    return b"\x02" + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Write a number that is not negative as Avro's zigzag varint."""
    if number < 0:
        raise ProtocolError(f"a row index cannot be {number}")
    rest = number << 1
    written = bytearray()
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written)


def with_metadata_schemas(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a registration's answer of protocol version 4: the sources' schemas and this one."""
    metadata = {
        "version": METADATA_SCHEMA_VERSION,
        "schema": METADATA_SCHEMA_TEXT,
        "crc32": METADATA_CRC32,
    }
    return {"sourceSchemas": schemas, "metadataSchemas": [metadata]}
