"""What a change of the source's table does to the target's: a plan, which the switches allow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, NamedTuple, NoReturn

from pydantic import Field

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError
from databus.client.sql.modes import WriteMode
from databus.conf.model import Settings
from databus.schemas.columns.avro_columns import (
    AvroColumn,
    Kind,
    WriterSchema,
    columns_of,
    key_names,
)
from databus.schemas.table_change import TableChange, change_of, shape_id

log = logging.getLogger(__name__)

Switch = Literal["apply", "ignore", "stop"]
Types = Mapping[str, str]  # of a table's columns, as the target writes them, by name


class DdlSettings(Settings):
    """What follows a change of the source's table: `apply` it, `ignore` it, or `stop`."""

    create_table: Switch = Field(
        default="apply", description="A table that is not there; `ignore`: its rows are left out"
    )
    add_column: Switch = Field(
        default="apply", description="A new column; `ignore`: its values are left out"
    )
    widen_column: Switch = Field(
        default="apply", description="A type that has more values, such as INT → BIGINT"
    )
    narrow_column: Literal["ignore", "stop"] = Field(
        default="stop", description="Any other type, also where values at rest have changed"
    )
    rename_column: Switch = Field(
        default="apply", description="`ignore`: an old column stays, and a new one is added"
    )
    drop_column: Switch = Field(
        default="ignore", description="`ignore`: it stays, and is NULL in new rows"
    )
    truncate: Switch = Field(default="apply", description="TRUNCATE, and DROP TABLE")


def may_truncate(change: Change, ddl: DdlSettings) -> bool:
    """Return whether a TRUNCATE is made; raise SinkError if it stops the sink."""
    if ddl.truncate == "stop":
        raise SinkError(
            f'{change.source} was emptied at SCN {change.scn}, and ddl.truncate = "stop": set '
            '"apply" to empty its table, too, or "ignore"'
        )
    return ddl.truncate == "apply"


def may_make(source: str, table: str, ddl: DdlSettings) -> bool:
    """Return whether a table that is not there is made; raise SinkError if it stops the sink."""
    if ddl.create_table == "stop":
        raise SinkError(
            f'there is no table {table} for {source}, and ddl.create_table = "stop": create it, '
            'or set "apply"'
        )
    return ddl.create_table == "apply"


def check_has_key(source: str, columns: Sequence[AvroColumn], mode: WriteMode) -> None:
    """Raise SinkError for a source without a key, if the mode has rows by key."""
    if mode.has_keys and not key_names(columns):
        raise SinkError(
            f"{source} has no primary key, and mode = {mode.value!r} has rows by "
            'key: leave it out, or set mode = "append_history"'
        )


def versions_after(
    noted: WriterSchema, schema: WriterSchema, versions: Callable[[str], Sequence[WriterSchema]]
) -> Sequence[WriterSchema]:
    """Return the versions after the noted one, as far as they are known; the last is `schema`."""
    known = list(versions(schema.source))
    texts = [one.text for one in known]
    if noted.text not in texts or schema.text not in texts:
        return [schema]
    passed = known[texts.index(noted.text) + 1 : texts.index(schema.text)]
    return [*passed, schema]


def renamed_since(noted: WriterSchema) -> Mapping[str, str]:
    """Return the new names of columns that the last change has renamed."""
    change = change_of(noted.text)
    return {} if change is None else {old: new for new, old in change.renamed.items()}


class PlannedColumn(NamedTuple):
    """A column of the altered table: that of the old name `was`, or a new one."""

    name: str
    was: str | None
    value: Any = None  # of a new column, in all rows


@dataclass(slots=True)
class Plan:
    """What becomes of a table."""

    columns: list[PlannedColumn] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)  # columns that the source does not have any more
    filled: list[PlannedColumn] = field(default_factory=list)  # there already, with other values
    same_types: dict[str, str] = field(default_factory=dict)  # name: that of the column whose it is


