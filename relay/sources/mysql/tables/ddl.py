"""Determines how a statement in the binlog changes tables and their rows. Pure.

With row format, the log has statements only for definitions (DDL) and for a few changes of
data without logged rows: TRUNCATE, DROP, exchanges of tables and partitions, and
statements of sessions in statement format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from databus.relay.sources.mysql.tables.alter import (
    Changes,
    TableVersion,
    altered,
    created,
    read_alter,
    read_body,
)
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl_tokens import (
    Reader,
    TableName,
    Token,
    every_name,
    tokens,
)
from databus.relay.sources.mysql.tables.lexer import without_comments
from databus.relay.sources.mysql.tables.rows_at_rest import rows_at_rest
from databus.relay.sources.mysql.tables.table_options import (
    QUERIES,
    has_query,
    has_versioning,
    read_table_options,
)
from databus.schemas.table_change import TableChange

# The server logs a SELECT only for a function that changes rows.
_CALL = "SELECT"
_DML = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", _CALL})
# The first words of statements about tables, indexes or databases.
_DDL = re.compile(
    r"[\s(;]*(?:(ALTER)\s+(?:ONLINE\s+|OFFLINE\s+)?(?:IGNORE\s+)?(?:TABLE|DATABASE|SCHEMA)"
    r"|(CREATE)\s+(?:OR\s+REPLACE\s+)?(?:ONLINE\s+|OFFLINE\s+)?"
    r"(?:TABLE|DATABASE|SCHEMA|(?:(?:UNIQUE|FULLTEXT|SPATIAL|VECTOR)\s+)?INDEX)"
    r"|(DROP)\s+(?:TABLES?|DATABASE|SCHEMA|INDEX)"
    r"|(RENAME)\s+TABLES?|(TRUNCATE))\b",
    re.IGNORECASE,
)
_FIRST = re.compile(r"[\s(;]*([A-Za-z]+)")
_PREFIX = re.compile(r"\s*SET\s+STATEMENT\b", re.IGNORECASE)


class Schema(Protocol):
    """The tables immediately before a statement."""

    def table(self, name: TableName) -> TableVersion | None:
        """Return a table; None when it does not exist."""
        ...

    def tables_of(self, database: str) -> Collection[TableName]:
        """Return the tables of a database."""
        ...

    def charset(self, database: str) -> str:
        """Return a database's default character set; raises ValueError."""
        ...

    def key(self, name: TableName) -> TableName:
        """Return a name in the form in which the server compares it."""
        ...


