"""The dead letters of a sink: rows that were set aside, and which newer changes of them came.

A letter may be written to the target later only while nothing newer of its row was. So the sink
keeps the rows of its letters in mind, and before it writes a newer change of one it notes that in
the file: after a crash there may be a note too many for a moment, and never one too few.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from databus.client.dead_letters import DeadLetterFile, trace_text
from databus.client.sinks.contract import (
    Change,
    ChangeOp,
    TransactionInfo,
    key_digest,
)
from databus.client.sinks.rules.typed_values import from_json, to_json
from databus.client.sinks.running.lane import Trouble
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import CheckpointError
from databus.schemas.event.json import json_value

NEWER = "newer"  # the key of a note
_ROWS = ("key", "row", "before")

Place = tuple[int, int]  # SCN, and index in the transaction


class Line(NamedTuple):
    """A line of a file of dead letters: its bytes, and what they say."""

    data: bytes
    values: dict[str, Any]

    @property
    def is_note(self) -> bool:
        """Whether it says that something newer of a row came."""
        return NEWER in self.values

    @property
    def row(self) -> tuple[str, str]:
        """The source and the digest of the key; of a note about all rows it is empty."""
        return str(self.values["source"]), str(self.values["keyDigest"])

    @property
    def place(self) -> Place:
        """Where the change is."""
        return int(self.values["scn"]), int(self.values["index"])


class DeadLetters:
    """The letters of a sink over one physical source. Thread-safe."""

    def __init__(self, file: DeadLetterFile | None, sink: str, source: str) -> None:
        """Read which rows have letters; raise CheckpointError."""
        self._file, self._sink, self._source = file, sink, source
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str], Place] = {}
        for line in () if file is None else lines_of(file.path, sink):
            if line.values["physicalSource"] == source and not line.is_note:
                self._rows[line.row] = max(line.place, self._rows.get(line.row, (-1, -1)))

    def keep(self, change: Change, trouble: Trouble) -> bool:
        """Keep a row; return False if the sink keeps none. Raises OSError."""
        if self._file is None:
            return False
        letter = letter_of(self._sink, self._source, change, trouble)
        with self._lock:
            self._file.append(letter)
            self._rows[change.source, key_digest(change.key)] = change.scn, change.index
        return True

    def coming(self, changes: Sequence[Change]) -> None:
        """Note which of these changes, which are written next, are newer ones of rows with letters.

        Raises OSError.
        """
        if not self._rows:
            return
        with self._lock:
            for change in changes:
                for row in self._older(change):
                    self._note(change, row)

    def _older(self, change: Change) -> list[tuple[str, str]]:
        place = change.scn, change.index
        if change.op is ChangeOp.TRUNCATE:
            return [r for r, kept in self._rows.items() if r[0] == change.source and kept < place]
        row = change.source, key_digest(change.key)
        kept = self._rows.get(row, place)
        # A page has the row as it was after all changes up to its SCN.
        is_newer = kept < place if change.op is not ChangeOp.SNAPSHOT else kept[0] <= change.scn
        return [row] if row in self._rows and is_newer else []

    def _note(self, change: Change, row: tuple[str, str]) -> None:
        assert self._file is not None  # it has rows
        self._file.append(
            {
                NEWER: change.op.value,
                "at": time.time(),
                "sink": self._sink,
                "physicalSource": self._source,
                "source": row[0],
                "keyDigest": row[1],
                "scn": change.scn,
                "index": change.index,
                "id": change.id,
            }
        )
        del self._rows[row]


def lines_of(path: Path, sink: str = "") -> Iterator[Line]:
    """Yield the lines of a file, or those of one sink; raise CheckpointError.

    A line that was cut off is left out: its row was not passed, and comes again.
    """
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                if data.endswith(b"\n"):
                    line = _line(data, f"{path}, line {number}")
                    if not sink or line.values["sink"] == sink:
                        yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _line(data: bytes, where: str) -> Line:
    try:
        line = Line(data, json.loads(data))
        _ = line.values["sink"], line.values["physicalSource"], line.row, line.place
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(
            f"{where}: it is no dead letter of a sink: {error!r}; move the file away: then its "
            "rows are not replayed"
        ) from error
    return line


def letter_of(sink: str, physical: str, change: Change, trouble: Trouble) -> dict[str, Any]:
    """Return a row that was set aside as JSON, for people and for a replay."""
    cause = trouble.error.__cause__ if trouble.error is not None else None
    rows = dict(zip(_ROWS, (change.key, change.after, change.before), strict=True))
    plain = {name: json_value(None if row is None else dict(row)) for name, row in rows.items()}
    return {
        "at": time.time(),
        "sink": sink,
        "physicalSource": physical,
        "source": change.source,
        "op": change.op.value,
        "scn": change.scn,
        "index": change.index,
        "id": change.id,
        "committedNs": change.timestamp_ns,
        **plain,
        "keyDigest": key_digest(change.key),
        "phase": change.transaction.phase,
        "gtid": change.transaction.gtid,
        "isMove": change.is_move,
        "statement": change.statement,
        "error": trouble.problem,
        "attempts": trouble.attempts,
        "trace": "" if cause is None else trace_text(cause),
        **_typed(rows, plain),
        "schema": None if change.schema is None else list(change.schema),
    }


def _typed(rows: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows with types, where JSON alone loses them."""
    try:
        typed = {name: to_json(row) for name, row in rows.items()}
    except TypeError as error:
        return {"typed": None, "untyped": str(error)}
    return {} if typed == plain else {"typed": typed}


def change_of(letter: Mapping[str, Any]) -> Change:
    """Return the change of a letter; raise CheckpointError."""
    try:
        typed = letter.get("typed", letter)
        key, after, before = (from_json(typed[name]) for name in _ROWS)
        scn, committed_ns = int(letter["scn"]), int(letter["committedNs"])
        info = TransactionInfo(scn, committed_ns, letter["gtid"], 1, letter["phase"])
        return Change(
            ChangeOp(letter["op"]),
            str(letter["source"]),
            key,
            before,
            after,
            info,
            scn,
            committed_ns,
            int(letter["index"]),
            bool(letter["isMove"]),
            str(letter["statement"]),
            None if letter["schema"] is None else WriterSchema(*letter["schema"]),
        )
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        why = letter.get("untyped") or repr(error)
        raise CheckpointError(f"the row of this dead letter cannot be read again: {why}") from error
