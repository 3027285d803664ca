"""Follow the schema changes of a source: first reshape the table, then convert the rows.

Before a batch is applied, the table gets the columns of the schema version that
is in force where the batch ends. That is one commit, which records the SCN under
the app id `shape:<source>`. Then rows of the batch that older versions wrote are
converted to that version. After a crash in between, the batch comes again and
finds the table already reshaped. A target that is ahead of a batch keeps its
columns. Only rows tell which version is in force at their SCN: a batch that ends
with a TRUNCATE, or an empty snapshot, may be past an ALTER that the query does
not know of.

A change that cannot be followed without the database raises ReloadNeededError;
`sync` catches it and reads the rows again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.client.spark.targets.changes import META, no_keys
from databus.client.spark.targets.commit_log import COLUMNS, RELOAD, SHAPE, CommitLog
from databus.client.spark.targets.reshaping import constant, find, reshaping
from databus.client.spark.targets.target import Target
from databus.client.sql.modes import WriteMode
from databus.schemas.avro_meta import column_of, record_meta
from databus.schemas.errors import (
    IncompatibleSchemaError,
    ReadAgainError,
    ReloadNeededError,
    RestartNeededError,
    SchemaError,
)
from databus.schemas.scn import MAX_SCN
from databus.schemas.table_change import Kind, Step, Versions, change_of

log = logging.getLogger(__name__)

# Schema texts by version number.
Texts = Mapping[int, str]


class _Same(NamedTuple):
    """One value in all rows; it gets a type once the column's final name is known."""

    value: Any


_Column: TypeAlias = Any  # an Arrow column, or `_Same`


