"""What a sink implements, and what it gets.

    class Printer:
        def open(self, opening):
            return None                 # or the position that the target itself keeps

        def write(self, changes):
            for change in changes:
                print(change.op, change.source, change.key, change.after)

        def flush(self):
            return None                 # everything written so far is durable

        def close(self):
            pass

Each lane of a sink has an object of its own, and calls it on one thread. After an error the object
is closed and another one is opened; what was not flushed is written again. So a sink needs neither
locks nor retries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import CheckpointError

Row = Mapping[str, Any]


class ChangeOp(StrEnum):
    """What a change does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    SNAPSHOT = "snapshot"  # the row was there before the changes: an upsert
    TRUNCATE = "truncate"  # all rows of the source are gone
    DDL = "ddl"  # a statement on the table; only for sinks with `ddl = true`
    STATEMENT = "statement"  # DML that the source has logged instead of its rows; the same


MARKS = frozenset({ChangeOp.TRUNCATE, ChangeOp.DDL, ChangeOp.STATEMENT})

# Extra keys of a checkpoint: at this SCN a sink begins that has written nothing yet; a digest of
# the position that its target had.
_BEGINS_AT = "sink_begins_at"
OWN_KEY = "sink_own"


@dataclass(frozen=True, slots=True)
class Position:
    """All windows of a physical source up to here are consumed.

    It has the checkpoint of a client, which names a window of its log: a relay of another log
    refuses it. A target may keep `to_json()`.
    """

    source: str  # the physical source
    checkpoint: Checkpoint

    @property
    def scn(self) -> int:
        """The SCN of the last window; within a bootstrap of the page."""
        return self.checkpoint.window_scn

    def to_json(self) -> str:
        """Return its text, the same for equal positions."""
        return json.dumps({"source": self.source, "checkpoint": self.checkpoint.to_json()})

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Read a position; raise CheckpointError if it is none."""
        try:
            values = json.loads(text)
            return cls(str(values["source"]), Checkpoint.from_json(values["checkpoint"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{text[:200]!r} is no position of a sink: {error!r}") from error


def as_beginning(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint at which a sink begins that has written nothing yet."""
    return checkpoint.with_extra(**{_BEGINS_AT: checkpoint.window_scn})


def is_beginning(checkpoint: Checkpoint) -> bool:
    """Whether a sink that has written nothing yet begins here. No later checkpoint says so."""
    is_there = checkpoint.extra.get(_BEGINS_AT) == checkpoint.window_scn
    return is_there and not checkpoint.is_bootstrap


@dataclass(frozen=True, slots=True)
class Opening:
    """What a sink is opened for."""

    sink: str  # its name
    physical_source: str
    position: Position | None = None  # where databus would go on, None at the very start
    # A person has asked for this try. A sink that stopped because another process writes as the
    # same sink does so again when it is opened, unless this is true.
    takes_over: bool = False
    # The versions of a source's schema that are known by now, oldest first. One that no row has may
    # say what became of rows at rest.
    versions: Callable[[str], Sequence[WriterSchema]] = field(
        default=lambda _source: (), repr=False, compare=False
    )

    @property
    def is_first(self) -> bool:
        """Whether nothing was written as this sink yet: the target need not know it."""
        return self.position is None or is_beginning(self.position.checkpoint)

    @property
    def had_own(self) -> bool:
        """Whether the target had a position of its own when databus's was stored."""
        return self.position is not None and OWN_KEY in self.position.checkpoint.extra


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """Facts about a whole transaction, or a page of a bootstrap."""

    scn: int
    timestamp_ns: int  # of the commit, since 1970
    gtid: str | None = None
    rows: int = 0  # of the sink's sources, before filters
    phase: str = "live"  # or `snapshot`, `catch_up`: a page of a bootstrap, not a transaction


@dataclass(frozen=True, slots=True)
class Change:
    """One change. A change of the key comes as a delete, and an insert after it."""

    op: ChangeOp
    source: str
    key: Row  # column → value; of a table without a primary key the whole row
    before: Row | None  # the row before it, None if there was none or it is not known
    after: Row | None  # the row after it, None for a delete; without columns that were not logged
    transaction: TransactionInfo = field(repr=False)
    scn: int = 0
    timestamp_ns: int = 0
    index: int = 0  # among the events of its transaction
    is_move: bool = False  # half of a change of the key
    statement: str = ""
    # The Avro schema of `key`, `before` and `after`, as they are here: columns of the table that
    # the sink does not take are not in it. `columns_of(schema)` has the types. None without rows.
    schema: WriterSchema | None = field(default=None, repr=False)
    # The position that is reached with this change, if the target may store it: this is the last
    # change of its transaction, and the sink has one lane.
    position: Position | None = field(default=None, repr=False)

    @property
    def is_upsert(self) -> bool:
        """Whether the row is there afterwards."""
        return self.after is not None

    @property
    def id(self) -> str:
        """A text that is the same whenever this change comes again, and different for others."""
        half = ":delete" if self.is_move and self.op is ChangeOp.DELETE else ""
        if self.transaction.phase == "live":
            return f"{self.scn}:{self.index}{half}"
        # Pages have other places after a restart of the bootstrap.
        return f"{self.transaction.phase}:{self.source}:{self.scn}:{key_digest(self.key)}{half}"


@runtime_checkable
class Sink(Protocol):
    """Where changes go. Raise `SinkUnavailableError` and `SinkRefusedError` to say which kind."""

    def open(self, opening: Opening) -> Position | None:
        """Connect.

        A target that keeps its own position, in the transaction that writes the rows, returns it,
        and reading continues there. That counts for sinks with one lane. Such a class says so by
        `keeps_position = True`; it is then for one physical source, unless it says by
        `has_position_per_source = True` that it keeps one of each. A class that alters its target
        for another schema says `follows_schemas = True`: of several lanes one alone gets the first
        row with it.
        """
        ...

    def write(self, changes: Sequence[Change]) -> None:
        """Take whole transactions, in order; may buffer them."""
        ...

    def flush(self) -> Position | None:
        """Make what was written durable; return the position up to which it is, None = all of it.

        A returned position is that of a change.
        """
        ...

    def close(self) -> None:
        """Disconnect; what was not flushed is dropped."""


@runtime_checkable
class HasUniqueKeys(Protocol):
    """A sink whose target has more unique keys than the primary key."""

    def unique_keys(self, source: str) -> Sequence[Sequence[str]]:
        """Return the columns of each unique key besides the primary key, for rows of a source."""
        ...


@runtime_checkable
class TellsWaits(Protocol):
    """A sink that waits for its target within a call, and says so: meanwhile it is failing."""

    waiting: str  # why it waits now; "" = it does not


@runtime_checkable
class Abortable(Protocol):
    """A sink whose call can be ended from outside."""

    def abort(self) -> None:
        """End the call that is made now, with an error. Thread-safe."""


def key_digest(key: Row) -> str:
    """Return a short text of a key."""
    text = repr(sorted(key.items()))
    return f"{crc32(text.encode()):08x}{crc32(text[::-1].encode()):08x}"
