"""A job's own folder: its identity, its position, and its join state.

    job.json     the job's id in its target, and the SELECT and columns it started with
    stream/      Spark's checkpoint
    mirrors/     for a JOIN: a Delta table of each source

One folder belongs to one SELECT and one target. With another SELECT, rows that the
earlier one has written would stay unchanged until their sources change.
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
from databus.client.spark.sql.plan import SourceColumns, SourceStream
from databus.conf.addresses import shown_uri
from databus.daemon.files import make_folder, make_private
from databus.schemas.errors import CheckpointError, SettingsError

FILE = "job.json"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """An open folder. `app_id` is the job's name in its target's commit log.

    `columns` are those that the sources had when the job first started. `*` does not
    include a later column, as the rows written before have no values for it.
    """

    path: Path
    app_id: str
    columns: dict[SourceStream, SourceColumns]
    _entries: dict[str, Any]

    def keep(self) -> None:
        """Create the folder, unless it exists; from then on it belongs to this job.

        Called once the job is known to fit its sources, so that a SELECT that never
        ran can be corrected in the same folder. Raises CheckpointError.
        """
        try:
            if not (self.path / FILE).exists():
                _write(self.path, self._entries)
        except OSError as error:
            raise _unusable(self.path, error) from error

    @property
    def stream(self) -> Path:
        """The folder of Spark's checkpoint."""
        return self.path / "stream"

    @property
    def join_state(self) -> Path:
        """The folder of the join state."""
        return self.path / "mirrors"


def open_folder(job: SqlJob, columns: Mapping[SourceStream, SourceColumns]) -> JobFolder:
    """Open a job's folder, or start a new one; `columns` are the sources' current columns.

    Raises SettingsError if the folder is another job's, or if a source has lost
    columns or has another key; CheckpointError if the folder cannot be read.
    """
    path = job.settings.checkpoint.absolute()
    try:
        found = _read(path) if (path / FILE).exists() else _new(job, columns)
    except (OSError, ValueError, KeyError) as error:
        raise _unusable(path, error) from error
    for what, was, now in (
        ("SELECT", found["select"], _select_of(job)),
        ("target", shown_uri(found["target"]), shown_uri(job.settings.target)),
    ):
        if was != now:
            raise SettingsError(
                f"{job.name}: {path} was created with another {what} ({was}), and rows written by "
                "that would stay unchanged. Give a new checkpoint and a new target, or the old "
                f"{what}"
            )
    begun = {stream: _as_begun(job, stream, found, now) for stream, now in columns.items()}
    return JobFolder(path, found["app_id"], begun, found)


def _as_begun(job: SqlJob, stream: SourceStream, found: Any, now: SourceColumns) -> SourceColumns:
    was = found["columns"][stream.label]
    # New columns do no harm; rows written before have no values of a lost one.
    gone = [name for name in was if name not in now.columns]
    if gone or tuple(found["keys"][stream.label]) != now.key:
        what = f"columns {', '.join(gone)} are gone" if gone else "its primary key is different"
        raise SettingsError(
            f"{job.name}: {stream.label} has changed since the job first started: {what}. Give a "
            "new checkpoint and a new target"
        )
    return SourceColumns(tuple(was), now.key)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / FILE).read_text(encoding="utf-8"))
    return {name: found[name] for name in ("app_id", "select", "target", "columns", "keys")}


def _new(job: SqlJob, columns: Mapping[SourceStream, SourceColumns]) -> dict[str, Any]:
    return {
        "app_id": f"sql-{uuid.uuid4().hex}",
        "select": _select_of(job),
        "target": shown_uri(job.settings.target),
        "columns": {stream.label: list(of.columns) for stream, of in columns.items()},
        "keys": {stream.label: list(of.key) for stream, of in columns.items()},
    }


def _write(path: Path, entries: dict[str, Any]) -> None:
    make_folder(path)
    new = path / f"{FILE}.new"
    make_private(new)
    with new.open("w", encoding="utf-8") as file:
        json.dump(entries, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    # After the fsync: a crash leaves no file, or the whole one.
    new.replace(path / FILE)


def _unusable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path / FILE} cannot be used: {error}")


def _select_of(job: SqlJob) -> str:
    """Return the SELECT's tokens, with single spaces between them."""
    text = job.query.text
    return " ".join(text.text[token.start : token.end + 1] for token in text.tokens())
