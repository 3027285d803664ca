"""The metadata of an event: its position in the source's log, and its cause.

Databus has no such fields; it is what consumers in the manner of Canal, Ptubes
and Debezium need. The bytes are Avro, the schema is
`avro/databus.metadata.2.avsc`, and fastavro reads what `_metadata_reader`
does not. Writing happens for each event of the relay, so the few bytes of a
row's own fields are put together here (a test compares them with fastavro's),
after the fields of the transaction, which fastavro writes once for all its rows.

Version 1, without `truncate` and `notes`, is still read: older rings and
stores hold it. Which version it is, the part's digest says.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from typing import Any, NamedTuple
from zlib import crc32

import fastavro

from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import Event, Part

try:
    from databus.schemas.event._metadata_reader import read_plain
except ImportError:  # not built

    def read_plain(data: bytes, ops: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: ARG001
        """Return None: fastavro reads everything."""
        return None


METADATA_SCHEMA_VERSION = 2  # of what is written


class _Version(NamedTuple):
    """One version of the schema."""

    number: int
    text: str
    crc32: int
    schema: Any  # as fastavro parsed it

    @property
    def digest(self) -> bytes:
        return self.crc32.to_bytes(4, "big")


def _load(number: int) -> _Version:
    folder = files("databus.schemas").joinpath("avro")
    text = folder.joinpath(f"databus.metadata.{number}.avsc").read_text(encoding="utf-8")
    return _Version(number, text, crc32(text.encode()), fastavro.parse_schema(json.loads(text)))


_VERSIONS = tuple(_load(number) for number in range(1, METADATA_SCHEMA_VERSION + 1))
_BY_DIGEST = {version.digest: version for version in _VERSIONS}
_WRITTEN = _VERSIONS[-1]

METADATA_SCHEMA_TEXT = _WRITTEN.text
METADATA_CRC32 = _WRITTEN.crc32
METADATA_DIGEST = _WRITTEN.digest
METADATA_DIGESTS = frozenset(_BY_DIGEST)  # of all versions that can be read

_TRANSACTION_FIELDS = 5  # gtid … epoch: those before `op`
_TRANSACTION_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "databus.TransactionMetadata",
        "fields": json.loads(METADATA_SCHEMA_TEXT)["fields"][:_TRANSACTION_FIELDS],
    }
)


class Op(StrEnum):
    """What happened to the row, or to all rows of its table."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    SNAPSHOT = "snapshot"  # nothing: it is how the row stands
    TRUNCATE = "truncate"  # all rows of the table are gone; the event has no row


class Notes(NamedTuple):
    """What a row's Avro bytes cannot say, of the row and of the row before it.

    `absent` are the positions of columns (from 0, in the schema's order) whose
    value the source did not log: the payload has a filler there. `raw` has, by
    column and in the columns' order, the server's own text of a value that the
    schema has no place for, as a zero date: the payload has null there.
    """

    absent: tuple[int, ...] = ()
    before_absent: tuple[int, ...] = ()
    raw: Mapping[str, str] = {}
    before_raw: Mapping[str, str] = {}


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
    notes: Notes | None = None


# Avro writes an enum as the index of its symbol, an index as a zigzag varint,
# and a union as the branch's index and the value.
_OP_BYTES = {op: bytes([2 * index]) for index, op in enumerate(Op)}
_OPS = {op.value: op for op in Op}
_OPS_IN_ORDER = tuple(Op)
_NULL = _END = b"\x00"
_BRANCH = b"\x02"  # the one that is not null
_SMALL_NUMBERS = [bytes([2 * number]) for number in range(64)]


def encode_metadata(metadata: EventMetadata) -> bytes:
    """Return the Avro bytes of an event's metadata."""
    op, gtid, server_id, file, offset, epoch, row_index, before, comment, notes = metadata
    return b"".join(
        (
            _transaction_bytes(gtid, server_id, file, offset, epoch),
            _OP_BYTES[op],
            _SMALL_NUMBERS[row_index] if 0 <= row_index < 64 else _varint(row_index),
            _NULL if before is None else _BRANCH + _varint(len(before)) + before,
            _NULL if comment is None else _BRANCH + _text(comment),
            _NULL if notes is None else _BRANCH + _notes_bytes(notes),
        )
    )


