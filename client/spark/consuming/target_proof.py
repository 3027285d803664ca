"""That a checkpoint goes on with the target that its batches went to, and with no other.

Spark's checkpoint says how far a query is, and nothing of where the rows went.
With another target, one that was removed, or one that was put back from a
backup, a query would go on from there, and the rows from before would be
missing for good. So a note beside Spark's own files says which batch was the
last that the target noted, and the target must have noted that one, or a later.

    proof = TargetProof(spark, "/checkpoints/orders", orders)
    proof.check()

    def consume(batch, batch_id):
        with proof.batch():
            apply_changes(batch, batch_id, orders)

A batch is first in the target, then in the note, then in Spark's checkpoint:
killed in between, the target is ahead, which is right. Batches without a change
leave no trace in a target, so Spark's numbers alone do not say what it must have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyspark.sql import SparkSession

from databus.client.spark.consuming.checkpoint_folder import CheckpointFolder
from databus.client.spark.targets.target import Target
from databus.schemas.errors import CheckpointError, OtherTargetError

NOTE = "databus-target"
_NONE_YET = -1


@dataclass(frozen=True, slots=True)
class Left:
    """What a checkpoint says of its target.

    `batch`: the last one that it noted, -1 before one. `begun_at`: its positions
    before the first batch.
    """

    target: str
    batch: int = _NONE_YET
    begun_at: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Found:
    """What a target says. `batch`: the last one of this checkpoint; None without any."""

    has_table: bool
    batch: int | None
    positions: Mapping[str, int]


def is_as_left(left: Left | None, found: Found) -> bool:
    """Say whether a target is the one that a checkpoint was left with, or ahead of that.

    `left` is None of a checkpoint that has batches and no note: of an earlier version.
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
    `apply_changes`, where it was given one. `name` tells several targets of one
    checkpoint apart. `whole` is the folder to be removed by who wants to begin anew,
    where the checkpoint is a part of it.
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
        self._folder = CheckpointFolder(spark, checkpoint)
        self._target = target
        self._app_id = app_id
        self._note = f"{NOTE}-{name}" if name else NOTE
        self._whole = whole or checkpoint
        self._left: Left | None = None

    def check(self) -> None:
        """Raise OtherTargetError unless the target is as the checkpoint left it, or ahead.

        To be called before the query starts: one that finds nothing new has no batch.
        """
        if self._left is None:
            self._left = self._known()
        last = self._last_batch()
        if self._left is not None and last is not None and last >= self._left.batch:
            return  # the usual case, and before each batch
        found = Found(self._target.schema() is not None, last, self._target.positions())
        if not is_as_left(self._left, found):
            raise _other(self._whole, self._target.uri, self._left, found)
        if self._left is None and last is not None:
            self._write(Left(self._target.uri, last))

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Check the target, have a batch applied, and note that it is."""
        self.check()
        yield
        last = self._last_batch()
        if self._left is not None and last is not None and last > self._left.batch:
            self._write(replace(self._left, target=self._target.uri, batch=last))

    def _known(self) -> Left | None:
        """Return what the checkpoint says; of a new one, what the target is now."""
        note = self._folder.read_note(self._note)
        is_new = not self._folder.has_planned()
        if is_new or (note is None and not self._folder.has_committed()):
            return self._write(Left(self._target.uri, _NONE_YET, self._target.positions()))
        return None if note is None else _left_of(note, self._folder.path)

    def _last_batch(self) -> int | None:
        # Spark gives a new query its id when it starts.
        self._app_id = self._app_id or self._folder.query_id()
        return None if self._app_id is None else self._target.applied(self._app_id)

    def _write(self, left: Left) -> Left:
        self._folder.write_note(self._note, asdict(left))
        self._left = left
        return left


def _left_of(note: Mapping[str, Any], path: str) -> Left:
    try:
        positions = {str(name): int(scn) for name, scn in note["begun_at"].items()}
        return Left(str(note["target"]), int(note["batch"]), positions)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the note of its target in checkpoint {path} makes no sense: {note!r}: {error!r}; "
            "start the query with another checkpoint folder"
        ) from error


def _other(checkpoint: str, uri: str, left: Left | None, found: Found) -> OtherTargetError:
    return OtherTargetError(
        checkpoint,
        uri,
        f"checkpoint {checkpoint} goes on only with the target that its batches went to, else "
        f"rows would be missing for good: it says that {_words_left(left)}, and target {uri} "
        f"{_words_found(found)}. Give that target, as it was left; or begin anew: "
        f"rm -r {checkpoint}, then the same command (sync follows a target from the target's own "
        "position and fills one that is empty; run reads all rows again)",
    )


def _words_left(left: Left | None) -> str:
    if left is None:
        return "batches were applied"
    if left.batch > _NONE_YET:
        return f"batch {left.batch} went to {left.target}"
    return f"it began with {left.target} {_at(left.begun_at)}"


def _words_found(found: Found) -> str:
    if not found.has_table:
        return "has no table"
    if found.batch is not None:
        return f"has its batches up to {found.batch} only"
    return f"has no batch of it and is {_at(found.positions)}"


def _at(positions: Mapping[str, int]) -> str:
    places = [f"at scn {scn} of {name}" for name, scn in sorted(positions.items()) if scn]
    return " and ".join(places) or "at no position"
