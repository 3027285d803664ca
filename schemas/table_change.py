"""The effect of a DDL statement on the existing rows of a table. Pure.

The log has a row only when it is written. The values of a row *at rest* after an ALTER follow from
the ALTER, so the schema version describes them, for every reader of its text: from the relay's
`/schemas`, from `/register`, from a bootstrap store. The description is a JSON object in the
record's `meta`, member `change`:

    {
      "scn": 4294971648,                  of the statement: rows of lower SCNs are older
      "before": "0cc1…",                  `shape_id` of the version that it altered
      "renamed": {"town": "city"},        column: its name before
      "added": {"vip": 7},                column: the value that every row has in it
      "reload": {"price": "decimal(10,4) → decimal(10,2) may round"},
      "emptied": true                     no row is left from before
    }

A missing member is empty. A column without an entry keeps its values, perhaps in a wider type
(INT → BIGINT, VARCHAR(10) → VARCHAR(20)): each value of the old type is one of the new type. A
column of the earlier version that the later one lacks was dropped. `reload` has the columns whose
values are unknown without the database, and why; under "" a reason for all columns. Those rows
must be read again, as of the SCN or later.

For readers that know only Avro, a renamed field has an alias, and an added one that cannot be null
has a default. These describe one step. Over several steps only the chain of changes is right,
because a name may have been given up and used again: go from version to version, as `Versions`
does.

A first version whose change has `emptied`, and `before` "", is that of a CREATE TABLE: the log has
every row that the table ever had. A version without a change is the first that its relay saw, or
was read from the database: it does not describe rows from before it. The *shape* of a version is
its text without the change: what `avro_schema` makes of the table alone. Two relays that began at
different versions have different texts for equal shapes until the next statement. So a change names
the shape before it, and an SCN, which are the same for both.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from databus.schemas.avro_meta import column_of, field_meta, record_meta, record_meta_text
from databus.schemas.avro_rows import Row, schema_id
from databus.schemas.errors import SchemaError
from databus.schemas.table import UNKNOWN_CHARACTER
from databus.schemas.table_schema import legal_name

WHOLE_TABLE = ""  # in `reload`: all columns
UNSEEN = "it was altered, and the statement was not seen"
UNLOGGED_ROWS = "a statement changed rows, and the log has the statement instead of the rows"

# A question mark, or a character beyond the catalogues' three bytes of UTF-8.
_ANY_HIDDEN = "[?\ufffd\U00010000-\U0010ffff]"
_ESCAPED_UNKNOWN = json.dumps(UNKNOWN_CHARACTER)[1:-1]
_EPOCH = datetime(1970, 1, 1)
_SCALE = re.compile(r"decimal\(\d+,(\d+)\)")
_ALL_DIGITS = Context(prec=100)  # a DECIMAL has up to 65


@dataclass(frozen=True, slots=True)
class TableChange:
    """The effect of one statement on a table's rows; see above. Values are those of `RowCodec`."""

    scn: int
    before: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Any] = field(default_factory=dict)
    reload: Mapping[str, str] = field(default_factory=dict)
    is_emptied: bool = False

    @property
    def why_reload(self) -> str:
        """The reason why rows must be read again, in one line; empty without one."""
        if self.is_emptied:
            return ""
        return "; ".join(f"{name}: {why}" if name else why for name, why in self.reload.items())

    @classmethod
    def unknown(cls, scn: int, before: str, why: str = UNSEEN) -> TableChange:
        """Return an unknown change, after which all rows must be read again."""
        return cls(scn, before, reload={WHOLE_TABLE: why})


class Kind(StrEnum):
    """The effect on one column's values in rows at rest."""

    SAME = "same"
    RENAMED = "renamed"  # perhaps widened, too: compare the types
    WIDENED = "widened"
    ADDED = "added"
    DROPPED = "dropped"
    RELOAD = "reload"  # must be read again


class Fate(NamedTuple):
    """The effect on one column: `column` is its current or last name.

    `was` is its name before, None for a new column; the types are SQL types, "" = none.
    """

    column: str
    kind: Kind
    was: str | None
    type_before: str
    type_now: str
    value: Any = None  # of ADDED: of every row at rest
    why: str = ""  # of RELOAD


