"""The sink `files`: JSON Lines or Parquet, by source and hour, in any file system of pyarrow.

    source=shop.orders/hour=2026-11-28T23/00000000000000000007.jsonl

Each flush is one entry of the manifest, with whole windows and the position behind them. On a
restart the position of the newest entry wins, so every window is in it once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pydantic import Field, ValidationInfo, field_validator

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.formats.plain import json_line
from databus.client.sinks.ready.files_owner import FolderOwner
from databus.client.sinks.ready.files_parquet import parquet_bytes
from databus.client.sinks.ready.manifest import (
    FOLDER,
    NEXT,
    DataFile,
    Entry,
    name_of,
    newest,
    read_folders,
    read_position,
)
from databus.conf.model import Settings
from databus.relay.log.archive.store import ArchiveStore

_MOST_ANNOUNCED = 1000
_HOUR_NS = 3600 * 10**9
_SUFFIXES = {"json": "jsonl", "parquet": "parquet"}


class _Place(NamedTuple):
    source: str
    hour: str

    @property
    def folder(self) -> str:
        # A name may have slashes, and must not lead out of the folder.
        return f"source={quote(self.source, safe='')}/hour={self.hour}"


class FilesSink:
    """Writes files; exactly once by the manifest."""

    keeps_position = True  # in the manifest

    class Options(Settings):
        """Options of `files`."""

        folder: str = Field(description="A folder, or a URI: s3://…, gs://…, hdfs://…")
        format: Literal["json", "parquet"] = Field(
            default="json", description="JSON Lines, or Parquet"
        )

        @field_validator("folder")
        @classmethod
        def _from_the_settings_file(cls, folder: str, info: ValidationInfo) -> str:
            if "://" in folder:
                return folder
            base = info.context["folder"] if info.context else Path.cwd()
            return (Path(base) / folder).absolute().as_uri()

        @property
        def own_places(self) -> frozenset[str]:
            """The folder: its manifest is that of one sink."""
            parts = urlsplit(self.folder)
            if parts.scheme != "file":
                return frozenset({f"folder {self.folder.rstrip('/')}"})
            return frozenset({f"folder {Path(unquote(parts.path)).resolve()}"})

    def __init__(self, options: Options) -> None:
        """Raises SettingsError for a URI of no known kind, and without pyarrow."""
        self._format = options.format
        self._store = ArchiveStore(options.folder)
        self._owner = FolderOwner(self._store, options.folder)
        self._held: list[Change] = []
        self._number = 0  # of the newest entry
        self._position: Position | None = None
        self._announced: set[str] = set()  # folders that `next` names

    def open(self, opening: Opening) -> Position | None:
        """Take the folder, return the position of the manifest, and remove unfinished files."""
        self._owner.take(opening)
        names = self._store.names(FOLDER)
        self._number = newest(list(names))
        if self._number:
            path = f"{FOLDER}/{name_of(self._number)}"
            self._position = read_position(self._store.read(path), path)
        if NEXT in names:
            for folder in read_folders(self._store.read(f"{FOLDER}/{NEXT}")):
                for name in self._store.names(folder):
                    if name.partition(".")[0] > f"{self._number:020}":
                        self._store.delete(f"{folder}/{name}")
        return self._position

    def write(self, changes: Sequence[Change]) -> None:
        """Hold the changes until `flush`."""
        self._held += changes

    def flush(self) -> Position | None:
        """Write the files, and then the entry that makes them count."""
        if not self._held:
            return self._position
        self._owner.check()
        number = self._number + 1
        positions = [one.position for one in self._held if one.position is not None]
        position = positions[-1] if positions else self._position
        groups = _by_place(self._held)
        self._announce({place.folder for place in groups})
        files = tuple(self._write(place, held, number) for place, held in groups.items())
        entry = Entry(number, files, position)
        self._owner.check()
        self._store.write(f"{FOLDER}/{name_of(number)}", [entry.to_json()])
        self._held, self._number, self._position = [], number, position
        return position

    def close(self) -> None:
        """Close the connections of the file system."""
        self._held = []
        self._owner.release()
        self._store.close()

    def _announce(self, folders: set[str]) -> None:
        """Write which folders get files, if that is not known: hardly ever within an hour."""
        if folders <= self._announced:
            return
        if len(self._announced) < _MOST_ANNOUNCED:  # else those of earlier hours are forgotten
            folders |= self._announced
        self._store.write(f"{FOLDER}/{NEXT}", [json.dumps(sorted(folders)).encode()])
        self._announced = folders

    def _write(self, place: _Place, changes: list[Change], number: int) -> DataFile:
        if self._format == "parquet":
            data = parquet_bytes(changes)
        else:
            data = b"".join(map(json_line, changes))
        path = f"{place.folder}/{number:020}.{_SUFFIXES[self._format]}"
        self._store.write(path, [data])
        scns = [one.scn for one in changes]
        return DataFile(
            path, place.source, place.hour, min(scns), max(scns), len(changes), len(data)
        )


def _by_place(changes: Sequence[Change]) -> dict[_Place, list[Change]]:
    groups: dict[tuple[str, int], list[Change]] = {}
    for one in changes:
        groups.setdefault((one.source, one.timestamp_ns // _HOUR_NS), []).append(one)
    return {_Place(source, _hour(number)): held for (source, number), held in groups.items()}


def _hour(number: int) -> str:
    return f"{datetime.fromtimestamp(number * 3600, UTC):%Y-%m-%dT%H}"
