"""A target follows its source through schema changes: the table first, then the batch's rows.

Before a batch is applied its table is made that of the schema version in force
where the batch ends, in one commit that notes the SCN under the app id
`schema:<source>`; then the rows of the batch that older versions wrote are made
rows of that version. Killed in between, the batch comes again and finds the
table as it should be. A target that is farther than a batch keeps its shape.

What nobody can tell without the database has to be read again: who can do that
catches ReloadNeededError (`sync` does).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.client.spark.targets.changes import META, changes_of, no_keys
from databus.client.spark.targets.reshaping import constant, find, reshaping
from databus.client.spark.targets.target import Target
from databus.schemas.errors import ReloadNeededError, SchemaError
from databus.schemas.table_change import Kind, Step, Versions, change_of

log = logging.getLogger(__name__)

# Schema texts by version number.
Texts = Mapping[int, str]
_NOTE = "schema:"


class Following:
    """One source's versions, and a batch of its changes."""

    def __init__(self, source: str, texts: Texts, batch: pa.Table) -> None:
        self._source = source
        self._texts = texts
        self._versions = Versions(texts[number] for number in sorted(texts))
        changes = [change for text in texts.values() if (change := change_of(text)) is not None]
        self._scns = np.array(sorted({change.scn for change in changes}), dtype=np.int64)
        self._batch = batch
        scns = [pc.max(pc.struct_field(batch[META], name)).as_py() for name in ("scn", "as_of")]
        self._newest = max((scn for scn in scns if scn is not None), default=0)

    def lead(self, target: Target, keys: Sequence[str] | None) -> tuple[pa.Table, tuple[str, ...]]:
        """Make the target's table that of the batch; return the batch's rows for it, and its key.

        `keys`: the columns that make a row unique, where somebody says so. Raises
        SchemaError for a version that is not known yet, ReloadNeededError, and what
        the target raises.
        """
        self._check_known()
        held, noted = target.schema(), self._noted(target)
        until = max(self._newest, -1 if noted is None else noted)
        steps = [] if held is None or noted is None else self._steps(noted, until)
        for step in steps:
            if step.needs_reload:
                raise reload_needed(self._source, target.uri, step)
        rows = self._renewed(until)
        old_key = tuple(keys or target.keys) or self._key(until)
        if noted is None:
            # Of a table that is new, or that somebody else made: it is as the source is now.
            self._note(target, rows, old_key, until)
            return rows, old_key
        assert held is not None
        wanted = pa.schema([field for field in rows.schema if field.name != META])
        plan = reshaping(held, old_key, steps, wanted)
        if plan is None:
            return rows, old_key
        log.info(
            "%s: the table %s follows the schema of scn %d: %s",
            self._source, target.uri, until, plan,
        )  # fmt: skip
        target.reshape(plan, f"{_NOTE}{self._source}" if steps else None, until)
        return rows, plan.keys

    def _check_known(self) -> None:
        """Raise SchemaError for rows of a version that the query was started without."""
        numbers = pc.unique(pc.struct_field(self._batch[META], "schema_version")).to_pylist()
        strange = [n for n in numbers if n is not None and n not in self._texts]
        if strange:
            raise SchemaError(
                f"{self._source}: schema version {min(strange)} came after the query was started: "
                "restart the query to follow it"
            )

    def _physical(self) -> str:
        return str(pc.struct_field(self._batch[META], "physical_source")[0].as_py())

    def _noted(self, target: Target) -> int | None:
        """Return the SCN whose version the table has, None for a table that nobody said it of.

        Whatever is applied up to a position has the shape of that position.
        """
        known = target.applied(f"{_NOTE}{self._source}")
        position = target.positions().get(self._physical())
        return max((scn for scn in (known, position) if scn is not None), default=None)

    def _note(self, target: Target, rows: pa.Table, keys: Sequence[str], scn: int) -> None:
        nothing = changes_of(rows.slice(0, 0), keys)
        widen(target, rows, keys)
        positions = {self._physical(): 0}
        target.apply(f"{_NOTE}{self._source}", scn, replace(nothing, positions=positions))

    def _steps(self, after: int, until: int) -> list[Step]:
        text = self._versions.at(after)
        return [] if text is None else self._versions.since(text, after, until)

    def _key(self, until: int) -> tuple[str, ...]:
        text = self._versions.at(until)
        found = () if text is None else key_in(text)
        if not found:
            raise no_keys()
        return found

    def _renewed(self, until: int) -> pa.Table:
        """Return the batch's rows in the version in force at an SCN."""
        meta = self._batch[META]
        numbers = pc.fill_null(pc.struct_field(meta, "schema_version"), -1)
        scns = pc.struct_field(meta, "scn")
        changes = np.searchsorted(self._scns, np.asarray(scns), side="right")
        groups = np.asarray(numbers, dtype=np.int64) * (len(self._scns) + 1) + changes
        names = self._columns(until)
        parts = []
        for group in np.unique(groups).tolist():
            part = self._batch.filter(pa.array(groups == group))
            steps = self._steps_of(part, until)
            if any(step.is_emptied for step in steps):
                part = part.slice(0, 0)
            parts.append(_in_version(part, steps, names, self._batch.schema))
        return pa.concat_tables(parts)

    def _steps_of(self, part: pa.Table, until: int) -> list[Step]:
        first = part[META][0].as_py()
        text = self._texts.get(first["schema_version"])
        if text is None:
            return []
        # A row of a snapshot may be in a version that is newer than the row.
        change = change_of(text)
        scn = first["scn"] if change is None else max(first["scn"], change.scn)
        return self._versions.since(text, scn, until)

    def _columns(self, until: int) -> list[str]:
        """Name the batch's columns that the version in force has."""
        text = self._versions.at(until)
        known = {name: None for name in self._batch.column_names if name != META}
        if text is None:
            return list(known)
        found = (find(known, name) for name in columns_in(text))
        return [name for name in found if name is not None]


