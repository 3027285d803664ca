"""From the events of a window to the changes that a sink gets. Pure.

An update that changes the key becomes a delete and an insert. Then the rule of the table decides:
which rows (`where`: an update that moves a row out is a delete, one that moves it in an insert),
which columns (an update of none of them is no change), masks, the new names, and FLOAT values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from databus.client.dispatcher.data_window import DataWindow, read_of
from databus.client.events.data_event import DataEvent, DdlEvent, StatementEvent
from databus.client.events.row_condition import RowCondition
from databus.client.puller.buffer_items import BootstrapPage
from databus.client.sinks.contract import Change, ChangeOp, Position, Row, TransactionInfo
from databus.client.sinks.rules.masks import Mask
from databus.client.sinks.rules.moves import split_move
from databus.schemas.avro_meta import column_of
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.columns.short_floats import float_columns, shortened
from databus.schemas.columns.taken_columns import taken_schema
from databus.schemas.errors import SettingsError
from databus.schemas.event.metadata import Op
from databus.schemas.scn import MAX_SCN
from databus.schemas.table_change import change_of

_EMPTY: Row = {}
_STATEMENTS = (DdlEvent, StatementEvent)
_OPS = {op: ChangeOp(op.value) for op in Op}


@dataclass(frozen=True, slots=True)
class TableRule:
    """What a sink takes of one source."""

    where: RowCondition | None = None
    columns: Collection[str] | None = None  # only these; None = all
    without: Collection[str] = ()
    masks: Mapping[str, Mask] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # column → its name in the target
    blurred: Collection[str] = ()  # columns whose masks make different values equal
    # Columns that the source must have: one that was misspelt or renamed is not masked.
    needed: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()  # columns of which the mask leaves a text, or NULL

    @property
    def is_all(self) -> bool:
        """Whether rows pass unchanged."""
        return not (self.where or self.columns is not None or self.without or self.changes_rows)

    @property
    def changes_rows(self) -> bool:
        """Whether values or names are replaced."""
        return bool(self.masks or self.names)

    def has(self, column: str) -> bool:
        """Whether a column is taken."""
        return column not in self.without and (self.columns is None or column in self.columns)


RuleOf = Callable[[str], TableRule]


def schema_of(schema: WriterSchema | None, rule: TableRule) -> WriterSchema | None:
    """Return the schema of rows that a rule passes on."""
    if schema is None or rule.is_all:
        return schema
    columns = frozenset(filter(rule.has, _names(schema)))
    return taken_schema(schema, columns, tuple(rule.names.items()), rule.texts)


def changes_of(window: DataWindow, rule_of: RuleOf, *, with_statements: bool) -> list[Change]:
    """Return the changes of a window that a sink gets, without their positions.

    Raises RowError, SchemaError, SettingsError.
    """
    info, is_known = _info(window), _is_known(window)
    found: list[Change] = []
    for told in window.changes if window.statements else window.events:
        if isinstance(told, _STATEMENTS):
            if with_statements:
                found.append(_statement(told, info))
            continue
        rule = rule_of(told.source)
        changes = _split(told, info)
        if not rule.is_all:
            changes = [one for change in changes for one in _passed(change, told, rule, is_known)]
        found += [with_short_floats(one) for one in changes]
    return found


def with_short_floats(change: Change) -> Change:
    """Return the change with the fewest digits in its FLOATs: 0.1, not 0.10000000149011612."""
    columns = () if change.schema is None else float_columns(change.schema)
    if not columns:
        return change
    key, before, after = (
        None if row is None else shortened(row, columns)
        for row in (change.key, change.before, change.after)
    )
    return replace(change, key=key or _EMPTY, before=before, after=after)


def place_last(changes: Sequence[Change], position: Position) -> None:
    """Give the last of new changes the position that is reached with it."""
    if changes:
        # It is frozen for who gets it, and nobody has it yet. A copy takes as long as all else.
        object.__setattr__(changes[-1], "position", position)


def _info(window: DataWindow) -> TransactionInfo:
    events = window.events
    gtid = events[0].gtid if events else None
    return TransactionInfo(window.scn, window.timestamp_ns, gtid, len(events), window.phase.value)


def _is_known(window: DataWindow) -> bool:
    """Whether it is a page for a consumer that has rows already, as of another moment."""
    read = read_of(window)
    return isinstance(read, BootstrapPage) and read.known_scn != MAX_SCN


@lru_cache(maxsize=4096)
def _names(schema: WriterSchema) -> tuple[str, ...]:
    """Return the names of the columns, and those that they had before."""
    change = change_of(schema.text)
    earlier = () if change is None else change.renamed.values()
    return (*(column_of(field) for field in json.loads(schema.text)["fields"]), *earlier)


def _statement(told: DdlEvent | StatementEvent, info: TransactionInfo) -> Change:
    op = ChangeOp.DDL if isinstance(told, DdlEvent) else ChangeOp.STATEMENT
    return Change(
        op,
        told.sources[0] if told.sources else "",
        _EMPTY,
        None,
        None,
        info,
        told.scn,
        told.timestamp_ns,
        statement=told.statement,
    )


def _split(event: DataEvent, info: TransactionInfo) -> Sequence[Change]:
    """Return the change of an event, or the two of an update that changes the key."""
    op = _OPS[event.op]
    source, scn, at_ns, index = event.source, event.scn, event.timestamp_ns, event.index
    if op is ChangeOp.TRUNCATE:
        return (Change(op, source, _EMPTY, None, None, info, scn, at_ns, index),)
    key, schema = event.key, event.schema
    before: Row | None = None
    after: Row | None = event.row
    if event.is_delete:
        # Also a deleted row of a snapshot, or of a relay that does not tell kinds of changes.
        op, before, after = ChangeOp.DELETE, after, None
    elif op is ChangeOp.UPDATE:
        before = event.before
    change = Change(op, source, key, before, after, info, scn, at_ns, index, False, "", schema)
    return (change,) if before is None else tuple(split_move(change))


def _passed(
    change: Change, event: DataEvent, rule: TableRule, may_be_there: bool
) -> Iterator[Change]:
    """Yield the change as the rule passes it on, if it does.

    `may_be_there`: the target may have the row that a page of a bootstrap has.
    """
    if change.op is ChangeOp.TRUNCATE:
        yield change
        return
    _check_columns(event, rule)
    if rule.where is not None:
        filtered = _filtered(change, event, rule.where, may_be_there)
        if filtered is None:
            return
        change = filtered
    if _touches_nothing(change, rule):
        return
    yield replace(
        change,
        key=_masked(_taken_key(change.key, event, rule), rule),
        before=_taken(change.before, rule),
        after=_taken(change.after, rule),
        schema=schema_of(change.schema, rule),
    )


def _check_columns(event: DataEvent, rule: TableRule) -> None:
    """Raise SettingsError if the settings name a column that the source does not have."""
    row = event.row
    if not rule.needed <= row.keys() and not event.has_absent:
        raise SettingsError(
            f"{event.source} has no column {', '.join(sorted(rule.needed - row.keys()))}, which "
            f"the settings of this sink name; it has {', '.join(row)}"
        )


def _filtered(
    change: Change, event: DataEvent, where: RowCondition, may_be_there: bool
) -> Change | None:
    if change.after is None:
        is_wanted = change.before is None or where.holds(event, change.before)
        return change if is_wanted or may_be_there else None
    is_after = where.holds(event, change.after)
    if change.op is not ChangeOp.UPDATE and not may_be_there:
        return change if is_after else None
    if change.before is None:
        # Whether the row was wanted is not known: where it was not, a delete does no harm.
        return change if is_after else replace(change, op=ChangeOp.DELETE, after=None)
    is_before = where.holds(event, change.before)
    if is_after:
        return change if is_before else replace(change, op=ChangeOp.INSERT, before=None)
    return replace(change, op=ChangeOp.DELETE, after=None) if is_before else None


def _touches_nothing(change: Change, rule: TableRule) -> bool:
    """Whether an update has the same values before and after in all columns that are taken."""
    before, after = change.before, change.after
    if change.op is not ChangeOp.UPDATE or before is None or after is None:
        return False
    if rule.columns is None and not rule.without:
        return False
    unknown = object()
    return all(
        before.get(column, unknown) == value for column, value in after.items() if rule.has(column)
    )


def _taken_key(key: Row, event: DataEvent, rule: TableRule) -> Row:
    """Return the key with the columns that are taken; raise SettingsError if they are not all."""
    if not event.has_primary_key:
        return {column: value for column, value in key.items() if rule.has(column)}
    for column in key:
        if not rule.has(column):
            raise SettingsError(
                f"{event.source}: {column} is of the primary key, so it cannot be left out"
            )
        if column in rule.blurred:
            raise SettingsError(
                f"{event.source}: {column} is of the primary key, and its mask would make "
                "different rows equal: use hash"
            )
    return key


def _taken(row: Row | None, rule: TableRule) -> Row | None:
    if row is None:
        return None
    return _masked({name: value for name, value in row.items() if rule.has(name)}, rule)


def _masked(row: Row, rule: TableRule) -> Row:
    if not rule.changes_rows:
        return row
    found: dict[str, Any] = {}
    for name, value in row.items():
        mask = rule.masks.get(name)
        found[rule.names.get(name, name)] = value if mask is None else mask(value)
    return found