def decode_metadata(data: bytes, digest: bytes = METADATA_DIGEST) -> EventMetadata:
    """Read metadata; `digest` is that of its part and says the version.

    Raises ProtocolError when `data` is not what `encode_metadata` of that
    version writes, or when the digest is not among METADATA_DIGESTS.
    """
    if digest == METADATA_DIGEST:
        plain = read_plain(data, _OPS_IN_ORDER)
        if plain is not None:
            return EventMetadata._make(plain)
    version = _BY_DIGEST.get(digest)
    if version is None:
        raise ProtocolError(f"no metadata schema has the digest {digest.hex()}")
    stream = BytesIO(data)
    try:
        fields: Any = fastavro.schemaless_reader(stream, version.schema, None)
        fields["op"] = _OPS[fields["op"]]
        if fields.get("notes") is not None:
            fields["notes"] = _read_notes(fields["notes"])
    except (EOFError, LookupError, ValueError, OverflowError, TypeError) as error:
        raise ProtocolError(f"metadata cannot be read: {error!r}", stream.tell()) from error
    if stream.tell() != len(data):
        raise ProtocolError("bytes after the metadata", stream.tell())
    return EventMetadata(**fields)


def metadata_of(event: Event) -> EventMetadata | None:
    """Read the metadata of an event; None if it has none, or none of a known version."""
    part = event.metadata
    if part is None or part.digest not in METADATA_DIGESTS:
        return None
    return decode_metadata(part.data, part.digest)


def gtid_bytes(gtid: str) -> bytes:
    """Return the bytes with which the metadata of a transaction with this GTID begins."""
    return _BRANCH + _text(gtid)


def may_have_notes(data: bytes) -> bool:
    """Whether metadata of the version that is written may have notes.

    Cheaper than to read it, for most has none. True too for what is damaged,
    or so large that it is not looked through here.
    """
    try:
        at = _end_of_text(data, 1) if data[0] else 1  # gtid
        at = _end_of_number(data, at)  # server_id
        at = _end_of_text(data, at)  # file
        at = _end_of_number(data, _end_of_number(data, at)) + 1  # offset, epoch, op
        at = _end_of_number(data, at)  # row_index
        for _ in ("before", "comment"):
            at = _end_of_text(data, at + 1) if data[at] else at + 1
        return at != len(data) - 1 or data[at] != 0
    except IndexError:
        return True


def _end_of_number(data: bytes, at: int) -> int:
    while data[at] > 0x7F:
        at += 1
    return at + 1


def _end_of_text(data: bytes, at: int) -> int:
    """Return where a text or bytes of less than 8192 bytes end that begin at `at`."""
    length = data[at]
    if length > 0x7F:
        at += 1
        length = length & 0x7F | data[at] << 7
        if length > 0x3FFF:
            raise IndexError
    return at + 1 + (length >> 1)


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


def _notes_bytes(notes: Notes) -> bytes:
    return b"".join(
        (
            _blocks([_varint(position) for position in notes.absent]),
            _blocks([_varint(position) for position in notes.before_absent]),
            _blocks([_text(column) + _text(raw) for column, raw in notes.raw.items()]),
            _blocks([_text(column) + _text(raw) for column, raw in notes.before_raw.items()]),
        )
    )


def _read_notes(fields: dict[str, Any]) -> Notes:
    return Notes(
        tuple(fields["absent"]),
        tuple(fields["before_absent"]),
        fields["raw"],
        fields["before_raw"],
    )


def _blocks(items: Sequence[bytes]) -> bytes:
    """Write an array or a map: one block, and the empty one that ends it."""
    if not items:
        return _END
    return b"".join((_varint(len(items)), *items, _END))


def _text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


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
    """Return a registration's answer of protocol version 4: the sources' schemas and these."""
    metadata = [
        {"version": version.number, "schema": version.text, "crc32": _base64_of(version.crc32)}
        for version in _VERSIONS
    ]
    return {"sourceSchemas": schemas, "metadataSchemas": metadata}


def _base64_of(crc32: int) -> str:
    """Return the four bytes that events have as digest, as Jackson writes a byte array."""
    return b64encode(crc32.to_bytes(4, "big")).decode()
