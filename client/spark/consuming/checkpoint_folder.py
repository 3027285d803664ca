"""A query's checkpoint folder, on any file system of Spark: a disk, HDFS, an object store."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from databus.client.spark.planning.offsets import AtScn, from_offset
from databus.schemas.errors import CheckpointError

_Java: TypeAlias = Any  # an object of the JVM
_DAMAGED = "org.apache.hadoop.fs.ChecksumException"


class CheckpointFolder:
    """Reads what Spark has stored in the folder, and stores notes beside it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        java: _Java = spark
        self.path = path
        self._of_hadoop = java._jvm.org.apache.hadoop.fs
        self._root = self._of_hadoop.Path(path)
        settings = java._jsparkSession.sessionState().newHadoopConf()
        self._files = self._root.getFileSystem(settings)
        self._next: dict[str, int] = {}  # the number of the next note, by name

    def has_planned(self) -> bool:
        """Return whether Spark has planned a batch; then a query resumes from the folder."""
        return self._has_numbers("offsets")

    def marks_at(self, batch_id: int) -> dict[str, tuple[int, int]]:
        """Return by physical source a window (SCN, timestamp in ns) of the log that a batch reads.

        The batch is one of a query of one stream. Raises CheckpointError.
        """
        # Spark's format: a version, settings, and an offset for each stream.
        lines = (self._read(f"offsets/{batch_id}") or "").splitlines()
        places = from_offset(json.loads(lines[2])).places if len(lines) == 3 else {}
        return {
            name: place.proof.mark
            for name, place in places.items()
            if isinstance(place, AtScn) and place.proof.mark is not None
        }

    def has_committed(self) -> bool:
        """Return whether Spark has recorded a finished batch."""
        return self._has_numbers("commits")

    def query_id(self) -> str | None:
        """Return the id that Spark gave the query; None before its first start.

        Raises CheckpointError if it cannot be read.
        """
        text = self._read("metadata")
        if text is None:
            return None
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.path}/metadata is not in Spark's format: {error!r}"
            ) from error

    def read_note(self, name: str) -> dict[str, Any] | None:
        """Return the newest complete note of a name, or None."""
        found = [note for slot in (0, 1) if (note := self._note(name, slot)) is not None]
        return max(found, key=lambda note: int(note["number"]), default=None)

    def write_note(self, name: str, note: dict[str, Any]) -> None:
        """Write a note; after an interrupted write the previous note remains.

        Not every file system can replace a file atomically, so two files alternate.
        """
        if name not in self._next:
            before = self.read_note(name)
            self._next[name] = 0 if before is None else int(before["number"]) + 1
        number = self._next[name]
        text = json.dumps({"number": number, **note})
        # The older of the two files is overwritten; `read_note` ignores it if the write is cut.
        out = self._files.create(self._at(_slot(name, number % 2)), True)
        try:
            out.write(text.encode())
        finally:
            out.close()
        self._next[name] = number + 1

    def _note(self, name: str, slot: int) -> dict[str, Any] | None:
        text = self._read(_slot(name, slot))
        try:
            found = None if text is None else json.loads(text)
        except ValueError:
            return None
        return found if isinstance(found, dict) and "number" in found else None

    def _read(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist or is truncated."""
        place = self._at(name)
        if not self._files.exists(place):
            return None
        file = None
        try:
            file = self._files.open(place)
            return bytes(file.readAllBytes()).decode(errors="replace")
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _DAMAGED:
                return None
            raise
        finally:
            if file is not None:
                file.close()

    def _has_numbers(self, name: str) -> bool:
        place = self._at(name)
        if not self._files.exists(place):
            return False
        return any(one.getPath().getName().isdigit() for one in self._files.listStatus(place))

    def _at(self, name: str) -> _Java:
        return self._of_hadoop.Path(self._root, name)


def _slot(name: str, number: int) -> str:
    return f"{name}.{number}"
