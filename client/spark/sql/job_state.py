"""A job's own folder: who it is, how far it is, and its mirrors.

    job.json     the job's id in its target, and the SELECT and columns it was begun with
    stream/      Spark's checkpoint
    mirrors/     of a JOIN: a Delta table of each source

One folder belongs to one SELECT and one target: rows that an earlier SELECT has
written would stay as they are until they change.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databus.client.spark.sql.job_file import SqlJob
from databus.client.spark.sql.plan import Feed, SourceColumns
from databus.daemon.files import make_folder, make_private
from databus.schemas.errors import CheckpointError, SettingsError

FILE = "job.json"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """An open folder. `app_id` is the job's name in its target's book.

    `columns` are those that the sources had when the job was begun: a column
    that came since has no values in the rows that are there, so `*` is without it.
    """

    path: Path
    app_id: str
    columns: dict[Feed, SourceColumns]
    _entries: dict[str, Any]

    def keep(self) -> None:
        """Make the folder, if it is not there: from now on it is this job's.

        Not before the job is known to fit its sources: who corrects a SELECT
        that never ran shall not need another folder. Raises CheckpointError.
        """
        try:
            if not (self.path / FILE).exists():
                _write(self.path, self._entries)
        except OSError as error:
            raise _unusable(self.path, error) from error

    @property
    def stream(self) -> Path:
        """Spark's checkpoint."""
        return self.path / "stream"

    @property
    def mirrors(self) -> Path:
        """The folder of the mirrors."""
        return self.path / "mirrors"


def open_folder(job: SqlJob, columns: Mapping[Feed, SourceColumns]) -> JobFolder:
    """Open a job's folder, or begin a new one; `columns` are what the sources have now.

    Raises SettingsError when it is another job's, or a source's key or columns
    are not what they were; CheckpointError when it cannot be read.
    """
    path = job.settings.checkpoint.absolute()
    try:
        found = _read(path) if (path / FILE).exists() else _new(job, columns)
    except (OSError, ValueError, KeyError) as error:
        raise _unusable(path, error) from error
    for what, was, now in (
        ("SELECT", found["select"], _select_of(job)),
        ("target", found["target"], job.settings.target),
    ):
        if was != now:
            raise SettingsError(
                f"{job.name}: {path} was begun with another {what} ({was}): rows written by that "
                "would stay as they are. Give a new checkpoint and a new target, or the old "
                f"{what}"
            )
    begun = {feed: _as_begun(job, feed, found, now) for feed, now in columns.items()}
    return JobFolder(path, found["app_id"], begun, found)


def _as_begun(job: SqlJob, feed: Feed, found: Any, now: SourceColumns) -> SourceColumns:
    was = found["columns"][feed.label]
    gone = [name for name in was if name not in now.columns]
    if gone or tuple(found["keys"][feed.label]) != now.key:
        what = f"columns {', '.join(gone)} are gone" if gone else "its primary key is another"
        raise SettingsError(
            f"{job.name}: since the job was begun {feed.label} has changed: {what}. Give a new "
            "checkpoint and a new target"
        )
    return SourceColumns(tuple(was), now.key)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / FILE).read_text(encoding="utf-8"))
    return {name: found[name] for name in ("app_id", "select", "target", "columns", "keys")}


def _new(job: SqlJob, columns: Mapping[Feed, SourceColumns]) -> dict[str, Any]:
    return {
        "app_id": f"sql-{uuid.uuid4().hex}",
        "select": _select_of(job),
        "target": job.settings.target,
        "columns": {feed.label: list(of.columns) for feed, of in columns.items()},
        "keys": {feed.label: list(of.key) for feed, of in columns.items()},
    }


def _write(path: Path, entries: dict[str, Any]) -> None:
    make_folder(path)
    new = path / f"{FILE}.new"
    make_private(new)
    with new.open("w", encoding="utf-8") as file:
        json.dump(entries, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path / FILE)


def _unusable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path / FILE} cannot be used: {error}")


def _select_of(job: SqlJob) -> str:
    """Return the SELECT's words, whatever is between them."""
    text = job.query.text
    return " ".join(text.text[token.start : token.end + 1] for token in text.tokens())
