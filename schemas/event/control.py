"""Control events: what is said in the stream about the stream.

Long key 0, no schema, the value UTF-8 text or empty. They pass every filter.
A statement, DDL or DML, is one of its window, in its place among the rows; it is sent only
to those who ask for such events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import (
    CHECKPOINT_SRC_ID,
    DDL_SRC_ID,
    DML_SRC_ID,
    EOP_SRC_ID,
    ERROR_SRC_IDS,
    NO_SCHEMA_ID,
    SCN_REGRESS_SRC_ID,
    Event,
    Opcode,
    Part,
)


class LoggedStatement(NamedTuple):
    """What the event of a statement tells: the sources whose tables it is about, and the statement.

    `schemas` has the schema ids, in hexadecimal digits, of the versions that it made. With `is_dml`
    it changed rows of the sources, and nobody but the database knows which.
    """

    sources: tuple[str, ...]
    database: str  # the session's default one, "" = none
    statement: str
    schemas: Mapping[str, str] = {}
    is_dml: bool = False


def end_of_period(scn: int, timestamp_ns: int, partition_id: int = 0) -> Event:
    """Return the event that ends the window `scn`; the timestamp is the window's newest."""
    return Event(scn, timestamp_ns, EOP_SRC_ID, partition_id, 0, Opcode.CONTROL, None, None)


def checkpoint_event(checkpoint: Checkpoint, timestamp_ns: int = 0) -> Event:
    """Return the event that ends a bootstrap response, or hands over between phases."""
    return _control(CHECKPOINT_SRC_ID, timestamp_ns, checkpoint.to_json())


def scn_regress(checkpoint: Checkpoint, timestamp_ns: int = 0) -> Event:
    """Return the event that announces that the stream goes back to `checkpoint`."""
    return _control(SCN_REGRESS_SRC_ID, timestamp_ns, checkpoint.to_json())


def error_event(src_id: int, message: str, timestamp_ns: int = 0) -> Event:
    """Return an error event; raises ProtocolError when `src_id` is not one of theirs."""
    if src_id not in ERROR_SRC_IDS:
        raise ProtocolError(f"src_id {src_id} is not one of an error event (-49..-4)")
    return _control(src_id, timestamp_ns, message)


def checkpoint_of(event: Event) -> Checkpoint:
    """Return the checkpoint that a checkpoint or SCN-regress event carries.

    Raises ProtocolError for another event, CheckpointError for a bad value.
    """
    if event.src_id not in (CHECKPOINT_SRC_ID, SCN_REGRESS_SRC_ID):
        raise ProtocolError(f"an event of src_id {event.src_id} carries no checkpoint")
    return Checkpoint.from_json(event.value)


def ddl_event(
    scn: int,
    timestamp_ns: int,
    partition_id: int,
    sources: Iterable[str],
    database: str,
    statement: str,
    schemas: Mapping[str, str] | None = None,
) -> Event:
    """Return the event that tells of a DDL statement in the window `scn`."""
    told = LoggedStatement(tuple(sources), database, statement, schemas or {})
    return _statement_event(DDL_SRC_ID, scn, timestamp_ns, partition_id, told)


def dml_event(
    scn: int,
    timestamp_ns: int,
    partition_id: int,
    sources: Iterable[str],
    database: str,
    statement: str,
    schemas: Mapping[str, str] | None = None,
) -> Event:
    """Return the event of a DML statement in the window `scn`, whose rows the log does not have."""
    told = LoggedStatement(tuple(sources), database, statement, schemas or {}, is_dml=True)
    return _statement_event(DML_SRC_ID, scn, timestamp_ns, partition_id, told)


def _statement_event(
    src_id: int, scn: int, timestamp_ns: int, partition_id: int, told: LoggedStatement
) -> Event:
    fields: dict[str, Any] = {"sources": list(told.sources)}
    fields |= {"database": told.database, "statement": told.statement}
    if told.schemas:
        fields["schemas"] = dict(told.schemas)
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    value = Part(text.encode("utf-8", "replace"), NO_SCHEMA_ID)
    return Event(scn, timestamp_ns, src_id, partition_id, 0, Opcode.CONTROL, value, None)


def statement_of(event: Event) -> LoggedStatement:
    """Return the statement of an event; raises ProtocolError for another event or a bad value."""
    if not event.is_statement:
        raise ProtocolError(f"an event of src_id {event.src_id} tells of no statement")
    return read_statement(event.value)._replace(is_dml=event.is_dml)


def read_statement(value: bytes) -> LoggedStatement:
    """Read the value of a DDL or DML event; raises ProtocolError when it is not one."""
    try:
        fields = json.loads(value)
        sources, database, statement = fields["sources"], fields["database"], fields["statement"]
        schemas = dict(fields.get("schemas", {}))
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise ProtocolError(f"not the value of a statement's event: {error!r}") from error
    made = (text for pair in schemas.items() for text in pair)
    texts = (database, statement, *sources, *made) if isinstance(sources, list) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ProtocolError("not the value of a statement's event: it is to be texts")
    return LoggedStatement(tuple(sources), database, statement, schemas)


def _control(src_id: int, timestamp_ns: int, text: str) -> Event:
    payload = Part(text.encode(), NO_SCHEMA_ID) if text else None
    return Event(0, timestamp_ns, src_id, 0, 0, Opcode.CONTROL, payload, None)