@dataclass(slots=True)
class Outcome:
    """The effects of a statement, by table.

    `touched` has every table that the statement concerns. `lost` tells what happened to
    rows without being logged; `cascades` has rules of foreign keys that will change more
    rows unlogged. `rows_at_rest` describes the existing rows of tables whose rows come from a
    known table. `created` has tables that did not exist before, or lost their rows.
    """

    versions: dict[TableName, TableVersion | None] = field(default_factory=dict)
    charsets: dict[str, str | None] = field(default_factory=dict)
    emptied: list[TableName] = field(default_factory=list)
    lost: dict[TableName, str] = field(default_factory=dict)
    cascades: dict[TableName, str] = field(default_factory=dict)
    generated: dict[TableName, set[str]] = field(default_factory=dict)  # columns, new ones
    rows_at_rest: dict[TableName, TableChange] = field(default_factory=dict)
    touched: set[TableName] = field(default_factory=set)
    created: set[TableName] = field(default_factory=set)
    redefined: set[TableName] = field(default_factory=set)  # maybe; whatever they were before


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement without comments; `word` is its first word, "" if it does nothing.

    Only a DDL statement has tokens; they begin at that word.
    """

    word: str
    text: str
    sql_mode: int = 0
    tokens: tuple[Token, ...] = ()

    @property
    def is_ddl(self) -> bool:
        """Whether the statement may change definitions."""
        return bool(self.tokens)

    @property
    def is_dml(self) -> bool:
        """Whether the statement changes rows."""
        return self.word in _DML

    @property
    def is_call(self) -> bool:
        """Whether it calls a function, which changes rows of tables that it does not name."""
        return self.word == _CALL


_NOTHING = Prepared("", "")


def prepare(text: str, rules: Rules) -> Prepared:
    """Classify a statement, and split a DDL statement into tokens.

    Raises ValueError.
    """
    plain = without_comments(
        text, rules.version, is_mariadb=rules.dialect.is_mariadb, sql_mode=rules.sql_mode
    )
    if _PREFIX.match(plain):
        return _without_prefix(tokens(plain, rules.sql_mode), plain, rules.sql_mode)
    first = _FIRST.match(plain)
    word = first[1].upper() if first else ""
    if word in _DML:
        return Prepared(word, plain, rules.sql_mode)
    if not _DDL.match(plain):
        return _NOTHING
    found = tokens(plain, rules.sql_mode)
    while found and found[0].text in ("(", ";"):
        del found[0]
    return Prepared(word, plain, rules.sql_mode, tuple(found))


def _without_prefix(found: list[Token], plain: str, sql_mode: int) -> Prepared:
    # MariaDB: SET STATEMENT a=1, b=2 FOR <statement>
    for at, token in enumerate(found):
        if token.upper == "FOR" and at + 1 < len(found):
            rest = tuple(found[at + 1 :])
            word = rest[0].upper
            is_ddl = _DDL.match(" ".join(token.upper for token in rest[:5]))
            if word in _DML:
                return Prepared(word, plain, sql_mode)
            return Prepared(word, plain, sql_mode, rest) if is_ddl else _NOTHING
    return _NOTHING


def named_by(statement: Prepared, database: str) -> frozenset[TableName]:
    """Return every possible table name in a statement."""
    if not statement.word:
        return frozenset()
    return every_name(statement.text, database, statement.sql_mode)


def apply_ddl(
    statement: Prepared, database: str, server_charset: str, schema: Schema, rules: Rules
) -> Outcome:
    """Return the effects of a DDL statement; raises ValueError for one not understood.

    `database` qualifies bare names; `server_charset` is the default of new databases.
    """
    run = _Run(Reader(statement.tokens[1:], database), server_charset, schema, rules)
    _READERS[statement.word](run)
    return run.outcome


class _Run:
    """A statement being applied."""

    def note(self, name: TableName, changes: Changes) -> None:
        """Note what else is to be known of a table that a statement makes or alters."""
        if changes.cascade:
            self.outcome.cascades[name] = changes.cascade
        if changes.generated:
            self.outcome.generated[name] = changes.generated

    def __init__(self, words: Reader, server_charset: str, schema: Schema, rules: Rules) -> None:
        self.words = words
        self.server_charset = server_charset
        self.schema = schema
        self.rules = rules
        self.outcome = Outcome()

    def table(self) -> TableName:
        """Read a table's name."""
        return self.schema.key(self.words.table())

    def touch(self, name: TableName) -> None:
        """Record that the statement concerns a table."""
        self.outcome.touched.add(name)

    def define(self, name: TableName, version: TableVersion | None) -> None:
        """Record a table's new definition."""
        self.touch(name)
        self.outcome.redefined.add(name)
        self.outcome.versions[name] = version

    def empty(self, name: TableName) -> None:
        """Record that a table's rows are deleted."""
        self.touch(name)
        if name not in self.outcome.emptied:
            self.outcome.emptied.append(name)


def _create(run: _Run) -> None:
    words = run.words
    replaces = words.accept("OR", "REPLACE")
    if words.accept_any("DATABASE", "SCHEMA"):
        _create_database(run, replaces=replaces)
    elif words.accept("TABLE"):
        _create_table(run, replaces=replaces)
    elif words.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "INDEX", "VECTOR", "ONLINE", "OFFLINE"):
        _touch_index(run)


def _touch_index(run: _Run) -> None:
    while not run.words.accept("ON"):
        run.words.take()
    run.touch(run.table())


def _create_database(run: _Run, *, replaces: bool) -> None:
    is_optional = run.words.accept("IF", "NOT", "EXISTS")
    name = run.schema.key((run.words.word(), ""))[0]
    if replaces:
        _forget_tables(run, name)
    # Servers log CREATE DATABASE IF NOT EXISTS although the database exists.
    if is_optional and not replaces and _has_database(run, name):
        return
    charset = read_table_options(run.words.rest_of_piece(), run.rules)
    run.outcome.charsets[name] = charset or run.server_charset


