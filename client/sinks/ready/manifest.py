"""The manifest of the sink `files`: which files count, and up to which position they reach.

`_manifest/00000000000000000007.json` is the seventh entry. It is written after its files, in one
step, and is what makes them count: who reads the files reads the manifest first. `_manifest/next`
names the folders that files are written into, so that those of an entry that was never finished are
found again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from databus.client.sinks.contract import Position
from databus.client.sinks.errors import SinkError

FOLDER = "_manifest"
NEXT = "next"
_DIGITS = 20


class DataFile(NamedTuple):
    """A file with changes of one source and one hour."""

    path: str
    source: str
    hour: str
    first_scn: int
    last_scn: int
    rows: int
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """Return the file as it stands in the manifest."""
        names = {"first_scn": "firstScn", "last_scn": "lastScn"}
        return {names.get(name, name): value for name, value in self._asdict().items()}


class Entry(NamedTuple):
    """One entry: the files of some whole windows."""

    number: int
    files: tuple[DataFile, ...]
    position: Position | None

    def to_json(self) -> bytes:
        """Return the entry's text."""
        values = {
            "number": self.number,
            "position": None if self.position is None else self.position.to_json(),
            "firstScn": min((one.first_scn for one in self.files), default=None),
            "lastScn": max((one.last_scn for one in self.files), default=None),
            "rows": sum(one.rows for one in self.files),
            "files": [one.as_json() for one in self.files],
        }
        return (json.dumps(values, indent=1) + "\n").encode()


def name_of(number: int) -> str:
    """Return the file name of an entry."""
    return f"{number:0{_DIGITS}}.json"


def newest(names: Sequence[str]) -> int:
    """Return the number of the newest entry among the names of a folder, 0 without any."""
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    return max(
        (int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdecimal()), default=0
    )


def read_position(text: bytes, path: str) -> Position | None:
    """Return the position of an entry; raise SinkError if it is damaged."""
    try:
        told = json.loads(text)["position"]
        return None if told is None else Position.from_json(told)
    except (ValueError, TypeError, KeyError) as error:
        raise SinkError(f"{path} is no entry of a manifest: {error!r}") from error


def read_folders(text: bytes) -> list[str]:
    """Return the folders that `next` names; none if it was cut off: then no file was begun."""
    try:
        return [str(folder) for folder in json.loads(text)]
    except (ValueError, TypeError):
        return []
