"""Control events: what is said in the stream about the stream.

Long key 0, no schema, the value UTF-8 text or empty. They pass every filter.
"""

from __future__ import annotations

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError
from databus.schemas.event import (
    CHECKPOINT_SRC_ID,
    EOP_SRC_ID,
    ERROR_SRC_IDS,
    NO_SCHEMA_ID,
    SCN_REGRESS_SRC_ID,
    Event,
    Opcode,
    Part,
)


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


def _control(src_id: int, timestamp_ns: int, text: str) -> Event:
    payload = Part(text.encode(), NO_SCHEMA_ID) if text else None
    return Event(0, timestamp_ns, src_id, 0, 0, Opcode.CONTROL, payload, None)
