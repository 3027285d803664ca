"""Check that a checkpoint is used only with the target that its batches went to.

Spark's checkpoint records how far a query is, but not where its rows went. If the
target is another one, or was removed or restored from a backup, the query would
continue without the earlier rows. So a note beside Spark's own files records the
last batch in the target's commit log, and the target must have that batch or a later
one.

    proof = TargetProof(spark, "/checkpoints/orders", orders)
    proof.check()

    def consume(batch, batch_id):
        with proof.batch(batch_id):
            apply_changes(batch, batch_id, orders)

A batch is recorded first in the target, then in the note, then in Spark's
checkpoint. So after a crash the target is ahead, which is allowed. Batches without a
change are not recorded in a target, so Spark's numbers alone do not tell which batch
it must have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from databus.client.spark.consuming.checkpoint_folder import CheckpointFolder
from databus.client.spark.session import need_own_driver
from databus.client.spark.targets.commit_log import mark_notes
from databus.client.spark.targets.target import Target
from databus.schemas.errors import CheckpointError, OtherTargetError

NOTE = "databus-target"
_NONE_YET = -1


@dataclass(frozen=True, slots=True)
class TargetNote:
    """A checkpoint's note about its target.

    `batch`: the last batch in the target's commit log, -1 before the first.
    `begun_at`: the target's positions before the first batch.
    """

    target: str
    batch: int = _NONE_YET
    begun_at: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of a target. `batch`: the last one of this checkpoint, or None."""

    has_table: bool
    batch: int | None
    positions: Mapping[str, int]


def is_as_left(left: TargetNote | None, found: TargetState) -> bool:
    """Return whether a target is in the state that the checkpoint's note records, or ahead.

    `left` is None for a checkpoint of an earlier version, with batches but no note.
    """
    if left is None or found.batch is not None:
        return found.batch is not None and (left is None or found.batch >= left.batch)
    if left.batch > _NONE_YET:
        return False
    if not any(left.begun_at.values()):
        return not any(found.positions.values())
    return all(found.positions.get(name, -1) >= scn for name, scn in left.begun_at.items())


class TargetProof:
    """One checkpoint and one target; for the process that runs the query.

    `checkpoint` is the query's `checkpointLocation`. `app_id` is that of
    `apply_changes`, if it was given one. `name` distinguishes several targets of one
    checkpoint. `whole` is the folder to remove for a new start, if the checkpoint is
    only a part of it. Raises SettingsError on Spark Connect, which shows no folder.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        target: Target,
        *,
        app_id: str | None = None,
        name: str = "",
        whole: str | None = None,
    ) -> None:
        need_own_driver(spark, "the check of a checkpoint's target")
        self._folder = CheckpointFolder(spark, checkpoint)
        self._target = target
        self._app_id = app_id
        self._note = f"{NOTE}-{name}" if name else NOTE
        self._whole = whole or checkpoint
        self._left: TargetNote | None = None

    def check(self) -> None:
        """Raise OtherTargetError unless the target has the noted batch or a later one.

        Call it before the query starts, as a query that finds nothing new has no batch.
        """
        if self._left is None:
            self._left = self._known()
        last = self._last_batch()
        if self._left is not None and last is not None and last >= self._left.batch:
            return  # the usual case, and before each batch
        found = TargetState(self._target.schema() is not None, last, self._target.positions())
        if not is_as_left(self._left, found):
            raise _other(self._whole, self._target.uri, self._left, found)
        if self._left is None and last is not None:
            self._write(TargetNote(self._target.uri, last))

    @contextmanager
    def batch(self, batch_id: int | None = None) -> Iterator[None]:
        """Check the target, apply a batch in the `with` block, and record it in the note.

        With the batch's number the target's commit log gets a window of the log that was read, by
        which a new checkpoint that begins at the target's position recognises the log.
        """
        self.check()
        marks = {} if batch_id is None else self._folder.marks_at(batch_id)
        with self._target.noting(mark_notes(marks)):
            yield
        # After the target's commit: a crash in between leaves the target ahead, which is allowed.
        last = self._last_batch()
        if self._left is not None and last is not None and last > self._left.batch:
            self._write(replace(self._left, target=self._target.uri, batch=last))

    def _known(self) -> TargetNote | None:
        """Return the checkpoint's note; for a new checkpoint, a note of the target's state."""
        note = self._folder.read_note(self._note)
        # A folder that Spark has planned nothing in makes a new query, whatever an old note says.
        is_new = not self._folder.has_planned()
        if is_new or (note is None and not self._folder.has_committed()):
            return self._write(TargetNote(self._target.uri, _NONE_YET, self._target.positions()))
        return None if note is None else _note_of(note, self._folder.path)

    def _last_batch(self) -> int | None:
        # A new query has no id before Spark starts it.
        self._app_id = self._app_id or self._folder.query_id()
        return None if self._app_id is None else self._target.applied(self._app_id)

    def _write(self, left: TargetNote) -> TargetNote:
        self._folder.write_note(self._note, asdict(left))
        self._left = left
        return left


def _note_of(note: Mapping[str, Any], path: str) -> TargetNote:
    try:
        positions = {str(name): int(scn) for name, scn in note["begun_at"].items()}
        return TargetNote(str(note["target"]), int(note["batch"]), positions)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint {path} has a malformed note about its target: {note!r}: {error!r}; "
            "start the query with another checkpoint folder"
        ) from error


def _other(
    checkpoint: str, uri: str, left: TargetNote | None, found: TargetState
) -> OtherTargetError:
    return OtherTargetError(
        checkpoint,
        uri,
        f"checkpoint {checkpoint} goes on only with the target that its batches went to, or "
        f"rows would be missing: it records that {_note_words(left)}, but target {uri} "
        f"{_state_words(found)}. Use that target, in the state in which the query left it; or "
        f"start again: rm -r {checkpoint}, then the same command (sync continues from the "
        "target's own position and fills an empty target; run reads all rows again)",
    )


def _note_words(left: TargetNote | None) -> str:
    if left is None:
        return "batches were applied"
    if left.batch > _NONE_YET:
        return f"batch {left.batch} went to {left.target}"
    return f"it began with {left.target} {_at(left.begun_at)}"


def _state_words(found: TargetState) -> str:
    if not found.has_table:
        return "has no table"
    if found.batch is not None:
        return f"has its batches up to {found.batch} only"
    return f"has no batch of it and is {_at(found.positions)}"


def _at(positions: Mapping[str, int]) -> str:
    places = [f"at scn {scn} of {name}" for name, scn in sorted(positions.items()) if scn]
    return " and ".join(places) or "at no position"