class SchemaFollower:
    """The schema versions of one source, and a batch of its changes."""

    def __init__(self, source: str, texts: Texts, batch: pa.Table) -> None:
        self._source = source
        self._texts = texts
        self._versions = Versions(texts[number] for number in sorted(texts))
        changes = [change for text in texts.values() if (change := change_of(text)) is not None]
        self._scns = np.array(sorted({change.scn for change in changes}), dtype=np.int64)
        self._batch = batch
        # Marks do not count: they have no schema version.
        self._newest = self._newest_of(batch)
        self._led_to = 0
        # The columns of the table, if the batch has only marks: these have no values to fit.
        self._fitted: pa.Schema | None = None
        # Whether rows from before a statement that empties the table count.
        self._keeps_all = False

    def lead(self, target: Target, keys: Sequence[str] | None) -> tuple[pa.Table, tuple[str, ...]]:
        """Reshape the target for the batch; return the batch's rows for it, and the table's key.

        `keys`: the columns that make a row unique; the default is the target's or the
        schema's key. Raises RestartNeededError for a version that is not known yet,
        ReloadNeededError, and errors of the target.
        """
        self._check_known()
        self._keeps_all = target.mode is not WriteMode.MIRROR
        held, known = target.schema(), noted_scn(target, self._source)
        # Without a note the table has the columns of its position.
        noted = target.positions().get(self._physical()) if known is None else known
        until = self._until(noted)
        steps = [] if held is None or noted is None else self._steps(noted, until)
        for step in steps:
            # Before anything is changed: the table stays as it is until its rows are read again.
            if _why_reload(step, target, is_given=bool(keys)):
                raise reload_needed(self._source, target, step)
        if noted is None:
            self._check_first(target, until)
        self._led_to = until
        self._fitted = held if self._newest is None else None
        rows = self.converted(self._batch)
        if self._keeps_all:
            rows = self._with_truncates(rows, steps)
        old_key = tuple(keys or target.keys) or self._key(until, is_needed=target.mode.has_keys)
        if noted is None:
            # A new table, or one that was created elsewhere: assume the current version.
            self._note(target, rows, old_key, until)
            return rows, old_key
        assert held is not None
        wanted = pa.schema([field for field in rows.schema if field.name != META])
        plan = reshaping(held, old_key, steps, wanted)
        is_news = bool(steps) or known is None
        if plan is None:
            if is_news:
                self._note(target, rows, old_key, until)
            return rows, old_key
        log.info(
            "%s: the table %s follows the schema of scn %d: %s",
            self._source, target.uri, until, plan.in_words(held),
        )  # fmt: skip
        target.reshape(plan, shape_note(self._source) if is_news else None, until)
        return rows, plan.keys

    def _check_first(self, target: Target, until: int) -> None:
        """Raise ReloadNeededError if the first rows of a table changed since as nobody can tell.

        They may have been at rest in the source when it was altered, before the end of this batch.
        """
        for part, steps in self._parts(self._batch, until):
            for step in steps if part.num_rows else ():
                if step.needs_reload:
                    raise reload_needed(self._source, target, step)

    def _check_known(self) -> None:
        """Raise RestartNeededError for rows of a version that is newer than the query."""
        numbers = pc.unique(pc.struct_field(self._batch[META], "schema_version")).to_pylist()
        strange = [n for n in numbers if n is not None and n not in self._texts]
        if strange:
            raise RestartNeededError(
                f"{self._source}: schema version {min(strange)} came after the query was started: "
                "restart the query to take it in"
            )

    def _physical(self) -> str:
        return str(pc.struct_field(self._batch[META], "physical_source")[0].as_py())

    def _newest_of(self, batch: pa.Table) -> int | None:
        """Return the newest SCN that rows are of, or as of, or that their version came with."""
        meta = batch[META]
        rows = batch.filter(pc.is_valid(pc.struct_field(meta, "schema_version")))[META]
        scns = [pc.max(pc.struct_field(rows, name)).as_py() for name in ("scn", "as_of")]
        # A snapshot has rows as of its begin in the version of now, which may be a later one.
        numbers = pc.unique(pc.struct_field(rows, "schema_version")).to_pylist()
        changes = [change_of(self._texts[n]) for n in numbers if n in self._texts]
        scns += [change.scn for change in changes if change is not None]
        return max((scn for scn in scns if scn is not None), default=None)

    def _until(self, noted: int | None) -> int:
        """Return the SCN to whose version the batch's rows are converted."""
        if self._newest is not None:
            return max(self._newest, -1 if noted is None else noted)
        if noted is not None:
            return noted
        return int(self._scns[-1]) if len(self._scns) else 0

    def _note(self, target: Target, rows: pa.Table, keys: Sequence[str], scn: int) -> None:
        nothing = target.changes_of(rows.slice(0, 0), keys)
        widen(target, rows, keys)
        # As it is: the batch's rows come in a commit of their own.
        positions = {self._physical(): target.positions().get(self._physical(), 0)}
        target.apply(shape_note(self._source), scn, replace(nothing, positions=positions))

    def _steps(self, after: int, until: int) -> list[Step]:
        text = self._versions.at(after)
        return [] if text is None else self._versions.since(text, after, until)

    def _key(self, until: int, *, is_needed: bool) -> tuple[str, ...]:
        text = self._versions.at(until)
        found = () if text is None else key_in(text)
        if not found and is_needed:
            raise no_keys()
        return found

    def converted(self, batch: pa.Table) -> pa.Table:
        """Return rows of a batch, converted to the version that `lead` has taken the table to.

        They may be any part of the batch, or of one with the same columns. Raises ReadAgainError
        for rows of a later version: the part was read again since.
        """
        until = self._led_to
        if self._fitted is not None:
            batch = _with_types_of(self._fitted, batch)
        names = self._columns(until)
        # Of the schema, even without a row.
        parts = [_in_version(batch.slice(0, 0), [], names, batch.schema)]
        for part, steps in self._parts(batch, until):
            parts.append(_in_version(part, steps, names, batch.schema))
        return pa.concat_tables(parts)

    def _parts(self, batch: pa.Table, until: int) -> Iterator[tuple[pa.Table, list[Step]]]:
        """Yield the rows of each version between two changes of the table, and the steps since.

        Without the rows that such a step has emptied the table of, unless they count.
        """
        meta = batch[META]
        numbers = pc.fill_null(pc.struct_field(meta, "schema_version"), -1)
        scns = pc.struct_field(meta, "scn")
        changes = np.searchsorted(self._scns, np.asarray(scns), side="right")
        groups = np.asarray(numbers, dtype=np.int64) * (len(self._scns) + 1) + changes
        for group in np.unique(groups).tolist():
            part = batch.filter(pa.array(groups == group))
            steps = self._steps_of(part, until)
            is_emptied = any(step.is_emptied for step in steps)
            yield part.slice(0, 0) if is_emptied and not self._keeps_all else part, steps

    def _with_truncates(self, rows: pa.Table, steps: Sequence[Step]) -> pa.Table:
        """Return rows with a truncate for each statement since them that emptied the table."""
        meta = pc.struct_field(self._batch[META], "scn")
        oldest = pc.min(meta).as_py()
        text = None if oldest is None else self._versions.at(oldest)
        more = [] if text is None else self._versions.since(text, oldest, self._led_to)
        scns = {step.scn for step in [*steps, *more] if step.is_emptied}
        if not scns:
            return rows
        told = {"op": "truncate", "source": self._source, "physical_source": self._physical()}
        # Rows of the same window follow it.
        marks = [{META: {**told, "scn": scn, "as_of": scn, "index": -1}} for scn in sorted(scns)]
        return pa.concat_tables([rows, pa.Table.from_pylist(marks, schema=rows.schema)])

    def _steps_of(self, part: pa.Table, until: int) -> list[Step]:
        first = part[META][0].as_py()
        text = self._texts.get(first["schema_version"])
        if text is None:
            return []
        # A snapshot row may be in a version that is newer than the row's SCN.
        change = change_of(text)
        if change is not None and change.scn > until:
            raise ReadAgainError(
                f"{self._source}: the batch was read again in part, after an executor was lost: it "
                f"has rows of schema version {first['schema_version']} now, of scn {change.scn}, "
                f"and the table was prepared for those up to scn {until}"
            )
        scn = first["scn"] if change is None else max(first["scn"], change.scn)
        return self._versions.since(text, scn, until)

    def _columns(self, until: int) -> dict[str, str]:
        """Return the batch's columns that the version in force has, and its spelling of them.

        A batch spells a column as the newest version that is known does.
        """
        text = self._versions.at(until)
        known = {name: name for name in self._batch.column_names if name != META}
        if text is None:
            return known
        found = ((find(known, name), name) for name in columns_in(text))
        return {name: spelling for name, spelling in found if name is not None}


