"""The four orders of consumption: which changes go to which lane, and what waits for what.

| order | what is ordered |
|---|---|
| `transaction` | transactions: one lane writes them, one after the other |
| `single-table` | transactions of several tables, each alone; between them the tables |
| `table` | the changes of a table |
| `row` | the changes of a key |

A lane writes what it gets in order. A step that is a barrier begins when everything before it is
durable. A truncate or a statement concerns all keys, so it is alone: before it and after it is a
barrier. So is, for a sink that follows schemas, the first row that has one: the target's table is
made or altered for it once, while nobody else writes. In `row`, an update that changes the key is a
delete and an insert, in the lanes of two keys: the insert is behind a barrier. `writesets` is about
targets with more unique keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from databus.client.sinks.contract import MARKS, Change, ChangeOp
from databus.client.sinks.rules.key_values import lane_of_key
from databus.client.sinks.rules.writesets import Writeset
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import SettingsError

Order = Literal["transaction", "single-table", "table", "row"]
Unique = Literal["primary", "writeset"]
UniqueKeys = Callable[[str], Sequence[Sequence[str]]]


class Part(NamedTuple):
    """Changes for one lane, in order."""

    lane: int
    changes: tuple[Change, ...]


class Step(NamedTuple):
    """Parts that may be written at the same time.

    With `is_barrier` everything before it is durable before it begins.
    """

    parts: tuple[Part, ...]
    is_barrier: bool


class Scheduler:
    """Decides the steps of each transaction, in the order of the log."""

    def __init__(
        self,
        order: Order,
        lanes: int,
        unique: Unique = "primary",
        unique_keys: UniqueKeys = lambda _source: (),
        *,
        follows_schemas: bool = False,
    ) -> None:
        """`unique_keys` returns the unique keys that the target has besides the primary key."""
        self.follows_schemas = follows_schemas
        self.lanes = 1 if order == "transaction" else lanes
        self._order = order
        self._unique, self._unique_keys = unique, unique_keys
        self._lane_of_table: dict[str, int] = {}
        self._schemas: dict[str, WriterSchema] = {}  # the newest of each source
        self._checked: set[str] = set()
        self._writeset = Writeset(self.lanes, unique_keys) if unique == "writeset" else None
        self._must_wait = False  # what is next comes after something that is alone

    def lanes_of(self, changes: Sequence[Change]) -> list[Step]:
        """Return the steps of a transaction.

        Raises SettingsError in order `row` for a target with a second unique key: rows of different
        keys could then stand in each other's way.
        """
        if self.lanes == 1:
            return [Step((Part(0, tuple(changes)),), False)] if changes else []
        steps = _Steps(self._must_wait)
        if self._order == "single-table":
            self._by_transaction(changes, steps)
        elif self._order == "table":
            self._by_table(changes, steps)
        else:
            self._by_key(changes, steps)
        found = steps.ended()
        self._must_wait = steps.must_wait
        return found

    def _by_transaction(self, changes: Sequence[Change], steps: _Steps) -> None:
        tables = {change.source for change in changes}
        marks = [change for change in changes if self._is_mark(change)]
        if len(tables) > 1 or marks:
            steps.alone(changes)
            return
        for change in changes:
            steps.add(self._of_table(change.source), change)

    def _by_table(self, changes: Sequence[Change], steps: _Steps) -> None:
        for change in changes:
            if self._is_mark(change):
                steps.alone([change])
            else:
                steps.add(self._of_table(change.source), change)

    def _by_key(self, changes: Sequence[Change], steps: _Steps) -> None:
        for unit in units(changes):
            self.check(unit[0].source)
            if self._is_mark(unit[0]):
                self._forget()
                steps.alone(unit)
            elif self._writeset is not None:
                self._by_writeset(unit, self._writeset, steps)
            else:
                self._by_own_key(unit, steps)

    def _by_own_key(self, unit: Sequence[Change], steps: _Steps) -> None:
        last = None
        for change in unit:
            lane = lane_of_key(change.source, change.key, self.lanes)
            if last not in (None, lane):
                steps.wait()  # the delete of the old key is done first
            steps.add(lane, change)
            last = lane

    def _by_writeset(self, unit: Sequence[Change], writeset: Writeset, steps: _Steps) -> None:
        lane = writeset.lane_of(unit, lane_of_key(unit[0].source, unit[0].key, self.lanes))
        if lane is None:
            # It touches values of several lanes: those are written first.
            writeset.forget()
            steps.wait()
            lane = writeset.lane_of(unit, lane_of_key(unit[0].source, unit[0].key, self.lanes))
        if lane is None:
            steps.alone(unit)  # which values it touches is not known
            return
        for change in unit:
            steps.add(lane, change)

    def _forget(self) -> None:
        if self._writeset is not None:
            self._writeset.forget()

    def _is_mark(self, change: Change) -> bool:
        """Return whether a change concerns more than its row, and must be alone."""
        return change.op in MARKS or (self.follows_schemas and self._has_new_schema(change))

    def _has_new_schema(self, change: Change) -> bool:
        schema, known = change.schema, self._schemas.get(change.source)
        if schema is None or schema is known or schema == known:
            return False
        if known is not None and schema.version < known.version:
            return False  # a row at rest, or one that comes again: nothing is altered for it
        self._schemas[change.source] = schema
        return True

    def _of_table(self, source: str) -> int:
        # In the order in which they come: a few tables are spread better than by a hash.
        found = self._lane_of_table.get(source)
        if found is None:
            found = self._lane_of_table[source] = len(self._lane_of_table) % self.lanes
        return found

    def check(self, source: str) -> None:
        """Raise SettingsError if the order cannot be kept for a source; see `lanes_of`."""
        if self._order != "row" or source in self._checked:
            return
        keys = self._unique_keys(source)
        if keys and self._unique == "primary":
            shown = "; ".join(", ".join(key) for key in keys)
            raise SettingsError(
                f"order = 'row': the target of {source} has another unique key ({shown}), so rows "
                "of different primary keys may stand in each other's way: set unique = 'writeset', "
                "or another order"
            )
        self._checked.add(source)


class _Steps:
    """The steps of one transaction, while they are made."""

    def __init__(self, must_wait: bool) -> None:
        self._steps: list[Step] = []
        self._parts: dict[int, list[Change]] = {}
        self.must_wait = must_wait

    def add(self, lane: int, change: Change) -> None:
        self._parts.setdefault(lane, []).append(change)

    def wait(self) -> None:
        """End the step: what follows is behind a barrier."""
        self._close()
        self.must_wait = True

    def alone(self, changes: Iterable[Change]) -> None:
        self.wait()
        for change in changes:
            self.add(0, change)
        self.wait()

    def ended(self) -> list[Step]:
        self._close()
        return self._steps

    def _close(self) -> None:
        if self._parts:
            parts = tuple(Part(lane, tuple(held)) for lane, held in self._parts.items())
            self._steps.append(Step(parts, self.must_wait))
            self._parts, self.must_wait = {}, False


def units(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield the changes one by one, but the two halves of a change of the key together."""
    half: Change | None = None
    for change in changes:
        if half is not None and _belong_together(half, change):
            yield [half, change]
            half = None
            continue
        if half is not None:
            yield [half]
            half = None
        if change.is_move and change.op is ChangeOp.DELETE:
            half = change
        else:
            yield [change]
    if half is not None:
        yield [half]


def _belong_together(half: Change, change: Change) -> bool:
    return change.is_move and (half.source, half.scn, half.index) == (
        change.source,
        change.scn,
        change.index,
    )
