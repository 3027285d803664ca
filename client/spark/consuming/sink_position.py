"""What a target has of a query's batches, by the position that it keeps. Pure.

The SCN of a position alone does not tell: a source that joins the others later comes with SCNs
that they have passed. So a position also names the batch in which it was reached, and how far that
batch was written: a batch is written in the order of SCNs, and Spark repeats the last one alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from databus.client.sinks.contract import Position
from databus.schemas.checkpoint import Checkpoint

# An extra key of a position's checkpoint.
_KEY = "spark_batch"


class Batch(NamedTuple):
    """A batch of a query; `query` is empty where Spark does not tell it."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a target is: `batch` is written up to `batch_scn`, and no SCN is above `scn`.

    Without a batch, as an earlier version and other writers leave it, it has all up to `scn`.
    """

    scn: int
    batch: Batch | None = None
    batch_scn: int = -1

    @classmethod
    def of(cls, position: Position) -> Reached:
        """Return what a position says."""
        scn = position.scn
        match position.checkpoint.extra.get(_KEY):
            # Another writer may have gone on from it, and kept the key.
            case {"query": str(query), "number": int(number), "scn": int(until), "at": at} if (
                at == scn
            ):
                return cls(scn, Batch(query, number), until)
        return cls(scn)

    def after(self, batch: Batch, scn: int) -> Reached:
        """Return where it is after a transaction of a batch."""
        return Reached(max(self.scn, scn), batch, scn)

    def position(self, physical_source: str) -> Position:
        """Return the position that says so."""
        assert self.batch is not None
        told = {**self.batch._asdict(), "scn": self.batch_scn, "at": self.scn}
        return Position(physical_source, replace(Checkpoint.at(self.scn), extra={_KEY: told}))

    def is_sure_of(self, batch: Batch) -> bool:
        """Whether it is known what the target has of a batch: it is the last one, or comes next."""
        last = self.batch
        return last is not None and last.query == batch.query and last.number <= batch.number

    def has(self, batch: Batch, scn: int) -> bool:
        """Whether the target has a transaction of a batch; where that is not sure, by its SCN."""
        if not self.is_sure_of(batch):
            return scn <= self.scn
        return batch == self.batch and scn <= self.batch_scn
