"""An event, as a value: one row change, or one control message.

The byte forms are in `v1` and `v2`. Events are named tuples, not dataclasses, because one is made
per event on the hottest path.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

EOP_SRC_ID = -2
CHECKPOINT_SRC_ID = -3
ERROR_SRC_IDS = range(-49, -3)  # -49 … -4
SCN_REGRESS_SRC_ID = -51
# Not in Databus; sent on request only.
DDL_SRC_ID = -60
DML_SRC_ID = -61
STATEMENT_SRC_IDS = (DDL_SRC_ID, DML_SRC_ID)

WHOLE_TABLE_KEY = b""  # of an event about all rows of a table

MD5_BYTES = 16
CRC32_BYTES = 4
NO_SCHEMA_ID = bytes(MD5_BYTES)


class Opcode(IntEnum):
    """The kind of an event; the numbers are those of version 2."""

    CONTROL = 0
    UPSERT = 1
    DELETE = 2


class Part(NamedTuple):
    """The payload or the metadata: data, and the id of the schema that wrote it.

    `digest` is the schema's MD5 (16 bytes) or CRC32 (4 bytes).
    """

    data: bytes
    digest: bytes
    schema_version: int = 0


class Event(NamedTuple):
    """One event, independent of the wire version.

    A control event has a negative `src_id` and opcode CONTROL; no other event has either. Its text
    is a payload with a digest of zeros; without a text there is no payload.
    """

    scn: int  # of the window
    timestamp_ns: int
    src_id: int
    partition_id: int
    key: int | bytes
    opcode: Opcode
    payload: Part | None
    metadata: Part | None
    is_replicated: bool = False
    is_traced: bool = False

    @property
    def is_control(self) -> bool:
        """Whether it is a control event: about the stream, not about a row."""
        return self.src_id < 0

    @property
    def is_eop(self) -> bool:
        """Whether it ends a window."""
        return self.src_id == EOP_SRC_ID

    @property
    def is_checkpoint(self) -> bool:
        """Whether its value is a checkpoint that ends a bootstrap response."""
        return self.src_id == CHECKPOINT_SRC_ID

    @property
    def is_scn_regress(self) -> bool:
        """Whether its value is a checkpoint to go back to."""
        return self.src_id == SCN_REGRESS_SRC_ID

    @property
    def is_ddl(self) -> bool:
        """Whether its value is a DDL statement."""
        return self.src_id == DDL_SRC_ID

    @property
    def is_dml(self) -> bool:
        """Whether its value is a DML statement, which the log has instead of its rows."""
        return self.src_id == DML_SRC_ID

    @property
    def is_statement(self) -> bool:
        """Whether its value is a statement."""
        return self.src_id in STATEMENT_SRC_IDS

    @property
    def is_truncate(self) -> bool:
        """Whether all rows of its table were removed."""
        return self.opcode == Opcode.DELETE and self.payload is None and self.key == WHOLE_TABLE_KEY

    @property
    def is_error(self) -> bool:
        """Whether its value is the text of an error."""
        return self.src_id in ERROR_SRC_IDS

    @property
    def value(self) -> bytes:
        """The payload's data; empty without a payload."""
        return b"" if self.payload is None else self.payload.data

    @property
    def schema_id(self) -> bytes:
        """The id of the payload's schema; zeros without one."""
        if self.payload is None or len(self.payload.digest) != MD5_BYTES:
            return NO_SCHEMA_ID
        return self.payload.digest