def shape_note(source: str) -> str:
    """Return the app id under which the SCN of a table's columns is recorded."""
    return f"{SHAPE}{source}"


def noted_scn(target: Target, source: str) -> int | None:
    """Return the SCN whose version the table has; None if that is not recorded."""
    return _noted_in(target.commit_log(), source)


def _noted_in(commit_log: CommitLog, source: str) -> int | None:
    notes = (shape_note(source), f"{RELOAD}{source}")
    found = [scn for scn in map(commit_log.applied, notes) if scn is not None]
    return max(found, default=None)


def check_reload(
    target: Target, source: str, texts: Iterable[str], physical: Collection[str]
) -> None:
    """Raise ReloadNeededError if a version tells that the target's rows must be read again.

    Changes tell it too, but there may be none after the statement that made the version.
    """
    noted = noted_scn(target, source)
    if noted is None:
        noted = max((target.positions().get(name, 0) for name in physical), default=0)
    if not noted:
        return  # nothing is in it yet, or a load is not finished
    versions = Versions(texts)
    text = versions.at(noted)
    for step in [] if text is None else versions.since(text, noted, MAX_SCN):
        if _why_reload(step, target):
            raise reload_needed(source, target, step)


def lead_idle(
    target: Target, source: str, texts: Iterable[str], nothing: pa.Table, physical: str, scn: int
) -> None:
    """Give a table the columns that its source has at `scn`, up to which it has all changes.

    So it does not wait for the next row, which may come late. `nothing`: no rows, in the
    source's columns of then. What only rows tell is left to them: rows that must be read again,
    and statements that emptied the table.
    """
    commit_log = target.commit_log()
    noted, position = _noted_in(commit_log, source), commit_log.positions().get(physical, 0)
    if noted is None or not position or scn < max(noted, position):
        return
    versions = Versions(texts)
    text = versions.at(noted)
    steps = [] if text is None else versions.since(text, noted, scn)
    if any(step.needs_reload or step.is_emptied for step in steps):
        return
    held = target.schema()
    if held is None:
        return
    wanted = pa.schema([field for field in nothing.schema if field.name != META])
    names, keys = held.names, target.keys or (() if text is None else key_in(text))
    plan = reshaping(held, keys, steps, wanted)
    if plan is not None:
        target.reshape(plan, shape_note(source) if steps else None, scn)
        names, keys = plan.schema.names, plan.keys
    is_noted = plan is not None or not steps
    known = dict.fromkeys(names)
    if is_noted and all(find(known, name) is not None for name in wanted.names):
        return
    # What is null in all rows comes with a batch without rows, which may be the note, too.
    changes = target.changes_of(nothing, keys)
    note = f"{COLUMNS}{source}" if is_noted else shape_note(source)
    target.apply(note, scn, replace(changes, positions={physical: position}))


