"""What a job of many tables records beside its checkpoint: the last batch of each target.

Spark's checkpoint says how far the query is, and this note where the rows went:
a target must have the recorded batch, or a later one, as `target_proof` explains. It
also says which tables are set aside, which are read again beside the batches, and up
to which SCN batches were taken, so that a table is read again up to that SCN.

The note is written after the targets' commits and before Spark commits the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from databus.client.spark.consuming.checkpoint_folder import CheckpointFolder
from databus.client.spark.targets.target import Target
from databus.schemas.errors import CheckpointError, OtherTargetError

NOTE = "databus-tables"
NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class TableNote:
    """One table. `batch`: the last batch of its target; `aside`: why no rows go there.

    `reload`: why its rows are read again just now, as of `least_scn` or later; no rows of
    batches go to its target until that is done.
    """

    target: str
    batch: int = NO_BATCH
    aside: str = ""
    reload: str = ""
    least_scn: int = 0


@dataclass(frozen=True, slots=True)
class JobNote:
    """All tables by source. `taken`: by physical source, the newest SCN that a batch had."""

    tables: Mapping[str, TableNote] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)

    def with_table(self, source: str, note: TableNote) -> JobNote:
        """Return the note with another note of one table."""
        return replace(self, tables={**self.tables, source: note})

    def with_taken(self, scns: Mapping[str, int]) -> JobNote:
        """Return the note after a batch whose newest SCNs are these."""
        names = {**self.taken, **scns}
        newest = {name: max(self.taken.get(name, 0), scns.get(name, 0)) for name in names}
        return replace(self, taken=newest)


class TableNotes:
    """The note of one checkpoint folder; written only when it has changed."""

    def __init__(self, folder: CheckpointFolder) -> None:
        """Raises CheckpointError for a note that is not in this format."""
        self.path = folder.path
        self.folder = folder
        # A folder that Spark has planned nothing in makes a new query, whatever an old note says.
        found = folder.read_note(NOTE) if folder.has_planned() else None
        self.now = JobNote() if found is None else _read(found, folder.path)
        self._written = self.now

    def write(self) -> None:
        """Make the note durable."""
        if self.now != self._written:
            self.folder.write_note(NOTE, asdict(self.now))
            self._written = self.now


def check_as_left(
    left: TableNote, path: str, source: str, target: Target, app_id: str | None
) -> None:
    """Raise OtherTargetError if a target lacks the last batch that the note has of its table.

    `path`: of the checkpoint. `app_id` is that of the query, None before its first start.
    """
    last = None if app_id is None else target.applied(app_id)
    if last is None or last < left.batch:
        has = "has no table" if target.schema() is None else f"has its batches up to {last}"
        raise OtherTargetError(
            path,
            target.uri,
            f"target {target.uri} {has}, but batch {left.batch} of this checkpoint went to "
            f"{left.target}: rows would be missing. Use that target in the state in which the "
            f"job left it, or read its rows again: the same command with --reload {source}",
        )


def _read(note: Mapping[str, Any], path: str) -> JobNote:
    try:
        tables = {
            str(source): TableNote(
                str(one["target"]),
                int(one["batch"]),
                str(one["aside"]),
                # Notes of before had neither.
                str(one.get("reload", "")),
                int(one.get("least_scn", 0)),
            )
            for source, one in note["tables"].items()
        }
        return JobNote(tables, {str(name): int(scn) for name, scn in note["taken"].items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint {path} has a malformed note about its tables: {note!r}: {error!r}; "
            "start the job with another checkpoint folder"
        ) from error
