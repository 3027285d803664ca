"""What a job does, with all names resolved: values that the batch functions follow.

Expressions are texts of Spark SQL. In a `Branch` columns stand alone (`id`); in
a `JoinPlan` each belongs to a table's short name (r0.`id`), r0 being the fact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SOURCE_COLUMN = "_databus_source"


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """A source's columns, in its order, and those of its primary key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Feed:
    """A source as the stream has it. `physical_source` is empty when only one is read."""

    source: str
    physical_source: str = ""

    @property
    def label(self) -> str:
        """What tells it from the job's other sources."""
        return f"{self.physical_source}.{self.source}" if self.physical_source else self.source


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the target."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Branch:
    """One SELECT of one source; `label` is the value of its rows' source column."""

    feed: Feed
    label: str
    outputs: tuple[Output, ...]
    condition: str | None
    key: tuple[Output, ...]  # the target's key columns, each of one column of the source


@dataclass(frozen=True, slots=True)
class UnionPlan:
    """One branch, or several whose rows are told apart by their labels.

    The target keeps the label in `_databus_source`. `source_column` is the
    output that has it as well, or else that column; None with one branch.
    `added` are keys that were not selected.
    """

    branches: tuple[Branch, ...]
    source_column: str | None
    added: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The target's columns."""
        return tuple(output.name for output in self.branches[0].outputs)

    @property
    def key(self) -> tuple[str, ...]:
        """The target's key columns; with several branches the source's label is one, too."""
        return tuple(output.name for output in self.branches[0].key)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The sources to read, each once."""
        return tuple(dict.fromkeys(branch.feed for branch in self.branches))


@dataclass(frozen=True, slots=True)
class Dimension:
    """A joined table. `references` = its key columns, and what of the tables before is equal."""

    name: str
    feed: Feed
    is_left: bool
    condition: str
    references: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Mirror:
    """The columns of a source that the job keeps, its key among them."""

    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A wide table: one row for each row of the fact that the joins and the condition leave."""

    fact: Feed
    dimensions: tuple[Dimension, ...]
    outputs: tuple[Output, ...]
    condition: str | None
    keys: tuple[Output, ...]  # the target's key columns, each of one column of the fact
    mirrors: dict[Feed, Mirror]
    added: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The target's columns."""
        return tuple(output.name for output in self.outputs)

    @property
    def key(self) -> tuple[str, ...]:
        """The target's key columns."""
        return tuple(output.name for output in self.keys)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The sources to read, each once."""
        return tuple(self.mirrors)


Plan = UnionPlan | JoinPlan


def quoted(name: str) -> str:
    """Return a name as Spark SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def find_name(names: Iterable[str], name: str) -> str | None:
    """Return the one of the names that is meant: case does not matter, as in Spark."""
    return next((one for one in names if one.lower() == name.lower()), None)
