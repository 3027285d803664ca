"""Applies CREATE TABLE and ALTER TABLE to a table's definition. Pure.

The server does not apply the parts of an ALTER in the order in which they are written:
first columns are dropped, then columns are renamed and retyped where they stand, and then
new and moved columns are put into their positions, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from databus.relay.sources.mysql.rows.charsets import BINARY
from databus.relay.sources.mysql.rows.layout import (
    OWN_PERIOD,
    ROW_ID,
    DefinedColumn,
    Definition,
    current_key,
)
from databus.relay.sources.mysql.tables.column_spec import (
    ColumnSpec,
    Rules,
    defined,
    read_column,
)
from databus.relay.sources.mysql.tables.conversion import converted
from databus.relay.sources.mysql.tables.ddl_tokens import Reader, TableName, Token
from databus.relay.sources.mysql.tables.table_options import option_charset, read_table_options


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table's definition between two DDL statements.

    Without a definition its columns are unknown, and `problem` tells why.
    """

    definition: Definition | None
    charset: str = ""  # of columns that do not name one
    problem: str = ""


@dataclass(slots=True)
class Changes:
    """The parts of a CREATE TABLE or ALTER TABLE statement, as written."""

    columns: list[ColumnSpec] = field(default_factory=list)  # new ones
    changed: dict[str, ColumnSpec] = field(default_factory=dict)  # by old name, lower case
    renamed: dict[str, str] = field(default_factory=dict)
    placed: list[ColumnSpec] = field(default_factory=list)  # new or moved, in this order
    replaced: set[str] = field(default_factory=set)  # new ones that are placed again, lower case
    dropped: set[str] = field(default_factory=set)
    not_null: set[str] = field(default_factory=set)
    key: tuple[str, ...] | None = None
    drops_key: bool = False
    charset: str | None = None  # "" = the database's
    converts: bool = False
    new_name: TableName | None = None
    ignores: bool = False  # ALTER IGNORE: values are adjusted to fit in any SQL mode
    lost: str = ""  # the unlogged effect on rows
    other_tables: list[TableName] = field(default_factory=list)  # other tables that lose their rows
    made_table: TableName | None = None  # from a partition, with the same columns
    cascade: str = ""
    generated: set[str] = field(default_factory=set)  # columns that are generated now
    is_versioned: bool | None = None
    periods: dict[str, tuple[str, str]] = field(default_factory=dict)  # application-time periods
    overlaps: str = ""  # the period of the key's WITHOUT OVERLAPS
    visible: dict[str, bool] = field(default_factory=dict)  # by name, lower case

    @property
    def alters_columns(self) -> bool:
        """Whether the statement may change columns or key of any table."""
        return bool(
            self.columns or self.changed or self.renamed or self.dropped or self.not_null
            or self.key is not None or self.drops_key or self.converts
            or self.is_versioned is not None
        )  # fmt: skip


def read_body(words: Reader, rules: Rules, changes: Changes) -> None:
    """Read the columns and keys in parentheses; raises ValueError."""
    words.expect("(")
    while True:
        if not _read_key(words, changes):
            _add(changes, read_column(words, rules))
        if words.accept(")"):
            return
        words.expect(",")


def _add(changes: Changes, spec: ColumnSpec) -> None:
    changes.columns.append(spec)
    changes.placed.append(spec)
    _note(changes, spec)


def _note(changes: Changes, spec: ColumnSpec) -> None:
    if spec.is_key:
        changes.key = (spec.name,)
    changes.cascade = spec.cascade or changes.cascade
    if spec.is_generated:
        changes.generated.add(spec.name)


_INDEXES = frozenset({"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL"})


