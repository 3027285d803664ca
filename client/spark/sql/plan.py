"""A job's plan, with all names resolved: the values that the batch functions follow.

Expressions are texts of Spark SQL. A column is written `id` in a `Branch`, and
with its table's short name (r0.`id`) in a `JoinPlan`; r0 is the fact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SOURCE_COLUMN = "_databus_source"


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """A source's columns in order, and its primary key."""

    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceStream:
    """The changes of one source. `physical_source` is empty if the job reads only one."""

    source: str
    physical_source: str = ""

    @property
    def label(self) -> str:
        """The name that is unique among the job's sources."""
        return f"{self.physical_source}.{self.source}" if self.physical_source else self.source


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the target."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Branch:
    """One SELECT of one source; `label` is the value in the source column of its rows."""

    stream: SourceStream
    label: str
    outputs: tuple[Output, ...]
    condition: str | None
    key: tuple[Output, ...]  # the target's key columns, each of one column of the source


@dataclass(frozen=True, slots=True)
class UnionPlan:
    """One branch, or several whose rows differ by their labels.

    The target stores the label in `_databus_source`. `source_column` is an output
    that also has the label, or else `_databus_source`; None with one branch.
    `added`: key columns that were not selected.
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
        """The target's key columns, without the label that several branches add."""
        return tuple(output.name for output in self.branches[0].key)

    @property
    def streams(self) -> tuple[SourceStream, ...]:
        """The sources to read, each once."""
        return tuple(dict.fromkeys(branch.stream for branch in self.branches))


@dataclass(frozen=True, slots=True)
class Dimension:
    """A joined table. `references`: its key columns, each with the expression that it equals."""

    name: str
    stream: SourceStream
    is_left: bool
    condition: str
    references: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class StateColumns:
    """The columns of a source that the join state keeps, its key among them."""

    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A wide table: a row for each row of the fact that passes the joins and the condition."""

    fact: SourceStream
    dimensions: tuple[Dimension, ...]
    outputs: tuple[Output, ...]
    condition: str | None
    keys: tuple[Output, ...]  # the target's key columns, each of one column of the fact
    state: dict[SourceStream, StateColumns]
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
    def streams(self) -> tuple[SourceStream, ...]:
        """The sources to read, each once."""
        return tuple(self.state)


Plan = UnionPlan | JoinPlan


def find_name(names: Iterable[str], name: str) -> str | None:
    """Return the name that equals another one without regard to case, as in Spark; or None."""
    return next((one for one in names if one.lower() == name.lower()), None)
