"""Where each field of an event lies, in both versions: written here and nowhere else.

Integers are big-endian, offsets count from an event's first byte (those of
`Part` from the part's). Python code takes offsets and `struct` formats from
here; `make docs` writes `layout.pxi`, which the compiled modules include, and
docs/reference/event-layout.md.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from databus.schemas.event.event import Opcode


class Field(NamedTuple):
    """One field: its offset, its `struct` code and what it means."""

    offset: int
    code: str
    meaning: str

    @property
    def end(self) -> int:
        """The offset of the byte after it."""
        return self.offset + struct.calcsize(f">{self.code}")

    def moved(self, by: int) -> Field:
        """Return the same field of a part that begins `by` bytes further on."""
        return self._replace(offset=self.offset + by)


class V1Header(NamedTuple):
    """The header of version 1, which ends with a long key or with a byte key's length."""

    version: Field = Field(0, "B", "0")
    header_crc: Field = Field(1, "I", "CRC of the header from `length` to its end")
    length: Field = Field(5, "I", "length of the whole event")
    attributes: Field = Field(9, "H", "attributes")
    scn: Field = Field(11, "q", "SCN of the window")
    physical_partition_id: Field = Field(19, "h", "the same as `partition_id`")
    partition_id: Field = Field(21, "h", "logical partition id")
    timestamp_ns: Field = Field(23, "q", "commit time, ns since 1970")
    src_id: Field = Field(31, "h", "source id; negative in a control event")
    schema_id: Field = Field(33, "16s", "MD5 of the schema's normal form")
    value_crc: Field = Field(49, "I", "CRC of everything after the header")
    long_key: Field = Field(53, "q", "long key; the value follows")
    key_length: Field = Field(53, "I", "or: length of a byte key; the key and the value follow")


class V2Header(NamedTuple):
    """The header of version 2, which ends with a long key or with a byte key."""

    version: Field = Field(0, "B", "2")
    magic: Field = Field(1, "I", "`0xCAFEDEED`")
    header_length: Field = Field(5, "I", "length of the header, key included")
    header_crc: Field = Field(9, "I", "CRC of the header from `body_crc` to its end")
    body_crc: Field = Field(13, "I", "CRC of everything after the header")
    length: Field = Field(17, "I", "length of the whole event")
    attributes: Field = Field(21, "H", "attributes")
    timestamp_ns: Field = Field(23, "q", "commit time, ns since 1970")
    src_id: Field = Field(31, "i", "source id, 1 to 32767; negative in a control event")
    partition_id: Field = Field(35, "h", "partition id")
    scn: Field = Field(37, "q", "SCN of the window")
    long_key: Field = Field(45, "q", "long key; the parts follow")
    key_length: Field = Field(45, "I", "or: length of a byte key; the key and the parts follow")


class PartHeader(NamedTuple):
    """What stands before the data of a part of version 2: metadata or payload."""

    length: Field = Field(0, "I", "length of the data")
    attributes: Field = Field(4, "H", "bits 0-1: kind of digest; the rest: schema version")
    md5: Field = Field(6, "16s", "digest of the schema that wrote the data")
    crc32: Field = Field(6, "4s", "or: a digest of 4 bytes")


V1: Final = V1Header()
V2: Final = V2Header()
PART: Final = PartHeader()

V1_VERSION: Final = 0
V1_SMALLEST_BYTES: Final = V1.key_length.end
V1_LONG_KEY_HEADER_BYTES: Final = V1.long_key.end
V1_COVERED_AT: Final = V1.length.offset  # where begins what the header CRC covers

V2_VERSION: Final = 2
V2_MAGIC: Final = 0xCAFEDEED
V2_BEGIN: Final = struct.pack(">BI", V2_VERSION, V2_MAGIC)
V2_LONG_KEY_BEGIN: Final = V2_BEGIN + V2.long_key.end.to_bytes(4, "big")  # up to `header_length`
V2_LONG_KEY_FIELDS: Final = (
    Field(0, f"{len(V2_LONG_KEY_BEGIN)}s", "version, magic and header length together"),
    *V2[3:-1],
)
V2_SMALLEST_BYTES: Final = V2.key_length.end
V2_LONG_KEY_HEADER_BYTES: Final = V2.long_key.end
V2_COVERED_AT: Final = V2.body_crc.offset  # where begins what the header CRC covers

MD5_PART_BYTES: Final = PART.md5.end
CRC32_PART_BYTES: Final = PART.crc32.end


class V1Attributes:
    """The bits of `attributes` in version 1."""

    UPSERT: Final = 0x0001
    DELETE: Final = 0x0002
    TRACE: Final = 0x0004
    BYTE_KEY: Final = 0x0008
    REPLICATED: Final = 0x0100


# The bits of `attributes` in version 2; the opcode is an `Opcode`.
OPCODE_MASK: Final = 0x03
LONG_KEY: Final = 0x04
BYTE_KEY: Final = 0x08
REPLICATED: Final = 0x10
TRACE: Final = 0x20
HAS_METADATA: Final = 0x40
HAS_PAYLOAD: Final = 0x80

# The bits of a part's `attributes`.
DIGEST_KIND_MASK: Final = 0x03
MD5_DIGEST: Final = 0
CRC32_DIGEST: Final = 1
VERSION_SHIFT: Final = 2

# The events of rows as a relay makes them, but for the opcode.
PLAIN_ROW: Final = LONG_KEY | HAS_METADATA | HAS_PAYLOAD
PLAIN_UPSERT: Final = PLAIN_ROW | Opcode.UPSERT
PLAIN_DELETE: Final = PLAIN_ROW | Opcode.DELETE


def struct_of(*fields: Field, begin: int = 0) -> struct.Struct:
    """Return the `struct` that reads or writes these fields of a header from `begin` on.

    The fields stand in the order of their offsets; what lies between them is
    skipped. Raises ValueError when they overlap.
    """
    codes, at = [], begin
    for field in fields:
        if field.offset < at:
            raise ValueError(f"the field at {field.offset} begins before {at}")
        codes.append(f"{field.offset - at}x" if field.offset > at else "")
        codes.append(field.code)
        at = field.end
    return struct.Struct(">" + "".join(codes))