@dataclass(frozen=True, slots=True)
class Step:
    """From the schema of the rows so far to that of the next ones."""

    source: str
    before: WriterSchema
    after: WriterSchema
    ddl: DdlSettings

    def plan(self, held: Collection[str], old: Types, new: Types) -> Plan:
        """Return what to do; `held` are the columns that the table has. Raises SinkError.

        `old` and `new` are the types for the columns of the two schemas.
        """
        was = {one.name: one for one in columns_of(self.before)}
        now = {one.name: one for one in columns_of(self.after)}
        self._check_keys(was.values(), now.values())
        change = self._change(was, now)
        renamed = self._renamed(change, was, now)
        gone = set(was) - set(now) - set(renamed.values())
        plan = Plan()
        for name, column in now.items():
            origin = renamed.get(name, name)
            is_new = change is not None and name in change.added  # its name may have been given up
            if origin not in was or is_new:
                self._add(plan, column, change, set(held) - set(was))
                continue
            if origin in held or name in held:
                if old[origin] != new[name]:
                    types = f"{name} of {old[origin]} {new[name]}"
                    self._retype(plan, was[origin], column, types, change)
                # After a crash the ALTER may have been made already.
                is_back = change is not None and origin in change.added
                is_made = origin not in held or (is_back and name in held and name not in was)
                plan.columns.append(PlannedColumn(name, name if is_made else origin))
        if gone and self.ddl.drop_column != "apply":
            self._allow(self.ddl.drop_column, f"lost {', '.join(sorted(gone))}", "drop_column")
            plan.kept |= gone
        return plan

    def _change(
        self, was: Mapping[str, AvroColumn], now: Mapping[str, AvroColumn]
    ) -> TableChange | None:
        """Return what the statement did to rows at rest, None if it is not known."""
        change = change_of(self.after.text)
        is_next = change is not None and (
            change.before == shape_id(self.before.text)
            or self.after.version == self.before.version + 1
        )
        if not is_next or change is None:
            if set(was) - set(now) and set(now) - set(was):
                problem = (
                    f"lost {', '.join(sorted(set(was) - set(now)))} and has the new "
                    f"{', '.join(sorted(set(now) - set(was)))}, which may be the same"
                )
                if self.ddl.rename_column == "ignore":
                    self._allow("ignore", problem, "rename_column")
                else:
                    self._stop(problem, "it is not known whether to rename", "rename_column")
            return None
        if change.why_reload and self.ddl.narrow_column == "stop":
            self._allow("stop", f"has changed rows at rest: {change.why_reload}", "narrow_column")
        return change

    def _renamed(
        self,
        change: TableChange | None,
        was: Mapping[str, AvroColumn],
        now: Mapping[str, AvroColumn],
    ) -> dict[str, str]:
        if change is None or self.ddl.rename_column == "ignore":
            return {}
        found = {new: old for new, old in change.renamed.items() if new in now and old in was}
        for new, old in found.items():
            self._allow(self.ddl.rename_column, f"has renamed {old} to {new}", "rename_column")
        return found

    def _add(
        self, plan: Plan, column: AvroColumn, change: TableChange | None, others: Collection[str]
    ) -> None:
        """Plan a new column; `others` are columns of the table that the source did not have."""
        name = column.name
        if self.ddl.add_column != "apply":
            self._allow(self.ddl.add_column, f"has the new column {name}", "add_column")
            return
        value = None if change is None else change.added.get(name)
        if column.kind is Kind.TIME and value is not None:
            value = timedelta(microseconds=value)
        if name in others:
            plan.filled.append(PlannedColumn(name, None, value))
            plan.columns.append(PlannedColumn(name, name))
        else:
            plan.columns.append(PlannedColumn(name, None, value))

    def _retype(
        self, plan: Plan, was: AvroColumn, now: AvroColumn, types: str, change: TableChange | None
    ) -> None:
        """Let the column keep its type if a switch says so; raise SinkError if one stops."""
        is_wider = _is_wider(was, now) or (change is not None and now.name not in change.reload)
        key = "widen_column" if is_wider else "narrow_column"
        switch: Switch = getattr(self.ddl, key)
        self._allow(switch, f"has made {types}", key)
        if switch == "ignore":
            plan.same_types[now.name] = was.name

    def _check_keys(self, was: Collection[AvroColumn], now: Collection[AvroColumn]) -> None:
        if _key_size(was) != _key_size(now):
            raise SinkError(
                f"{self.source} has another primary key since schema version "
                f"{self.after.version}: give its table that key, and delete its row of "
                "databus_tables; or write to another table"
            )

    def _allow(self, switch: Switch, problem: str, key: str) -> None:
        """Raise SinkError if the switch says so."""
        if switch == "stop":
            self._stop(problem, f'ddl.{key} = "stop"', key)
        log.info("%s: ddl.%s = %s", self._text(problem), key, switch)

    def _stop(self, problem: str, why: str, key: str) -> NoReturn:
        raise SinkError(
            f"{self._text(problem)}, and {why}: alter its table as it should be, "
            f'and start once with ddl.{key} = "ignore"'
        )

    def _text(self, problem: str) -> str:
        return f"{self.source} {problem} in schema version {self.after.version}"


def _key_size(columns: Collection[AvroColumn]) -> int:
    """Return how many columns the key has: they may be renamed."""
    return sum(one.key is not None for one in columns)


_ORDER: Sequence[tuple[Kind, Kind]] = (
    (Kind.INT, Kind.LONG),
    (Kind.INT, Kind.DOUBLE),
    (Kind.FLOAT, Kind.DOUBLE),
)
_DECIMALS = (Kind.DECIMAL, Kind.WIDE_DECIMAL)
_DIGITS = {Kind.INT: 10, Kind.LONG: 19}


def _is_wider(was: AvroColumn, now: AvroColumn) -> bool:
    """Return whether every value of the old type is one of the new type."""
    if (was.kind, now.kind) in _ORDER or (was.kind == now.kind and was.kind not in _DECIMALS):
        return True
    if now.kind not in _DECIMALS:
        return False
    whole = _DIGITS.get(was.kind, was.precision - was.scale)
    return whole <= now.precision - now.scale and was.scale <= now.scale