@dataclass(frozen=True, slots=True)
class Step:
    """The change from one version to the next: columns in the new order, then dropped ones."""

    scn: int
    before: str  # the schemas' texts
    after: str
    fates: tuple[Fate, ...]
    why_reload: str = ""
    is_emptied: bool = False

    @property
    def needs_reload(self) -> bool:
        """Whether rows at rest must be read again, because their values are unknown."""
        return bool(self.why_reload)

    def row(self, row: Row, *, has_durations: bool = True) -> dict[str, Any]:
        """Convert a row at rest from the earlier version to the later one.

        Columns that the row lacks, because they were not logged, stay absent. A new TIME is a
        timedelta, as in the rows of a client, or else a number of microseconds. Raises SchemaError
        if rows must be read again.
        """
        if self.why_reload:
            raise SchemaError(f"the rows must be read again: {self.why_reload}")
        now = {}
        for fate in self.fates:
            if fate.kind is Kind.ADDED:
                now[fate.column] = _duration(fate) if has_durations else fate.value
            elif fate.kind is not Kind.DROPPED and fate.was is not None and fate.was in row:
                now[fate.column] = _widened(row[fate.was], fate)
        return now


def change_of(text: str) -> TableChange | None:
    """Return the change in a version's text; None without one.

    Raises SchemaError for a text that is not a schema.
    """
    return _parse(text).change


def change_scn(text: str) -> int:
    """Return the SCN of the statement that made a version; -1 if the text does not have it."""
    try:
        change = change_of(text)
    except SchemaError:
        return -1
    return -1 if change is None else change.scn


def changes_nothing(change: TableChange) -> bool:
    """Return whether all values are unchanged, under the same column names."""
    return not (change.renamed or change.added or change.reload or change.is_emptied)


def shape(text: str) -> str:
    """Return a version's text without the change."""
    return _parse(text).shape


def describes(text: str, shown: str) -> bool:
    """Return whether a version's shape is that of `shown`, the table as its database shows it.

    U+FFFD in what is shown stands for a character that the database could not show.
    """
    known, shown = shape(text), shape(shown)
    if known == shown or _ESCAPED_UNKNOWN not in shown:
        return known == shown
    pattern = _ANY_HIDDEN.join(map(re.escape, _unescaped(shown).split(UNKNOWN_CHARACTER)))
    return re.fullmatch(pattern, _unescaped(known)) is not None


def _unescaped(text: str) -> str:
    return json.dumps(json.loads(text), ensure_ascii=False)


def shape_id(text: str) -> str:
    """Return the id of a text's shape, in hexadecimal digits: `TableChange.before`."""
    return _parse(text).shape_id


def with_change(text: str, change: TableChange) -> str:
    """Return the schema text with a change, given any version of the same shape."""
    record = json.loads(shape(text))
    fields = {column_of(f): f for f in record["fields"]}
    for name, was in change.renamed.items():
        fields[name]["aliases"] = [legal_name(was)]
    for name, value in change.added.items():
        avro_type = fields[name]["type"]
        if not isinstance(avro_type, list):
            fields[name]["default"] = _avro_default(value, avro_type)
    entry: dict[str, Any] = {"scn": change.scn, "before": change.before}
    if change.renamed:
        entry["renamed"] = dict(change.renamed)
    if change.added:
        entry["added"] = {name: _plain(value) for name, value in change.added.items()}
    if change.reload:
        entry["reload"] = dict(change.reload)
    if change.is_emptied:
        entry["emptied"] = True
    change_text = json.dumps(entry, ensure_ascii=False, separators=(",", ":"))
    record["meta"] = record_meta_text({**record_meta(record), "change": change_text})
    return json.dumps(record, separators=(",", ":"))


