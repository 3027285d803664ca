"""What a stock client of Ptubes has of the changes: the judgement of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.shared.every_type import Change
from benchmarks.shared.report import Figure, at_most

_EXAMPLES = 3

Place = tuple[int, ...]  # (time in ms, file, offset, index): the client's own order


class Seen(NamedTuple):
    """An event that an instance took."""

    instance: str
    change: Change
    place: Place
    wrong: tuple[str, ...] = ()  # columns


class Floor(NamedTuple):
    """From number `at` of what was seen on, nothing comes again from up to `place`."""

    at: int
    place: Place


class Counts(NamedTuple):
    """What is wrong with what was seen, and a few examples of it."""

    lost: int
    again: int
    again_before_checkpoint: int
    out_of_order: int
    wrong_values: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """What all instances together have of the changes."""

    server: str
    changes: int
    lost: int
    again: int
    again_before_checkpoint: int  # what a stored checkpoint says that the client has
    out_of_order: int
    wrong_values: int
    examples: tuple[str, ...]  # of what is wrong
    shares: Mapping[str, int]  # rows of the changes that two instances shared, by instance
    taken_over_s: float
    seconds: float

    @property
    def problems(self) -> int:
        """Number of broken promises: what comes again after a checkpoint is none."""
        return self.lost + self.again_before_checkpoint + self.out_of_order + self.wrong_values


def floor_of(checkpoints: Iterable[Mapping[str, Any]]) -> Place:
    """Return the oldest place of checkpoints, where a client begins; () if one has none."""
    names = ("timestamp", "binlogFile", "binlogOffset", "eventIndex")
    found = list(checkpoints)
    if not found or any(one["checkpointMode"] != "NORMAL" for one in found):
        return ()
    return min(tuple(int(one[name]) for name in names) for one in found)


def judge(seen: Sequence[Seen], wanted: Sequence[Change], floors: Sequence[Floor]) -> Counts:
    """Compare what was seen with what was changed.

    What comes again goes back, but nothing comes for the first time after a later change of its
    key.
    """
    known: set[Change] = set()
    newest: dict[int, int] = {}  # number of the change, by key
    number_of = {change: number for number, change in enumerate(wanted)}
    again, bad = 0, {"early": 0, "order": 0, "values": 0}
    examples: list[str] = []

    def count(what: str, number: int, one: Seen) -> None:
        bad[what] += 1
        if bad[what] <= _EXAMPLES:
            examples.append(f"{what}: {number} {one}")

    left, floor = list(floors), Place()
    for number, one in enumerate(seen):
        while left and left[0].at <= number:
            floor = left.pop(0).place
        if one.wrong:
            count("values", number, one)
        if one.change in known:
            again += 1
            if one.place <= floor:
                count("early", number, one)
            continue
        known.add(one.change)
        at = number_of.get(one.change, -1)
        if at < newest.get(one.change.id, 0):
            count("order", number, one)
        newest[one.change.id] = at
    lost = set(wanted) - known
    examples += [f"lost: {one}" for one in sorted(lost)[:_EXAMPLES]]
    return Counts(len(lost), again, bad["early"], bad["order"], bad["values"], tuple(examples))


def figures_of(one: Findings) -> list[Figure]:
    """Return the figures of a run."""
    name = f"Ptubes' client, {one.changes} changes on {one.server}"
    return [
        Figure(f"{name}: lost", one.lost, "rows", at_most(0)),
        Figure(f"{name}: changes of a key out of order", one.out_of_order, "rows", at_most(0)),
        Figure(f"{name}: other values than Ptubes'", one.wrong_values, "rows", at_most(0)),
        Figure(
            f"{name}: again from before a checkpoint",
            one.again_before_checkpoint,
            "rows",
            at_most(0),
        ),
        Figure(f"{name}: again after a checkpoint", one.again, "rows"),
        Figure(f"{name}: a killed instance's partitions", one.taken_over_s, "s"),
        Figure(f"{name}: all", one.seconds, "s"),
    ]
