"""A job's own folder: who it is, how far it is, and its mirrors.

    job.json     the job's id in its target, and the SELECT it was begun with
    stream/      Spark's checkpoint
    mirrors/     of a JOIN: a Delta table of each source

One folder belongs to one SELECT and one target: rows that an earlier SELECT has
written would stay as they are until they change.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from databus.client.spark.sql.job_file import SqlJob
from databus.schemas.errors import CheckpointError, SettingsError

FILE = "job.json"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """An open folder. `app_id` is the job's name in its target's book."""

    path: Path
    app_id: str

    @property
    def stream(self) -> Path:
        """Spark's checkpoint."""
        return self.path / "stream"

    @property
    def mirrors(self) -> Path:
        """The folder of the mirrors."""
        return self.path / "mirrors"


def open_folder(job: SqlJob) -> JobFolder:
    """Make a job's folder, or open it again.

    Raises SettingsError when it is another job's, CheckpointError when it
    cannot be read or written.
    """
    path = job.settings.checkpoint.absolute()
    try:
        found = _read(path) if (path / FILE).exists() else _make(path, job)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path / FILE} cannot be used: {error}") from error
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
    return JobFolder(path, found["app_id"])


def _read(path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((path / FILE).read_text(encoding="utf-8"))
    return {name: found[name] for name in ("app_id", "select", "target")}


def _make(path: Path, job: SqlJob) -> dict[str, str]:
    path.mkdir(parents=True, exist_ok=True)
    made = {
        "app_id": f"sql-{uuid.uuid4().hex}",
        "select": _select_of(job),
        "target": job.settings.target,
    }
    new = path / f"{FILE}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump(made, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path / FILE)
    return made


def _select_of(job: SqlJob) -> str:
    """Return the SELECT's words, whatever is between them."""
    text = job.query.text
    return " ".join(text.text[token.start : token.end + 1] for token in text.tokens())