def reload_needed(source: str, uri: str, step: Step) -> ReloadNeededError:
    """Return the error of a change whose rows have to be read again."""
    types = [
        f"column {fate.column}: {fate.type_before or 'nothing'} → {fate.type_now}"
        for fate in step.fates
        if fate.kind is Kind.RELOAD
    ]
    return ReloadNeededError(source, uri, step.scn, "; ".join([*types, step.why_reload]))


def widen(target: Target, rows: pa.Table, keys: Sequence[str]) -> None:
    """Give the table wider types where changes have them; versions are not known."""
    held = target.schema()
    if held is None:
        return
    wanted = pa.schema([field for field in rows.schema if field.name != META])
    plan = reshaping(held, target.keys or keys, [], wanted)
    if plan is not None:
        target.reshape(plan, None, 0)


def key_in(text: str) -> tuple[str, ...]:
    """Name the columns of a schema's primary key; () without one."""
    return tuple((json.loads(text).get("meta") or {}).get("key") or ())


def columns_in(text: str) -> list[str]:
    """Name the columns of a schema."""
    return [
        (field.get("meta") or {}).get("column", field["name"])
        for field in json.loads(text)["fields"]
    ]


def _in_version(
    part: pa.Table, steps: Sequence[Step], names: Sequence[str], schema: pa.Schema
) -> pa.Table:
    """Return rows of one version as the newer one has them."""
    columns = {name: part[name] for name in part.column_names if name != META}
    meta = part[META].combine_chunks()
    before = _images(meta)
    # Of all versions: what a step adds may not be in the version of the one before.
    types = {name: column.type for name, column in columns.items()}
    for step in steps:
        columns = _stepped(columns, types, step, part.num_rows)
        before = None if before is None else _stepped(before, types, step, part.num_rows)
    arrays = [
        columns[name].cast(schema.field(name).type)
        if name in columns
        else pa.nulls(part.num_rows, schema.field(name).type)
        for name in names
    ]
    fields = [schema.field(name) for name in names]
    if before is not None:
        meta = _with_images(meta, before, schema.field(META).type)
    return pa.table([*arrays, meta], schema=pa.schema([*fields, schema.field(META)]))


def _stepped(
    columns: Mapping[str, pa.ChunkedArray | pa.Array],
    types: Mapping[str, pa.DataType],
    step: Step,
    rows: int,
) -> dict[str, pa.ChunkedArray | pa.Array]:
    found = {}
    for fate in step.fates:
        name = find(types, fate.column) or fate.column
        if fate.kind is Kind.ADDED and name in types:
            found[name] = constant(fate.value, types[name], rows)
        elif fate.was is not None and fate.kind is not Kind.DROPPED:
            known = find(columns, fate.was)
            if known is not None:
                found[name] = columns[known]
    return found


def _images(meta: pa.StructArray) -> dict[str, pa.Array] | None:
    if meta.type.get_field_index("before") < 0:
        return None
    before = pc.struct_field(meta, "before")
    return {field.name: pc.struct_field(before, field.name) for field in before.type}


def _with_images(
    meta: pa.StructArray, images: Mapping[str, pa.Array], kind: pa.StructType
) -> pa.StructArray:
    before = pc.struct_field(meta, "before")
    fields = list(kind.field("before").type)
    arrays = [
        images[field.name].cast(field.type)
        if field.name in images
        else pa.nulls(len(meta), field.type)
        for field in fields
    ]
    mask = pc.invert(before.is_valid())
    whole = pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)
    parts = [
        whole if field.name == "before" else pc.struct_field(meta, field.name) for field in kind
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind))
