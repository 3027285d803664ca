"""Stores of schema versions: memory, an SQLite file, a folder of hand-made files.

The SQLite file is in its own module, `sqlite_store`. A store only saves and loads; the
registry decides what may be added to a history. Saved data is never changed or removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from databus.registry.compatibility import parse_record
from databus.registry.former_schemas import rewritten
from databus.registry.sqlite_store import SqliteStore
from databus.registry.version import StoredVersion
from databus.schemas.errors import SchemaError

__all__ = [
    "STORE_FILE",
    "FileStore",
    "LayeredStore",
    "MemoryStore",
    "SchemaStore",
    "SqliteStore",
    "StoredVersion",
    "open_store",
]


class SchemaStore(Protocol):
    """The interface of a store. Raises SchemaError when it cannot read or write."""

    def load_sources(self) -> dict[str, int]:
        """Return the id of every source that ever had one, by name."""
        ...

    def load_versions(self) -> list[StoredVersion]:
        """Return every version, ordered by source and version."""
        ...

    def save_sources(self, ids: Mapping[str, int]) -> None:
        """Keep new sources' ids, all or none."""

    def save_versions(self, versions: Sequence[StoredVersion]) -> None:
        """Save new versions, all or none; on return they are durable."""


class MemoryStore:
    """A store in memory, for the life of the process."""

    def __init__(self, versions: Sequence[StoredVersion] = ()) -> None:
        self._sources: dict[str, int] = {}
        self._versions = list(versions)

    def load_sources(self) -> dict[str, int]:
        """Return every source's id, by name."""
        return dict(self._sources)

    def load_versions(self) -> list[StoredVersion]:
        """Return every version, ordered by source and version."""
        return sorted(self._versions)

    def save_sources(self, ids: Mapping[str, int]) -> None:
        """Keep new sources' ids."""
        self._sources |= ids

    def save_versions(self, versions: Sequence[StoredVersion]) -> None:
        """Keep new versions."""
        self._versions += versions


_FILE_NAME = re.compile(r"(?P<source>.+)\.(?P<version>[1-9]\d{0,8})\.avsc")


class FileStore:
    """A read-only folder of hand-made schemas: one file `<source>.<version>.avsc` a version.

    A version starts at SCN 0, or at the record's `startScn` attribute.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load_sources(self) -> dict[str, int]:
        """Return an empty mapping: files have no ids."""
        return {}

    def load_versions(self) -> list[StoredVersion]:
        """Read every file; raises SchemaError naming an invalid file."""
        try:
            found = sorted(self._read(path) for path in self.folder.glob("*.avsc"))
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(f"schema folder {self.folder}: {error}") from error
        # A copy of a generated schema must stay equal to it: see LayeredStore.
        texts = rewritten(version.text for version in found)
        return [version._replace(text=text) for version, text in zip(found, texts, strict=True)]

    def save_sources(self, ids: Mapping[str, int]) -> None:
        """Do nothing: a hand-made source's id is in the settings."""

    def save_versions(self, versions: Sequence[StoredVersion]) -> None:
        """Raise SchemaError naming the files to write by hand."""
        paths = ", ".join(str(self.folder / f"{v.source}.{v.version}.avsc") for v in versions)
        raise SchemaError(f"{self.folder} holds hand-made schemas only: write {paths} yourself")

    def _read(self, path: Path) -> StoredVersion:
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise SchemaError(f"{path}: name it <source>.<version>.avsc, e.g. shop.orders.1.avsc")
        text = path.read_text(encoding="utf-8")
        try:
            start_scn = parse_record(text).props.get("startScn", 0)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from error
        if not isinstance(start_scn, int) or start_scn < 0:
            raise SchemaError(f"{path}: startScn is {start_scn!r}, not a position")
        return StoredVersion(match["source"], int(match["version"]), text, start_scn)


class LayeredStore:
    """Hand-made versions and, above them, generated ones, in one history for each source."""

    def __init__(self, hand_made: SchemaStore, generated: SchemaStore) -> None:
        self._hand_made = hand_made
        self._generated = generated

    def load_sources(self) -> dict[str, int]:
        """Return every source's id, by name."""
        return self._hand_made.load_sources() | self._generated.load_sources()

    def load_versions(self) -> list[StoredVersion]:
        """Return every version of both, ordered; a version in both must be identical."""
        by_number = {(v.source, v.version): v for v in self._generated.load_versions()}
        for version in self._hand_made.load_versions():
            other = by_number.setdefault((version.source, version.version), version)
            if other.text != version.text:
                raise SchemaError(
                    f"version {version.version} of {version.source} is hand-made and generated, "
                    "and the two differ: give the hand-made one the next free number"
                )
        return sorted(by_number.values())

    def save_sources(self, ids: Mapping[str, int]) -> None:
        """Keep new sources' ids."""
        self._generated.save_sources(ids)

    def save_versions(self, versions: Sequence[StoredVersion]) -> None:
        """Save new versions among the generated ones."""
        self._generated.save_versions(versions)


STORE_FILE = "schemas.db"


def open_store(data_dir: Path, schema_dir: Path | None = None) -> SchemaStore:
    """Return a relay's store: the file in its data folder, with the hand-made folder if any."""
    generated = SqliteStore(data_dir / STORE_FILE)
    return LayeredStore(FileStore(schema_dir), generated) if schema_dir else generated
