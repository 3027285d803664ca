"""Finds the row layouts of the watched tables, and follows changes of their definitions.

Rows are read by the definition that their table had when they were written. The history
has it, because it follows every DDL statement of the log. Before the history began, it has
only what statements say by themselves. If rows or a statement of a watched table need more, the
log is searched: a table not altered from there to the beginning had the same definition.

Where the log carries full metadata (`binlog_row_metadata=FULL`), names and
lengths are the log's own, and a definition only adds declared types.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from databus.relay.sources.column_rules import without_values
from databus.relay.sources.generated_columns import shown_text
from databus.relay.sources.mysql.binlog.events import Query
from databus.relay.sources.mysql.rows.changes import RowLayout
from databus.relay.sources.mysql.rows.columns import (
    LoggedTable,
    parse_table_map,
    parse_table_name,
)
from databus.relay.sources.mysql.rows.layout import layout_of
from databus.relay.sources.mysql.tables.advice import (
    BY_SESSION,
    CALLED,
    cascade_text,
    lost_text,
    repair_advice,
)
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl import (
    Outcome,
    Prepared,
    apply_ddl,
    named_by,
    prepare,
)
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.mysql.tables.schema_at import NotReachedError, SchemaAt, redefined_by
from databus.relay.sources.source import TableAltered, TableError, TablesFoundError
from databus.schemas.table import Table
from databus.schemas.table_change import UNLOGGED_ROWS, TableChange as RowsAtRest

log = logging.getLogger(__name__)

_ASKED = "the statement was not understood, and its table's definition was read from the server"
_MOST_LAYOUTS = 4096
_NEWEST = (1 << 63) - 1
# Since these versions, every logged statement tells how it treated TIMESTAMP columns.
_MARIADB_SAYS_TIMESTAMPS = 101100

ScanLog = Callable[[int, int], Mapping[TableName, int]]
# Returns the tables after the statement that ends at an SCN; None when not certain.
AskServer = Callable[[Collection[TableName], int], Mapping[TableName, TableVersion | None] | None]
# What an ALTER with one of these words may do to rows, unlogged.
_MAY_LOSE_ROWS = frozenset(
    {"DISCARD", "EXCHANGE", "IGNORE", "IMPORT", "PARTITION", "REFERENCES", "RENAME", "REPLACE"}
    | {"SELECT", "TRUNCATE"}
)
_SECRET = re.compile(
    r"((?:CONNECTION|PASSWORD|IDENTIFIED\s+BY|SECRET|ENCRYPTION_KEY)\s*=?\s*)"
    r"('(?:[^'\\]|\\.|'')*'?|\"(?:[^\"\\]|\\.|\"\")*\"?)",
    re.IGNORECASE,
)
_MOST_SHOWN = 200


class ChangeKind(Enum):
    """The kind of change that a statement made to a watched table."""

    ALTERED = "its definition was touched"
    EMPTIED = "all its rows are gone"
    LOST = "its rows changed, and the log does not have them"
    UNLOGGED = "its rows changed, and the log has only the statement"


class TableChange(NamedTuple):
    """A statement's change to a watched table; for LOST, `text` has the problem and the remedy.

    `table` is the table with its columns; None when it no longer exists. `altered` tells
    what the statement did to existing rows, if consumers need to know.
    """

    kind: ChangeKind
    source: str
    text: str = ""
    table: Table | None = None
    altered: TableAltered | None = None


class WatchedTables:
    """Finds row layouts, and applies statements to the watched tables.

    `scan` returns the tables whose definition statements between two SCNs may
    have changed, with the SCN of the last one. `config` is the relay's settings
    file, for what is to be done by hand. Tables that are `left_out` have no layout, and their
    statements make no changes; their definitions are followed as far as they can be. With
    `delivers_dml` a DML statement that was logged instead of its rows is a change, not a loss.
    `hides_values` tells whether the values of a table may be in no error. The server's tables were
    matched with the patterns when its log ended at `matched_scn`.
    """

    def __init__(
        self,
        names: Names,
        rules: Rules,
        history: History,
        scan: ScanLog,
        *,
        allow_cascades: bool = False,
        config: Path | None = None,
        ask: AskServer | None = None,
        left_out: Collection[str] = (),
        delivers_dml: bool = False,
        hides_values: Callable[[str], bool] = lambda _: False,
        matched_scn: int = _NEWEST,
        shown_unnamed: Callable[[str, Iterable[str]], list[str]] = lambda *_: [],
    ) -> None:
        self.names = names
        self._config = config
        self._ask = ask
        self._left_out = frozenset(left_out)
        self._rules = rules
        self._history = history
        self._scan = scan
        self._allow_cascades = allow_cascades
        self._delivers_dml = delivers_dml
        self._hides_values, self._matched_scn = hides_values, matched_scn
        self._shown_unnamed = shown_unnamed
        self._layouts: dict[bytes, RowLayout | None] = {}
        self._stretch = (0, 0)  # the SCNs for which these layouts are valid
        self._added_at = 0
        # Equal tables are one object, because the relay's caches are keyed by them.
        self._tables: dict[Table, Table] = {}

    def tables(self, after_scn: int = _NEWEST) -> list[Table]:
        """Return the watched tables but for those made later, by their latest known definitions."""
        keys = self.names.keys
        there = (one for one in self.names.sources if not self._history.lacks(keys[one], after_scn))
        found = (self._table(source, _NEWEST) for source in there)
        return [table for table in found if table is not None]

    def layout(self, body: bytes, position: int) -> RowLayout | None:
        """Return the layout of the rows after a TABLE_MAP; None when the table is not watched.

        Raises TableError when the layout is not known.
        """
        content = body[8:]  # after table id and flags
        # A DDL statement is between: equal TABLE_MAPs may mean other columns.
        if not self._stretch[0] <= position < self._stretch[1]:
            self._layouts.clear()
            self._stretch = self._history.stretch(position)
        try:
            return self._layouts[content]
        except KeyError:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()  # bounds the memory; layouts in use are computed again
            layout = self._layouts[content] = self._find_layout(body, position)
            return layout

    def apply(self, query: Query, position: int) -> Sequence[TableChange]:
        """Apply a statement at a position; return its changes to watched tables.

        Raises TableError for a statement that names a watched table and is not understood.
        """
        rules = self._rules_of(query)
        try:
            statement = prepare(query.text, rules)
        except ValueError as error:
            return self._not_understood(
                Prepared("?", query.text, query.sql_mode), query, position, error
            )
        # Rows of a statement that was not logged in row format are not in the log.
        if statement.is_dml:
            watched = self._changed_by(statement, query.database)
            if self._delivers_dml:
                return [self._unlogged(source, position) for source in watched]
            what = CALLED if statement.is_call else f"{statement.word} in statement format"
            return [
                TableChange(ChangeKind.LOST, s, lost_text(what, s) + BY_SESSION) for s in watched
            ]
        # A session without row format logs what it does to its temporary tables; one may have the
        # name of a captured table, which is not emptied then.
        if not statement.is_ddl or (query.uses_own_tables and statement.word == "TRUNCATE"):
            return ()
        try:
            outcome = self._outcome(statement, query, position, rules)
        except ValueError as error:
            return self._not_understood(statement, query, position, error)
        self._look_for_new(outcome, position)
        changes = self._changes(outcome, position)
        self._add(outcome.versions, outcome.charsets, query.text, position)
        if outcome.rows_at_rest:
            self._forget()  # with equal columns, rows may still be of another version
        found = [self._with_table(change, position) for change in changes]
        return [self._with_rows(change, outcome, position) for change in found]

    def _look_for_new(self, outcome: Outcome, position: int) -> None:
        """Raise TablesFoundError if a statement makes a table that a pattern matches.

        Without a table in it for one that cannot be captured: the next opening warns of that.
        """
        wanted = [
            name
            for name, version in outcome.versions.items()
            if version is not None
            and self.names.is_wanted(name)
            and not self._was_there(name, position)
        ]
        unusable = () if self._allow_cascades else outcome.cascades
        found = [".".join(name) for name in wanted if name not in unusable]
        if found or (wanted and position > self._matched_scn):
            created = {".".join(name) for name in outcome.created}
            raise TablesFoundError(found, are_whole=created.issuperset(found))

    def _was_there(self, name: TableName, position: int) -> bool:
        return self._history.table(name, position - 1) is not None

    def _rules_of(self, query: Query) -> Rules:
        explicit = query.explicit_timestamps
        if explicit is None:
            # MariaDB since 11.1 logs a flag for ON only. Others without it have the global value.
            says = (
                self._rules.dialect.is_mariadb and self._rules.version >= _MARIADB_SAYS_TIMESTAMPS
            )
            explicit = False if says else self._rules.explicit_timestamps
        rules = replace(self._rules, sql_mode=query.sql_mode, time_s=query.time_s)
        return replace(rules, explicit_timestamps=explicit)

    def _outcome(self, statement: Prepared, query: Query, position: int, rules: Rules) -> Outcome:
        """Return a statement's effects; before the history begins, search the log if they need it.

        Raises ValueError.
        """
        before = self._schema_before(position)
        if before.is_reached:
            return apply_ddl(statement, query.database, query.server_charset, before, rules)
        try:
            outcome = apply_ddl(statement, query.database, query.server_charset, before, rules)
            unknown = {n for n, version in outcome.versions.items() if _is_unknown(version)}
        except NotReachedError:
            touched = redefined_by(query, self.names, self._rules)
            problem = "the character set of its database was first read later"
            outcome = Outcome()
            outcome.versions = {n: TableVersion(None, problem=problem) for n in touched if n[1]}
            unknown = {*touched, *named_by(statement, query.database)}
        if not self._watched(unknown):
            return outcome
        self._search_from(query, position)
        before = self._schema_before(position)
        return apply_ddl(statement, query.database, query.server_charset, before, rules)

    def _search_from(self, query: Query, position: int) -> None:
        touched = redefined_by(query, self.names, self._rules)
        self._reach_back(position - 1, dict.fromkeys(touched, position), position)

    def _schema_before(self, position: int) -> SchemaAt:
        # Two statements have one SCN where the log is longer than 4 GiB.
        is_second = self._added_at == position
        return SchemaAt(self._history, self.names, position if is_second else position - 1)

    def _reach_back(self, scn: int, last_changes: Mapping[TableName, int], scan_from: int) -> None:
        begin = self._history.begin_scn
        if begin is None or self._history.reaches(scn):
            return
        found = {**last_changes, **self._scan(scan_from, begin)}
        followed = self.names.databases
        self._history.reach_back(scn, {n: at for n, at in found.items() if n[0] in followed})
        self._forget()

    def _add(
        self,
        versions: Mapping[TableName, TableVersion | None],
        charsets: Mapping[str, str | None],
        text: str,
        position: int,
    ) -> None:
        followed = self.names.databases
        versions = {name: v for name, v in versions.items() if name[0] in followed}
        charsets = {name: charset for name, charset in charsets.items() if name in followed}
        if not versions and not charsets:
            return
        self._forget()
        if self._added_at != position and self._history.has_record(position):
            return  # read again, or repaired
        said = self._shown(text, self._watched(versions))
        self._history.add(Record(position, versions, charsets, text=said))
        self._added_at = position

    def _not_understood(
        self, statement: Prepared, query: Query, position: int, error: ValueError
    ) -> Sequence[TableChange]:
        named = {self.names.key(name) for name in named_by(statement, query.database)}
        watched = self._captured(named)
        if watched:
            self._search_from(query, position)
        is_repaired = self._history.has_record(position) and all(
            self._table(source, position) is not None for source in watched
        )
        if watched and not is_repaired and self._ask_server(statement, named, query, position):
            return [self._asked_for(source, position) for source in watched]
        why = self._shown(str(error), watched)
        text = f"the statement at scn {position} could not be followed: {why}"
        known = [name for name in named if self._history.table(name, position - 1) is not None]
        # Also when capture stops here: acknowledging the SCN does not tell the columns.
        self._add(dict.fromkeys(known, TableVersion(None, problem=text)), {}, query.text, position)
        if watched and not is_repaired:
            raise TableError(
                f"the statement {self._shown(query.text, watched)!r} names {', '.join(watched)} "
                f"and cannot be followed: {why}; {self._repair(watched, position)}",
                watched,
            ) from error
        return [
            self._with_table(TableChange(ChangeKind.ALTERED, source), position)
            for source in watched
        ]

    def _unlogged(self, source: str, position: int) -> TableChange:
        """Return the change of a table whose rows a statement changed: they are unknown."""
        change = self._with_table(TableChange(ChangeKind.UNLOGGED, source), position)
        if change.table is None:
            return change
        rest = RowsAtRest.unknown(-1, "", UNLOGGED_ROWS)
        return change._replace(altered=TableAltered(change.table, change.table, rest))

    def _asked_for(self, source: str, position: int) -> TableChange:
        """Return the change of a table that was redefined from the server: its rows are unknown."""
        change = self._with_table(TableChange(ChangeKind.ALTERED, source), position)
        if change.table is None:
            return change
        rest = RowsAtRest.unknown(-1, "", _ASKED)
        before = self._table(source, position - 1)
        return change._replace(altered=TableAltered(change.table, before, rest))

    def _ask_server(
        self, statement: Prepared, named: Collection[TableName], query: Query, position: int
    ) -> bool:
        """Take definitions after a statement from the server, where they are certain."""
        words = {token.upper for token in statement.tokens}
        is_plain = statement.word in ("ALTER", "CREATE") and "TABLE" in words
        # The definition alone is not enough where the statement may have changed rows, too.
        if self._ask is None or not is_plain or words & _MAY_LOSE_ROWS:
            return False
        found = self._ask(frozenset(named), position)
        if found is None:
            return False
        before = {n: self._history.table(n, position - 1) for n in found}
        versions = {n: v for n, v in found.items() if v is not None or before[n] is not None}
        self._forget()
        said = self._shown(query.text, self._watched(named))
        self._history.add(Record(position, versions, text=said))
        self._added_at = position
        log.warning(
            "scn %d: the statement %r cannot be followed; the database was asked what it left of "
            "%s, which nothing later in its log alters; what it did to rows at rest is not known",
            position,
            said,
            ", ".join(self._watched(named)),
        )
        return True

    def _watched(self, names: Collection[TableName]) -> list[str]:
        keys = {self.names.key(name) for name in names}
        return [source for source, key in self.names.keys.items() if key in keys]

    def _changed_by(self, statement: Prepared, database: str) -> list[str]:
        """Return the captured tables whose rows a statement without rows may have changed."""
        if statement.is_call:
            return [source for source in self.names.keys if source not in self._left_out]
        return self._captured(named_by(statement, database))

    def _captured(self, names: Collection[TableName]) -> list[str]:
        """Return the watched tables among some that are not left out."""
        return [source for source in self._watched(names) if source not in self._left_out]

    def _changes(self, outcome: Outcome, position: int) -> list[TableChange]:
        found = []
        for source in self._captured(outcome.touched):
            key = self.names.keys[source]
            if key in outcome.emptied:
                emptied = self._table(source, position - 1) or Table(source, ())
                found.append(TableChange(ChangeKind.EMPTIED, source, "", emptied))
            if key in outcome.lost and not self._appears(source, position):
                text = lost_text(outcome.lost[key], source)
                found.append(TableChange(ChangeKind.LOST, source, text))
            if key in outcome.cascades and not self._allow_cascades:
                text = cascade_text(outcome.cascades[key], source)
                found.append(TableChange(ChangeKind.LOST, source, text))
            if shown := self._shown_unnamed(source, outcome.generated.get(key, ())):
                found.append(TableChange(ChangeKind.LOST, source, shown_text(shown, source)))
            found.append(TableChange(ChangeKind.ALTERED, source))
        return found

    def _appears(self, source: str, position: int) -> bool:
        """Return whether a table of a pattern is renamed to its name for the first time.

        Nobody has rows of it yet that it could contradict.
        """
        key = self.names.keys[source]
        return self.names.is_found(source) and not self._history.has_been(key, position - 1)

    def _with_rows(self, change: TableChange, outcome: Outcome, position: int) -> TableChange:
        """Add the statement's effect on existing rows."""
        if change.kind is not ChangeKind.ALTERED or change.table is None:
            return change
        key = self.names.keys[change.source]
        before, rest = self._table(change.source, position - 1), outcome.rows_at_rest.get(key)
        if key in outcome.lost:
            rest = RowsAtRest.unknown(-1, "", outcome.lost[key])
        if rest is None and key not in outcome.versions:
            return change  # only an index or only rows changed
        is_known = self._history.is_known(key, position - 1)
        is_new = is_known and self._history.table(key, position - 1) is None
        # A table that is renamed to its name brings rows along that nobody knows.
        is_new = (is_new and not self._appears(change.source, position)) or key in outcome.created
        if rest is None and (is_new or key in outcome.emptied):
            rest = RowsAtRest(-1, "", is_emptied=True)
        return change._replace(
            altered=TableAltered(change.table, before, rest or RowsAtRest.unknown(-1, ""))
        )

    def _with_table(self, change: TableChange, position: int) -> TableChange:
        if change.kind not in (ChangeKind.ALTERED, ChangeKind.UNLOGGED):
            return change
        return change._replace(table=self._table(change.source, position))

    def _table(self, source: str, scn: int) -> Table | None:
        version = self._history.table(self.names.keys[source], scn)
        definition = version.definition if version is not None else None
        return None if definition is None else self._one(definition.table(source))

    def _find_layout(self, body: bytes, position: int) -> RowLayout | None:
        source = self.names.find(*parse_table_name(body))
        if source is None or source in self._left_out:
            return None
        try:
            logged = parse_table_map(body, is_mariadb=self._rules.dialect.is_mariadb)
            return self._layout_of(source, logged, position)
        except (ValueError, LookupError) as error:
            raise TableError(str(error), [source]) from error

    def _layout_of(self, source: str, logged: LoggedTable, position: int) -> RowLayout:
        key = self.names.keys[source]
        version = self._history.table(key, position)
        if not logged.has_names and (version is None or _is_unknown(version)):
            self._reach_back(position, {}, position)
            version = self._history.table(key, position)
        definition = version.definition if version is not None else None
        if definition is None:
            if not logged.has_names:
                problem = "it did not exist" if version is None else version.problem
                raise ValueError(
                    f"the columns of table {source} are not known at scn {position}: {problem}; "
                    f"{self._repair([source], position)}"
                )
            definition = self._history.last_definition(key)  # believed column by column
        try:
            layout = layout_of(source, logged, definition, self._rules.dialect)
        except ValueError as error:
            raise ValueError(
                f"table {source} at scn {position}: {error}; {self._repair([source], position)}"
            ) from error
        hides_values = self._hides_values(source)
        return replace(layout, table=self._one(layout.table), hides_values=hides_values)

    def _shown(self, text: str, sources: Iterable[str]) -> str:
        return shown(without_values(text) if any(map(self._hides_values, sources)) else text)

    def _repair(self, sources: Sequence[str], position: int) -> str:
        later = {self._history.next_change(self.names.keys[name], position) for name in sources}
        return repair_advice(sources, position, self._config, was_altered=later != {None})

    def _forget(self) -> None:
        self._layouts.clear()
        self._stretch = (0, 0)

    def _one(self, table: Table) -> Table:
        return self._tables.setdefault(table, table)


def _is_unknown(version: TableVersion | None) -> bool:
    return version is not None and version.definition is None


def shown(text: str) -> str:
    """Return a statement for a message: short, and without passwords."""
    hidden = _SECRET.sub(r"\1'…'", text)
    return hidden if len(hidden) <= _MOST_SHOWN else f"{hidden[:_MOST_SHOWN]}…"