def _read_key(words: Reader, changes: Changes) -> bool:
    """Read a key or constraint, if one follows."""
    if words.accept("CONSTRAINT"):
        words.accept("IF", "NOT", "EXISTS")
        if words.peek() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            words.word()
    word = words.peek()
    if word == "PRIMARY":
        words.take()
        words.expect("KEY")
        changes.key = _key_columns(words, changes)
    elif word == "FOREIGN":
        _read_foreign_key(words.rest_of_piece(), changes)
    elif word == "PERIOD" and words.peek(1) == "FOR":
        _read_period(words, changes)
    elif word in _INDEXES or word == "CHECK" or _is_vector_index(words):
        words.rest_of_piece()
    else:
        return False
    return True


def _is_vector_index(words: Reader) -> bool:
    return words.peek() == "VECTOR" and words.peek(1) in ("INDEX", "KEY")


def _key_columns(words: Reader, changes: Changes) -> tuple[str, ...]:
    while words.peek() != "(":  # a name, USING BTREE
        words.take()
    words.expect("(")
    found = []
    while True:
        found.append(words.column())
        if words.peek() == "(":
            words.skip_parentheses()
        if words.accept("WITHOUT", "OVERLAPS"):
            changes.overlaps = found.pop()
        words.accept_any("ASC", "DESC")
        if words.accept(")"):
            words.rest_of_piece()
            return tuple(found)
        words.expect(",")


def _read_foreign_key(rest: Sequence[Token], changes: Changes) -> None:
    upper = [token.upper for token in rest]
    for at, (on, verb, rule) in enumerate(zip(upper, upper[1:], upper[2:], strict=False)):
        if on == "ON" and verb in ("DELETE", "UPDATE") and rule in ("CASCADE", "SET"):
            second = f" {upper[at + 3]}" if rule == "SET" and at + 3 < len(upper) else ""
            changes.cascade = f"{verb} {rule}{second}"


def _read_period(words: Reader, changes: Changes) -> None:
    words.expect("PERIOD", "FOR")
    words.accept("IF", "NOT", "EXISTS")
    name = words.word().lower()
    words.expect("(")
    start = words.column()
    words.expect(",")
    end = words.column()
    words.expect(")")
    changes.not_null |= {start.lower(), end.lower()}
    changes.periods[name] = (start, end)


def read_alter(words: Reader, rules: Rules, before: Definition | None) -> Changes:
    """Read the parts of an ALTER TABLE; raises ValueError for an unknown one."""
    changes = Changes()
    known = {c.name.lower() for c in before.columns} if before else set()
    is_order = False
    while not words.is_at_end:
        if words.accept(","):
            continue
        word = words.peek()
        reader = _PARTS.get(word)
        if reader is not None:
            is_order = False
            words.take()
            reader(words, rules, changes, known)
        elif word in _HARMLESS:
            is_order = word == "ORDER"
            _read_options(words, rules, changes)
        elif is_order:
            words.rest_of_piece()  # another column to order by
        else:
            raise words.error()
    return changes


def _read_options(words: Reader, rules: Rules, changes: Changes) -> None:
    charset = read_table_options(words.rest_of_piece(), rules)
    if charset is not None:
        _set_charset(changes, charset)


def _set_charset(changes: Changes, charset: str) -> None:
    if changes.charset not in (None, charset):
        raise ValueError("two character sets in one statement")
    changes.charset = charset