def _has_database(run: _Run, name: str) -> bool:
    try:
        return bool(run.schema.charset(name))
    except ValueError:
        return False


def _create_table(run: _Run, *, replaces: bool) -> None:
    words = run.words
    is_optional = words.accept("IF", "NOT", "EXISTS")
    name = run.table()
    run.touch(name)
    before = run.schema.table(name)
    if before is not None and is_optional and not replaces:
        # Nothing happens, but only the schema at this SCN shows that: a search of the log, which
        # does not have it, must take the statement for a change.
        run.outcome.redefined.add(name)
        return
    run.outcome.created.add(name)
    if before is not None and replaces:
        run.empty(name)
    if words.accept("LIKE") or (words.peek(1) == "LIKE" and words.accept("(", "LIKE")):
        run.define(name, _like(run, run.table()))
        return
    changes = Changes()
    if words.peek() == "(" and words.peek(1) not in (*QUERIES, "("):
        read_body(words, run.rules, changes)
    options = _rest(words)
    if has_query(options) or not changes.columns:
        # The result types of a SELECT are known to the server only.
        run.define(name, TableVersion(None, problem="it was made from a SELECT"))
        return
    charset = read_table_options(options, run.rules) or run.schema.charset(name[0])
    is_of_columns = any(spec.is_versioned for spec in changes.columns)
    changes.is_versioned = has_versioning(options) or is_of_columns or None
    run.define(name, created(changes, charset, run.rules))
    run.note(name, changes)


def _rest(words: Reader) -> list[Token]:
    found = []
    while not words.is_at_end:
        found.append(words.take())
    return found


def _like(run: _Run, other: TableName) -> TableVersion:
    found = run.schema.table(other)
    if found is None:
        return TableVersion(None, problem=f"it was made like {'.'.join(other)}, never seen before")
    return found


def _alter(run: _Run) -> None:
    words = run.words
    word = words.accept_any("ONLINE", "OFFLINE", "IGNORE")
    ignores = words.accept("IGNORE") if word == "ONLINE" else word == "IGNORE"
    if words.accept_any("DATABASE", "SCHEMA"):
        _alter_database(run)
        return
    if not words.accept("TABLE"):
        return
    is_optional = words.accept("IF", "EXISTS")
    name = run.table()
    run.touch(name)
    before = run.schema.table(name)
    if before is None and is_optional:
        return
    if before is None:
        before = TableVersion(None, problem="it was altered, and never seen before")
    if words.peek() in ("WAIT", "NOWAIT") and words.take().upper == "WAIT":
        words.take()
    is_unique_new = ignores and words.has_ahead("UNIQUE", "PRIMARY")
    changes = read_alter(words, run.rules, before.definition)
    changes.ignores = ignores
    if is_unique_new:
        changes.lost = changes.lost or "ALTER IGNORE TABLE … ADD UNIQUE"
    _alter_to(run, name, before, changes)


def _alter_to(run: _Run, name: TableName, before: TableVersion, changes: Changes) -> None:
    database_charset = ""
    if changes.charset == "":
        database_charset = run.schema.charset(name[0])
    after = altered(before, changes, database_charset, run.rules)
    if before.definition is not None and after.definition is not None:
        rest = rows_at_rest(before.definition, after.definition, changes, run.rules)
        run.outcome.rows_at_rest[name] = rest
    if changes.alters_columns:
        run.outcome.redefined.add(name)
    run.note(name, changes)
    if changes.lost:
        others = [run.schema.key(other) for other in changes.other_tables]
        run.outcome.lost.update(dict.fromkeys((name, *others), changes.lost))
        run.outcome.touched.update(others)
    if changes.made_table is not None:
        run.define(run.schema.key(changes.made_table), after)
    if changes.lost == "ALTER TABLE … CONVERT TABLE":
        run.define(run.schema.key(changes.other_tables[0]), None)
    if changes.new_name is None:
        if after != run.schema.table(name):
            run.define(name, after)
        return
    new_name = run.schema.key(changes.new_name)
    if new_name == name:
        run.define(name, after)
        return
    run.outcome.rows_at_rest.pop(name, None)
    run.define(name, None)
    run.define(new_name, after)
    run.note(new_name, changes)
    _move(run, {new_name: name, name: None})