def _why_reload(step: Step, target: Target, *, is_given: bool = False) -> str:
    """Return why rows must be read again after a step; empty if they need not.

    A table that was created anew with another key is emptied by the step, but the target's rows
    have the key of before. `is_given`: the key is not that of the source.
    """
    if step.why_reload or not step.is_emptied or is_given or not target.mode.has_keys:
        return step.why_reload
    before, after = key_in(step.before), key_in(step.after)
    if {name.casefold() for name in before} == {name.casefold() for name in after}:
        return ""
    told = [f"({', '.join(key)})" if key else "none" for key in (before, after)]
    return f"it was created anew with another key: {told[0]} → {told[1]}"


def reload_needed(source: str, target: Target, step: Step) -> SchemaError:
    """Return the error for a schema change after which all rows must be read again.

    It is no ReloadNeededError for a target that keeps what was, which is not to be read again.
    """
    uri, why = target.uri, _why_reload(step, target)
    types = [
        f"column {fate.column}: {fate.type_before or 'nothing'} → {fate.type_now}"
        for fate in step.fates
        if fate.kind is Kind.RELOAD
    ]
    if target.mode is not WriteMode.MIRROR:
        columns = ", ".join(fate.column for fate in step.fates if fate.kind is Kind.RELOAD)
        return IncompatibleSchemaError(
            source,
            columns or "*",
            f"what {uri} holds from before scn {step.scn} cannot be converted "
            f"({'; '.join([*types, why])}), and of a target of mode {target.mode} it "
            "cannot be read again: go on with a new target and a new checkpoint",
        )
    return ReloadNeededError(
        f"{source}: the rows of {uri} from before scn {step.scn} must be read again: "
        f"{'; '.join([*types, why])}. "
        "databus spark sync does it by itself where it has --bootstrap; else: "
        f"databus spark load {source} {uri} --again --bootstrap URL",
        step.scn,
    )


def widen(target: Target, rows: pa.Table, keys: Sequence[str]) -> None:
    """Widen the table's types to those of the changes, when schema versions are not known."""
    held = target.schema()
    if held is None:
        return
    wanted = pa.schema([field for field in rows.schema if field.name != META])
    plan = reshaping(held, target.keys or keys, [], wanted)
    if plan is not None:
        target.reshape(plan, None, 0)


def key_in(text: str) -> tuple[str, ...]:
    """Return the columns of a schema's primary key; () without one."""
    return tuple(record_meta(json.loads(text)).get("key") or ())


def columns_in(text: str) -> list[str]:
    """Return the columns of a schema."""
    return [column_of(field) for field in json.loads(text)["fields"]]