@lru_cache(maxsize=4096)
def step(before: str, after: str) -> Step:
    """Return the step from one version to the next, given their texts.

    Raises SchemaError for a text that is not a schema.
    """
    old, new = _parse(before), _parse(after)
    change = new.change
    if old.shape == new.shape and (change is None or change.before != old.shape_id):
        # The same table, seen by another relay or by the seeder.
        change = TableChange(-1, old.shape_id)
    elif change is None or change.before != old.shape_id:
        change = TableChange.unknown(-1 if change is None else change.scn, old.shape_id)
    fates = tuple(_fates(old, new, change))
    return Step(change.scn, before, after, fates, change.why_reload, change.is_emptied)


class Versions:
    """The versions of one source's schema in the order of their SCNs, given all their texts.

    Texts may come from several relays. Raises SchemaError for a text that is not a schema.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        listed = list(dict.fromkeys(texts))
        changed: dict[int, str] = {}
        for text in listed:
            change = change_of(text)
            if change is not None and _is_better(change, changed.get(change.scn)):
                changed[change.scn] = text
        first = min(changed, default=-1)
        roots = [text for text in listed if change_of(text) is None]
        wanted = None if first < 0 else _parse(changed[first]).change
        fitting = [t for t in roots if wanted is None or shape_id(t) == wanted.before]
        # Without any change the newest text is the current version.
        self._roots = (fitting or roots)[-1:] if wanted is None else (fitting or roots)[:1]
        self._changed = sorted(changed.items())

    def at(self, scn: int) -> str | None:
        """Return the version in force at an SCN; None if no version is known."""
        if place := self.place(scn):
            return self._changed[place - 1][1]
        if self._roots:
            return self._roots[0]
        return self._changed[0][1] if self._changed else None

    def place(self, scn: int) -> int:
        """Return the number of changes up to an SCN."""
        return bisect_right(self._changed, scn, key=itemgetter(0))

    def since(self, text: str, scn: int, until_scn: int) -> list[Step]:
        """Return the steps from a row's version to that in force at `until_scn`, in order.

        The row was written with `text` at `scn`. Empty if the row has the current form.
        """
        steps = []
        for at, after in self._changed:
            if scn < at <= until_scn:
                found = step(text, after)
                if found.scn == at:
                    steps.append(found)
                    text = after
        last = self.at(until_scn)
        if last is not None and change_of(last) is not None and shape(last) != shape(text):
            steps.append(step(text, last))
        return steps

    def reload_until(self, scn: int) -> tuple[int, str]:
        """Return SCN and reason of the last reload that is necessary up to an SCN; -1 = none."""
        found, text = (-1, ""), self.at(-1)
        for at, after in self._changed:
            if at > scn or text is None:
                break
            last = step(text, after)
            if last.scn == at or text == after:
                text = after
            if last.scn == at and last.needs_reload:
                found = at, last.why_reload
        return found

    def changed_until(self, scn: int) -> int:
        """Return the SCN of the last change up to an SCN; -1 without one."""
        place = self.place(scn)
        return self._changed[place - 1][0] if place else -1


def renewed(row: Row, steps: Sequence[Step]) -> dict[str, Any]:
    """Convert a row at rest by several steps; raises SchemaError as `Step.row` does."""
    now = dict(row)
    for one in steps:
        now = one.row(now, has_durations=False)
    return now


def _is_better(change: TableChange, known: str | None) -> bool:
    """Return whether a change is better known: another relay may have understood the statement."""
    if known is None:
        return True
    other = change_of(known)
    return other is not None and bool(other.why_reload) and not change.why_reload


class _Version(NamedTuple):
    shape: str
    shape_id: str
    columns: Mapping[str, tuple[str, Any]]  # name: SQL type, Avro type
    change: TableChange | None


@lru_cache(maxsize=4096)
def _parse(text: str) -> _Version:
    try:
        record = json.loads(text)
        fields = [dict(one) for one in record["fields"]]
        columns = {column_of(one): (_sql_type(one), one["type"]) for one in fields}
        meta = record_meta(record)
        entry = meta.get("change")
        change = None if entry is None else _read_change(_as_object(entry), columns)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise SchemaError(f"not the schema of a table: {error!r}") from error
    if entry is None:
        return _Version(text, schema_id(text).hex(), columns, None)
    for one in fields:
        one.pop("aliases", None)
        if not isinstance(one["type"], list):
            one.pop("default", None)
    kept = record_meta_text({name: value for name, value in meta.items() if name != "change"})
    bare = json.dumps({**record, "fields": fields, "meta": kept}, separators=(",", ":"))
    return _Version(bare, schema_id(bare).hex(), columns, change)


def _as_object(entry: Any) -> Any:
    return json.loads(entry) if isinstance(entry, str) else entry


def _read_change(entry: Mapping[str, Any], columns: Mapping[str, tuple[str, Any]]) -> TableChange:
    added = {
        name: _value(plain, columns[name][1]) for name, plain in entry.get("added", {}).items()
    }
    return TableChange(
        int(entry["scn"]),
        str(entry["before"]),
        dict(entry.get("renamed", {})),
        added,
        dict(entry.get("reload", {})),
        bool(entry.get("emptied")),
    )


def _fates(old: _Version, new: _Version, change: TableChange) -> Iterable[Fate]:
    used = set()
    for column, (type_now, avro_now) in new.columns.items():
        was = change.renamed.get(column, column)
        is_new = column in change.added or was not in old.columns or was in used
        why = change.reload.get(column) or change.reload.get(WHOLE_TABLE, "")
        if column not in change.renamed and column in change.renamed.values():
            is_new = True  # the name was given to another column
        type_before, avro_before = ("", None) if is_new else old.columns[was]
        if not is_new:
            used.add(was)
        known_as = None if is_new else was
        if why:
            yield Fate(column, Kind.RELOAD, known_as, type_before, type_now, why=why)
        elif is_new:
            value = change.added.get(column)
            yield Fate(column, Kind.ADDED, None, "", type_now, value)
        else:
            is_wider = type_before != type_now or avro_before != avro_now
            kind = Kind.RENAMED if was != column else Kind.WIDENED if is_wider else Kind.SAME
            yield Fate(column, kind, was, type_before, type_now)
    for column, (type_before, _) in old.columns.items():
        if column not in used:
            yield Fate(column, Kind.DROPPED, column, type_before, "")


def _duration(fate: Fate) -> Any:
    """Return the value of a new column; an SQL TIME as a timedelta."""
    is_time = fate.type_now.startswith("time") and not fate.type_now.startswith("timestamp")
    return timedelta(microseconds=fate.value) if is_time and fate.value is not None else fate.value


def _widened(value: Any, fate: Fate) -> Any:
    """Convert a value to the wider type: a DECIMAL gets the new number of fraction digits.

    So its text, too, equals that of a value that is read now.
    """
    if fate.type_now == fate.type_before or type(value) not in (int, Decimal):
        return value
    if found := _SCALE.match(fate.type_now):
        return Decimal(value).quantize(Decimal((0, (1,), -int(found[1]))), context=_ALL_DIGITS)
    is_large = fate.type_now.startswith("bigint") and "unsigned" in fate.type_now
    return Decimal(value) if is_large else value


def _sql_type(one: Mapping[str, Any]) -> str:
    return str(field_meta(one).get("sqlType", ""))


def _kind(avro_type: Any) -> str:
    branches = avro_type if isinstance(avro_type, list) else [avro_type]
    branch = next((b for b in branches if b != "null"), "null")
    if isinstance(branch, dict):
        return str(branch.get("logicalType") or branch["type"])
    return str(branch)


def _plain(value: Any) -> Any:
    """Return a value in its JSON form."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    return value


def _value(plain: Any, avro_type: Any) -> Any:
    """Return the value of a JSON form that `_plain` made."""
    if plain is None:
        return None
    kind = _kind(avro_type)
    if kind == "decimal":
        return Decimal(plain)
    if kind == "bytes":
        return bytes.fromhex(plain)
    if kind == "date":
        return date.fromisoformat(plain)
    if kind.endswith("timestamp-micros"):
        return datetime.fromisoformat(plain)
    return plain


def _avro_default(value: Any, avro_type: Any) -> Any:
    """Return a default in Avro's JSON form: bytes are characters up to 255."""
    if isinstance(value, Decimal):
        number = int(value.scaleb(avro_type["scale"]))
        value = number.to_bytes(max(1, (number.bit_length() + 8) // 8), "big", signed=True)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    return value