def _alter_database(run: _Run) -> None:
    words = run.words
    name = words.database
    if words.peek() not in ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT"):
        name = words.word()
    charset = read_table_options(_rest(words), run.rules)
    if charset is not None:
        run.outcome.charsets[run.schema.key((name, ""))[0]] = charset or run.server_charset


def _drop(run: _Run) -> None:
    words = run.words
    if words.accept_any("DATABASE", "SCHEMA"):
        words.accept("IF", "EXISTS")
        name = run.schema.key((words.word(), ""))[0]
        _forget_tables(run, name)
        run.outcome.charsets[name] = None
    elif words.accept_any("TABLE", "TABLES"):
        words.accept("IF", "EXISTS")
        while True:
            name_of_table = run.table()
            run.touch(name_of_table)
            if run.schema.table(name_of_table) is not None:
                run.empty(name_of_table)
                run.define(name_of_table, None)
            if not words.accept(","):
                return
    elif words.accept("INDEX"):
        _drop_index(run)


def _drop_index(run: _Run) -> None:
    words = run.words
    words.accept("IF", "EXISTS")
    is_key = words.word().upper() == "PRIMARY"
    words.expect("ON")
    name = run.table()
    run.touch(name)
    before = run.schema.table(name)
    # DROP INDEX `PRIMARY` drops the primary key; other indexes do not matter to consumers.
    if is_key and before is not None and before.definition is not None:
        run.define(name, replace(before, definition=replace(before.definition, key=())))
    elif is_key:
        run.outcome.redefined.add(name)


def _forget_tables(run: _Run, database: str) -> None:
    for name in run.schema.tables_of(database):
        run.empty(name)
        run.define(name, None)


def _truncate(run: _Run) -> None:
    run.words.accept("TABLE")
    name = run.table()
    run.touch(name)
    if run.schema.table(name) is not None:
        run.empty(name)


def _rename(run: _Run) -> None:
    words = run.words
    if not words.accept_any("TABLE", "TABLES"):
        return
    words.accept("IF", "EXISTS")
    # One statement may exchange names by several steps (a TO tmp, b TO a, tmp TO b). So the steps
    # are applied to names first: each new name has its table's original name and version.
    now: dict[TableName, tuple[TableName | None, TableVersion | None]] = {}
    while True:
        old = run.table()
        if words.accept_any("WAIT", "NOWAIT") == "WAIT":
            words.take()
        words.expect("TO")
        new = run.table()
        origin, version = now.get(old, (old, run.schema.table(old)))
        if version is None:
            version = TableVersion(None, problem=f"it was {'.'.join(old)}, never seen before")
        now[old], now[new] = (None, None), (origin, version)
        if not words.accept(","):
            break
    for name, (origin, version) in now.items():
        run.touch(name)
        if origin != name:
            run.define(name, version)
    _move(run, {name: origin for name, (origin, _) in now.items() if origin != name})


def _move(run: _Run, origins: Mapping[TableName, TableName | None]) -> None:
    """Record the effect on rows, given whose rows each name has now."""
    for name, origin in origins.items():
        if origin is None:
            run.empty(name)
            continue
        run.outcome.rows_at_rest[name] = TableChange.unknown(
            -1, "", f"it was {'.'.join(origin)} before"
        )
        # gh-ost and pt-online-schema-change exchange the table and its filled copy.
        if name in origins.values() and is_online_copy(origin, name):
            if run.outcome.versions[name] == run.schema.table(name):
                del run.outcome.rows_at_rest[name]
            continue  # the tool has copied the same rows into it
        text = f"RENAME TABLE {'.'.join(origin)} TO {'.'.join(name)}"
        run.outcome.lost[name] = text


def is_online_copy(copy: TableName, name: TableName) -> bool:
    """Return whether a table is the copy that gh-ost or pt-online-schema-change fill."""
    if copy[0] != name[0]:
        return False
    table = name[1].lower()
    made = copy[1].lower()
    return made in (f"_{table}_gho", f"_{table}_new", f"__{table}_new")


_READERS: Mapping[str, Callable[[_Run], None]] = {
    "ALTER": _alter,
    "CREATE": _create,
    "DROP": _drop,
    "RENAME": _rename,
    "TRUNCATE": _truncate,
}