def _with_types_of(held: pa.Schema, marks: pa.Table) -> pa.Table:
    """Return marks, whose columns and images are null, in the types that the table has.

    Their own types are those of versions that the table may not have come to.
    """
    known = dict.fromkeys(held.names)

    def fitted(field: pa.Field) -> pa.Field:
        name = find(known, field.name)
        return field if name is None else field.with_type(held.field(name).type)

    fields = [fitted(field) for field in marks.schema if field.name != META]
    arrays = [pa.nulls(marks.num_rows, field.type) for field in fields]
    meta = marks[META].combine_chunks()
    if (images := _images(meta)) is not None:
        before = [fitted(field) for field in meta.type.field("before").type]
        meta = _with_images(meta, dict.fromkeys(images), _with_before(meta.type, before))
    change = marks.schema.field(META).with_type(meta.type)
    return pa.table([*arrays, meta], schema=pa.schema([*fields, change]))


def _in_version(
    part: pa.Table, steps: Sequence[Step], names: Mapping[str, str], schema: pa.Schema
) -> pa.Table:
    """Return rows of one version, converted by the steps to a newer one.

    `names`: the columns to return, and how they are spelled.
    """
    columns = {name: part[name] for name in part.column_names if name != META}
    meta = part[META].combine_chunks()
    before = _images(meta)
    spelt = dict.fromkeys(schema.names)
    for step in steps:
        columns = _stepped(columns, spelt, step)
        before = None if before is None else _stepped(before, spelt, step)
    rows = part.num_rows
    arrays = [_typed(columns.get(name), schema.field(name).type, rows) for name in names]
    fields = [schema.field(name).with_name(spelling) for name, spelling in names.items()]
    if before is not None:
        meta = _with_images(meta, before, schema.field(META).type)
        meta = _spelled(meta, names)
    change = schema.field(META).with_type(meta.type)
    return pa.table([*arrays, meta], schema=pa.schema([*fields, change]))


def _spelled(meta: pa.StructArray, names: Mapping[str, str]) -> pa.StructArray:
    """Return `_databus` with other spellings of the columns of its before images."""
    images = meta.type.field("before").type
    kind = _with_before(meta.type, [one.with_name(names.get(one.name, one.name)) for one in images])
    return meta if kind == meta.type else meta.cast(kind)


def _with_before(kind: pa.StructType, fields: Sequence[pa.Field]) -> pa.StructType:
    """Return the type of `_databus` with other fields of before images."""
    told = pa.struct(fields)
    return pa.struct([one.with_type(told) if one.name == "before" else one for one in kind])


def _stepped(
    columns: Mapping[str, _Column], spelt: Mapping[str, None], step: Step
) -> dict[str, _Column]:
    found: dict[str, _Column] = {}
    for fate in step.fates:
        name = find(spelt, fate.column) or fate.column
        if fate.kind is Kind.ADDED:
            found[name] = _Same(fate.value)
        elif fate.was is not None and fate.kind is not Kind.DROPPED:
            known = find(columns, fate.was)
            if known is not None:
                found[name] = columns[known]
    return found


def _typed(column: _Column | None, kind: pa.DataType, rows: int) -> pa.ChunkedArray | pa.Array:
    if column is None or isinstance(column, _Same):
        return constant(None if column is None else column.value, kind, rows)
    return column.cast(kind)


def _images(meta: pa.StructArray) -> dict[str, pa.Array] | None:
    if meta.type.get_field_index("before") < 0:
        return None
    before = pc.struct_field(meta, "before")
    return {field.name: pc.struct_field(before, field.name) for field in before.type}


def _with_images(
    meta: pa.StructArray, images: Mapping[str, _Column], kind: pa.StructType
) -> pa.StructArray:
    before = pc.struct_field(meta, "before")
    fields = list(kind.field("before").type)
    arrays = [_typed(images.get(field.name), field.type, len(meta)) for field in fields]
    mask = pc.invert(before.is_valid())
    whole = pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)
    parts = [
        whole if field.name == "before" else pc.struct_field(meta, field.name) for field in kind
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind))