_HARMLESS = frozenset(
    {"ENGINE", "TYPE", "AUTO_INCREMENT", "COMMENT", "ROW_FORMAT", "ALGORITHM", "LOCK", "FORCE"}
    | {"ENABLE", "DISABLE", "WAIT", "NOWAIT", "STATS_PERSISTENT", "STATS_AUTO_RECALC"}
    | {"STATS_SAMPLE_PAGES", "KEY_BLOCK_SIZE", "REORGANIZE", "COALESCE", "REBUILD", "ANALYZE"}
    | {"OPTIMIZE", "CHECK", "REPAIR", "REMOVE", "PARTITION", "ORDER", "DEFAULT", "CHARACTER"}
    | {"CHARSET", "COLLATE", "AVG_ROW_LENGTH", "CHECKSUM", "COMPRESSION", "CONNECTION", "DATA"}
    | {"DELAY_KEY_WRITE", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "INDEX", "INSERT_METHOD"}
    | {"ENGINE_ATTRIBUTE", "SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_LOAD"}
    | {"MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "UNION"}
    | {"PAGE_CHECKSUM", "PASSWORD", "TABLESPACE", "TABLE_CHECKSUM", "TRANSACTIONAL", "WITH"}
    | {"WITHOUT", "SECONDARY_UNLOAD", "AUTOEXTEND_SIZE", "SEQUENCE", "IETF_QUOTES"}
)


def _part_add(words: Reader, rules: Rules, changes: Changes, known: set[str]) -> None:
    if words.accept("PARTITION"):
        words.rest_of_piece()
        return
    if words.accept("SYSTEM", "VERSIONING"):
        changes.is_versioned = True
        return
    if _read_key(words, changes):
        return
    words.accept("COLUMN")
    is_optional = words.accept("IF", "NOT", "EXISTS")
    if words.peek() == "(":
        inside = Changes()
        read_body(words, rules, inside)
        found = inside.columns
        changes.key = inside.key or changes.key
        changes.cascade = inside.cascade or changes.cascade
        changes.not_null |= inside.not_null
        changes.periods |= inside.periods
    else:
        found = [read_column(words, rules)]
    for spec in found:
        if not (is_optional and spec.name.lower() in known):
            _add(changes, spec)


def _part_drop(words: Reader, _rules: Rules, changes: Changes, known: set[str]) -> None:
    if words.peek() == "PRIMARY" and words.peek(1) == "KEY":
        changes.drops_key = True
    elif words.accept_any("INDEX", "KEY", "CONSTRAINT"):
        words.accept("IF", "EXISTS")
        changes.drops_key |= words.word().upper() == "PRIMARY"
    elif words.peek() == "PARTITION":
        changes.lost = "ALTER TABLE … DROP PARTITION"
    elif words.accept("SYSTEM", "VERSIONING"):
        changes.is_versioned = False
    elif words.peek() not in ("FOREIGN", "CHECK") and words.peek(1) != "FOR":
        words.accept("COLUMN")
        is_optional = words.accept("IF", "EXISTS")
        name = words.column().lower()
        if name in known or not is_optional:
            changes.dropped.add(name)
    words.rest_of_piece()


def _part_modify(words: Reader, rules: Rules, changes: Changes, known: set[str]) -> None:
    words.accept("COLUMN")
    is_optional = words.accept("IF", "EXISTS")
    spec = read_column(words, rules)
    _change(changes, spec.name, spec, known, is_optional=is_optional)


def _part_change(words: Reader, rules: Rules, changes: Changes, known: set[str]) -> None:
    words.accept("COLUMN")
    is_optional = words.accept("IF", "EXISTS")
    old = words.column()
    _change(changes, old, read_column(words, rules), known, is_optional=is_optional)


def _change(
    changes: Changes, old: str, spec: ColumnSpec, known: set[str], *, is_optional: bool
) -> None:
    if is_optional and old.lower() not in known:
        return
    name = spec.name.lower()
    if added := [one for one in changes.columns if one.name.lower() == name]:
        # To MariaDB this says what the new column is, which is taken out of its place.
        changes.columns.remove(added[0])
        changes.generated.discard(added[0].name)
        changes.replaced.add(name)
        _add(changes, spec)
        return
    changes.changed[old.lower()] = spec
    if spec.place is not None:
        changes.placed.append(spec)
    _note(changes, spec)


def _part_rename(words: Reader, _rules: Rules, changes: Changes, known: set[str]) -> None:
    if words.accept_any("INDEX", "KEY"):
        words.rest_of_piece()
    elif words.accept("COLUMN"):
        is_optional = words.accept("IF", "EXISTS")
        old = words.column()
        words.expect("TO")
        new = words.column()
        if old.lower() in known or not is_optional:
            changes.renamed[old.lower()] = new
    else:
        words.accept_any("TO", "AS", "=")
        changes.new_name = words.table()


def _part_alter(words: Reader, _rules: Rules, changes: Changes, _known: set[str]) -> None:
    if not words.accept_any("INDEX", "CHECK", "CONSTRAINT"):
        words.accept("COLUMN")
        words.accept("IF", "EXISTS")
        name = words.column().lower()
        if words.accept("SET") and words.peek() in ("VISIBLE", "INVISIBLE"):
            changes.visible[name] = words.peek() == "VISIBLE"
    words.rest_of_piece()


def _part_convert(words: Reader, rules: Rules, changes: Changes, _known: set[str]) -> None:
    if words.peek() == "PARTITION":
        changes.lost = "ALTER TABLE … CONVERT PARTITION"
        rest = words.rest_of_piece()
        at = [token.upper for token in rest].index("TABLE")
        changes.made_table = Reader(rest[at + 1 :], words.database).table()
        changes.other_tables.append(changes.made_table)
    elif words.accept("TABLE"):
        changes.lost = "ALTER TABLE … CONVERT TABLE"
        changes.other_tables.append(words.table())
        words.rest_of_piece()
    else:
        words.expect("TO")
        if not words.accept("CHARSET"):
            words.accept_any("CHARACTER", "CHAR")
            words.expect("SET")
        _set_charset(changes, option_charset(words, rules))
        changes.converts = True
        words.rest_of_piece()


def _part_lost(verb: str, words: Reader, _rules: Rules, changes: Changes, _known: set[str]) -> None:
    rest = words.rest_of_piece()
    shown = " ".join([verb, *(token.text for token in rest)])
    changes.lost = f"ALTER TABLE … {shown[:40]}"
    upper = [token.upper for token in rest]
    if "WITH" in upper and "TABLE" in upper:
        at = upper.index("TABLE")
        changes.other_tables.append(Reader(rest[at + 1 :], words.database).table())


_PARTS: Mapping[str, Callable[[Reader, Rules, Changes, set[str]], None]] = {
    "ADD": _part_add,
    "DROP": _part_drop,
    "MODIFY": _part_modify,
    "CHANGE": _part_change,
    "RENAME": _part_rename,
    "ALTER": _part_alter,
    "CONVERT": _part_convert,
    **{verb: partial(_part_lost, verb) for verb in ("TRUNCATE", "EXCHANGE", "DISCARD", "IMPORT")},
}


def created(changes: Changes, charset: str, rules: Rules) -> TableVersion:
    """Return the table that a CREATE TABLE creates; raises ValueError."""
    columns = [defined(spec, charset, rules) for spec in changes.columns]
    period = _period(changes, None)
    key = _without_overlaps(changes.key or (), changes)
    definition = _with_key(columns, key, changes.not_null, period)
    return TableVersion(_with_row_id(definition, changes, rules, was_hidden=False), charset)


def _without_overlaps(key: tuple[str, ...], changes: Changes) -> tuple[str, ...]:
    """Return a key with the columns of its WITHOUT OVERLAPS period."""
    if not changes.overlaps:
        return key
    found = changes.periods.get(changes.overlaps.lower())
    if found is None:
        raise ValueError(f"the columns of period {changes.overlaps!r} are not known")
    return (*key, found[1], found[0])


def _with_row_id(
    definition: Definition, changes: Changes, rules: Rules, *, was_hidden: bool
) -> Definition:
    """Set whether the table has an invisible `my_row_id`, which MySQL keeps first."""
    if rules.dialect.is_mariadb or ROW_ID not in {column.name for column in definition.columns}:
        return definition
    specs = {spec.name: spec for spec in (*changes.columns, *changes.changed.values())}
    is_hidden = specs[ROW_ID].is_invisible if ROW_ID in specs else was_hidden
    return replace(definition, hides_row_id=not changes.visible.get(ROW_ID, not is_hidden))


def _period(changes: Changes, before: tuple[str, str] | None) -> tuple[str, str] | None:
    if changes.is_versioned is None:
        return before
    if not changes.is_versioned:
        return None
    ends = {spec.period: spec.name for spec in changes.columns if spec.period}
    return (ends["START"], ends["END"]) if len(ends) == 2 else OWN_PERIOD


def altered(
    before: TableVersion, changes: Changes, database_charset: str, rules: Rules
) -> TableVersion:
    """Return the table after an ALTER; raises ValueError when the ALTER does not fit it."""
    definition = before.definition
    charset = before.charset if changes.charset is None else changes.charset or database_charset
    if definition is None:
        return replace(before, charset=charset)
    convert = charset if changes.converts else None
    known = {column.name.lower() for column in definition.columns}
    missing = (changes.dropped | set(changes.changed) | set(changes.renamed)) - known
    if missing:
        raise ValueError(f"there is no column {sorted(missing)[0]!r} in the definition")
    columns = []
    for column in definition.columns:
        name = column.name.lower()
        spec = changes.changed.get(name)
        if name in changes.dropped:
            continue
        if spec is not None:
            if convert and spec.kind.endswith(("text", "blob")):
                raise ValueError(f"which size column {spec.name!r} has now is not known")
            columns.append(_made(spec, charset, convert, rules))
        else:
            kept = converted(column, convert, rules) if convert else column
            columns.append(replace(kept, name=changes.renamed.get(name, column.name)))
    moved = {spec.name.lower() for spec in changes.changed.values()} | changes.replaced
    for spec in changes.placed:
        name = spec.name.lower()
        if name in moved:
            columns = [column for column in columns if column.name.lower() != name]
        columns.insert(_place(columns, spec), _made(spec, charset, convert, rules))
    if definition.keeps_row_id_first:
        columns.sort(key=lambda column: column.name != ROW_ID)
    period = _period(changes, definition.period)
    key = _without_overlaps(_key(definition, changes), changes)
    after = _with_key(columns, key, changes.not_null, period)
    after = _with_row_id(after, changes, rules, was_hidden=definition.hides_row_id)
    return TableVersion(after, charset)


def _made(spec: ColumnSpec, charset: str, convert: str | None, rules: Rules) -> DefinedColumn:
    if convert and spec.charset not in (None, BINARY):
        spec = replace(spec, charset=convert)
    return defined(spec, charset, rules)


def _place(columns: Sequence[DefinedColumn], spec: ColumnSpec) -> int:
    if spec.place is None:
        return len(columns)
    if not spec.place:
        return 0
    for at, column in enumerate(columns):
        if column.name.lower() == spec.place.lower():
            return at + 1
    raise ValueError(f"there is no column {spec.place!r} to put {spec.name!r} after")


def _key(definition: Definition, changes: Changes) -> tuple[str, ...]:
    if changes.key is not None:
        return changes.key
    if changes.drops_key:
        return ()
    names = [name for name in definition.key if name.lower() not in changes.dropped]
    changed = {old: spec.name for old, spec in changes.changed.items()}
    new_names = changed | changes.renamed
    return tuple(new_names.get(name.lower(), name) for name in names)


def _with_key(
    columns: Sequence[DefinedColumn],
    key: Sequence[str],
    not_null: set[str],
    period: tuple[str, str] | None,
) -> Definition:
    wanted = {name.lower() for name in key} | not_null
    names = {column.name.lower(): column.name for column in columns}
    if len(names) != len(columns):
        raise ValueError("two columns would have one name")
    if missing := [name for name in key if name.lower() not in names]:
        raise ValueError(f"there is no column {missing[0]!r}, of the key, in the definition")
    found = [replace(c, nullable=False) if c.name.lower() in wanted else c for c in columns]
    in_order = current_key([names[name.lower()] for name in key], period)
    return Definition(tuple(found), in_order, period)
