"""What a process of the group notes: one line each, whole after a kill at any moment.

Every line has the time of the machine's clock before and after what it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from databus.leases.clock import steady_s

Kind = Literal["row", "began", "stored", "refused", "rollback", "left", "problem"]


class Entry(NamedTuple):
    """A line. `run` is one life of a process; `place` is `GENERATION.PARTITION`.

    row: it was delivered. began: the term has begun at the checkpoint `scn`. stored: the
    checkpoint `scn` was; refused: it was not, for a greater term had begun.
    """

    kind: Kind
    run: str
    at_s: float
    until_s: float
    place: str = ""
    term: int = 0
    scn: int = -1
    key: int = 0
    serial: int = 0
    text: str = ""


class Log:
    """The file of one process."""

    def __init__(self, path: Path, slot: int) -> None:
        self._run = f"{slot}.{os.getpid()}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(
        self,
        kind: Kind,
        at_s: float,
        place: str = "",
        term: int = 0,
        scn: int = -1,
        *,
        key: int = 0,
        serial: int = 0,
        text: str = "",
    ) -> None:
        """Append a line about what began at `at_s`."""
        entry = Entry(kind, self._run, at_s, steady_s(), place, term, scn, key, serial, text)
        os.write(self._fd, json.dumps(entry).encode() + b"\n")


class Follower:
    """Reads a growing file by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> Iterator[bytes]:
        """Yield what was added."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line

    def entries(self) -> Iterator[Entry]:
        """Yield the lines that were added to a `Log`."""
        for line in self.lines():
            yield Entry(*json.loads(line))
