"""A file of the events that a consumer could not take, one line of JSON each."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from databus.client.events.data_event import DataEvent
from databus.schemas.errors import ConsumerError, DatabusError
from databus.schemas.event.json import json_value

_PRIVATE = 0o600  # it has rows


class DeadLetterFile:
    """Appends each event that it is called with; to be given as `on_failure`. Thread-safe.

    A line is on disk before the client goes on. After a crash an event may be there twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def __call__(self, event: DataEvent, error: ConsumerError) -> None:
        """Append the event and its error; raise OSError if the file cannot be written."""
        self.append(_letter(event, error))

    def append(self, letter: Mapping[str, Any]) -> None:
        """Append a line of other facts, which are of JSON's types; raise OSError as a call does."""
        line = json.dumps(letter, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, _PRIVATE)
            with os.fdopen(file, "wb") as opened:
                _cut_torn_line(file)
                opened.write(line)
                opened.flush()
                os.fsync(opened.fileno())


def _cut_torn_line(file: int) -> None:
    """Remove a last line that a crash or a full disk has cut off: its event comes again."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.ftruncate(file, os.pread(file, size, 0).rfind(b"\n") + 1)


def _letter(event: DataEvent, error: ConsumerError) -> dict[str, Any]:
    found: dict[str, Any] = {
        "at": time.time(),
        "source": event.source,
        "op": event.op.value,
        "scn": event.scn,
        "index": event.index,
        "committedNs": event.timestamp_ns,
        "error": error.problem,
        "trace": "" if error.__cause__ is None else trace_text(error.__cause__),
    }
    try:
        found |= {
            "key": json_value(event.key),
            "row": json_value(event.row),
            "before": json_value(event.before),
        }
    except DatabusError as problem:
        # A row that cannot be decoded is a dead letter, too: its bytes are kept.
        found |= {"unreadable": str(problem), "wireBytes": event.wire_bytes().hex()}
    return found


def trace_text(cause: BaseException) -> str:
    """Return the traceback of an error."""
    return "".join(traceback.format_exception(cause))
