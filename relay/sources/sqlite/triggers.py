"""The triggers that write the change log, as SQL text. Pure.

A trigger adds one row to `_databus_log` inside the application's own transaction, so that the
change and its log row are committed or rolled back together. The values are stored as SQLite
values, by position (`v0`, `v1`, …), and not as JSON. So blobs, 64-bit integers, every bit of a
real, NUL characters and text that is not UTF-8 stay as they are, and the application's SQLite
needs no JSON functions. The generation number in the trigger's text identifies the columns of
these positions.

Triggers log facts, not the statement:

* After an insert or update the row is read back by its rowid. Another trigger may change the
  row again (such as an application's `updated_at` trigger); in whichever order they fire, the
  last image logged is the final row.
* A delete is logged only if no row has that key any more.
* An update that changes the key is a delete of the old key and an insert of the new one. In a
  table without primary key the whole row is the key.
* REPLACE removes rows without firing delete triggers (unless the connection has
  `recursive_triggers` on). A replaced row with the same key needs no log row of its own: the
  insert that follows is sufficient. For rows removed by *another* unique constraint, a BEFORE
  trigger records the conflicting rows as candidates, and the AFTER trigger logs a delete for
  those whose key is gone. After IGNORE or an upsert they still exist, and nothing is logged.

The tables of the log have no constraint that could fail, because inside a trigger the conflict
policy of the application's statement applies.
"""

from __future__ import annotations

from collections.abc import Sequence

from databus.relay.sources.sqlite.catalog import SqliteTable, UniqueIndex, quote

LOG = "_databus_log"
CANDIDATE = "_databus_candidate"
ROW_ID, EXPRESSION = -1, -2  # column numbers, in the words of PRAGMA index_xinfo
KINDS = ("insert", "update", "delete", "before_insert", "before_update")

# Unix time in nanoseconds; milliseconds is all that SQLite's clock has.
NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000"

# Candidates of statements that did not replace anything stay until newer ones push them out. A
# row has few candidates, and triggers nest only a few levels deep.
_MOST_CANDIDATES = 16


def trigger_names(table: str) -> dict[str, str]:
    """Return the name of each kind of trigger that a table may have."""
    return {kind: f"_databus_{kind}_{table}" for kind in KINDS}


def trigger_texts(table: SqliteTable, generation: int) -> dict[str, str]:
    """Return the SQL of the triggers that a table needs, by name."""
    names = trigger_names(table.name)
    texts = _Texts(table, generation)
    made = {"insert": texts.insert(), "update": texts.update(), "delete": texts.delete()}
    if texts.uniques:
        made |= {"before_insert": texts.before_insert(), "before_update": texts.before_update()}
    return {names[kind]: _trigger(names[kind], kind, table, *made[kind]) for kind in made}


def values(count: int, first: int = 0) -> str:
    """Return `v0, v1, …`, the log's columns of `count` values."""
    return ", ".join(f"v{place}" for place in range(first, first + count))


def same_key(table: SqliteTable, left: Sequence[str], right: Sequence[str]) -> str:
    """Return the condition that two rows have exactly the same key.

    `left` and `right` are SQL for each column. With the column's collation and affinity, `=`
    may accept 'A' for 'a' and 1 for 1.0; a consumer does not. The plain comparison comes first,
    because an index can answer it.
    """
    places = table.key or range(len(table.columns))
    if table.has_integer_key:
        return f"{left[places[0]]} IS {right[places[0]]}"
    return " AND ".join(_same(left[place], right[place]) for place in places)


def _same(left: str, right: str) -> str:
    plain = f"{left} IS {right}"
    return f"{plain} AND {plain} COLLATE BINARY AND typeof({left}) = typeof({right})"


def _trigger(name: str, kind: str, table: SqliteTable, head: str, body: list[str]) -> str:
    time, event = ("BEFORE", kind[7:]) if kind.startswith("before_") else ("AFTER", kind)
    steps = "".join(f"  {step};\n" for step in body)
    return (
        f"CREATE TRIGGER {quote(name)} {time} {event.upper()} ON {quote(table.name)}{head}\n"
        f"BEGIN\n{steps}END"
    )


class _Texts:
    """The triggers' bodies for one table and generation."""

    def __init__(self, table: SqliteTable, generation: int) -> None:
        self.table = table
        self.generation = generation
        self.count = len(table.columns)
        self.name = quote(table.name)
        self.uniques = _removing_constraints(table)
        self.new, self.old, self.row = self.of("NEW"), self.of("OLD"), self.of("t")

    def of(self, prefix: str) -> list[str]:
        return [f"{prefix}.{quote(column.name)}" for column in self.table.columns]

    def insert(self) -> tuple[str, list[str]]:
        return "", [*self.confirm(), self.log_row("'i'")]

    def update(self) -> tuple[str, list[str]]:
        is_same = same_key(self.table, self.old, self.new)
        gone = self.log("'d'", self.old, f"WHERE NOT ({is_same}){self.and_gone('OLD')}", self.count)
        changed = self.log_row(f"CASE WHEN {is_same} THEN 'u' ELSE 'i' END", self.old)
        clear = f"{self.clear_old()} AND NOT ({is_same})"
        return "", [gone, *([clear] if self.uniques else []), *self.confirm(), changed]

    def delete(self) -> tuple[str, list[str]]:
        gone = self.log("'d'", self.old, f"WHERE 1{self.and_gone('OLD')}", self.count)
        # With recursive_triggers on, REPLACE fires this trigger.
        return "", [gone, *([self.clear_old()] if self.uniques else [])]

    def clear_old(self) -> str:
        """Delete OLD from the candidates, so that its delete is not logged again."""
        return (
            f"DELETE FROM {CANDIDATE} WHERE generation = {self.generation}"
            f" AND {same_key(self.table, self.noted(CANDIDATE), self.old)}"
        )

    def before_insert(self) -> tuple[str, list[str]]:
        if self.table.has_integer_key:
            # SQLite has not chosen the rowid yet: NEW's key is -1 here, and tells nothing.
            return "", self.note_candidates("")
        # If the row and NEW have the same key, the log row of the insert is sufficient.
        return "", self.note_candidates(f" AND NOT ({same_key(self.table, self.row, self.new)})")

    def before_update(self) -> tuple[str, list[str]]:
        is_moved = " OR ".join(self.changes(index) for index in self.uniques)
        # The updated row does not conflict with itself.
        return f"\nWHEN {is_moved}", self.note_candidates(f" AND NOT ({self.same_row('OLD')})")

    def note_candidates(self, but: str) -> list[str]:
        found = " UNION ".join(
            f"SELECT {self.generation}, {', '.join(self.row)} FROM {self.name} AS t"
            f" WHERE {self.conflicts(index)}{but}"
            for index in self.uniques
        )
        newest = f"(SELECT max(id) FROM {CANDIDATE})"
        return [
            f"INSERT INTO {CANDIDATE}(generation, {values(self.count)}) {found}",
            f"DELETE FROM {CANDIDATE} WHERE id <= {newest} - {_MOST_CANDIDATES}",
        ]

    def confirm(self) -> list[str]:
        """Log a delete of the candidates that are gone, and forget them."""
        if not self.uniques:
            return []
        gone = f"c.generation = {self.generation} AND {self.is_gone(self.noted('c'))}"
        newest = (
            f"c.id = (SELECT max(n.id) FROM {CANDIDATE} AS n WHERE n.generation = c.generation"
            f" AND {same_key(self.table, self.noted('n'), self.noted('c'))})"
        )
        return [
            f"INSERT INTO {LOG}(generation, op, at, {values(self.count)})"
            f" SELECT c.generation, 'd', {NOW}, {', '.join(self.noted('c'))}"
            f" FROM {CANDIDATE} AS c WHERE {gone} AND {newest}",
            f"DELETE FROM {CANDIDATE} WHERE generation = {self.generation}"
            f" AND {self.is_gone(self.noted(CANDIDATE))}",
        ]

    def log_row(self, op: str, before: Sequence[str] = ()) -> str:
        """Log the current row with NEW's identity."""
        columns = [*self.row, *before]
        return self.log(op, columns, f"FROM {self.name} AS t WHERE {self.same_row('NEW')}")

    def log(self, op: str, columns: Sequence[str], rest: str, count: int = 0) -> str:
        places = values(count or len(columns))
        return (
            f"INSERT INTO {LOG}(generation, op, at, {places})"
            f" SELECT {self.generation}, {op}, {NOW}, {', '.join(columns)} {rest}"
        )

    def same_row(self, prefix: str) -> str:
        """Return the condition that `t` is the row of NEW or OLD, whatever its key is now."""
        if self.table.row_id:
            row_id = quote(self.table.row_id)
            return f"t.{row_id} = {prefix}.{row_id}"
        return same_key(self.table, self.row, self.of(prefix))

    def and_gone(self, prefix: str) -> str:
        # Without a primary key this would scan the table; there the delete is always logged.
        return f" AND {self.is_gone(self.of(prefix))}" if self.table.key else ""

    def is_gone(self, key: Sequence[str]) -> str:
        is_same = same_key(self.table, self.row, key)
        return f"NOT EXISTS (SELECT 1 FROM {self.name} AS t WHERE {is_same})"

    def noted(self, prefix: str) -> list[str]:
        return [f"{prefix}.v{place}" for place in range(self.count)]

    def conflicts(self, index: UniqueIndex) -> str:
        """Return the condition that `t` conflicts with NEW by this index."""
        terms = [
            self.conflicting_term(text, cid) + f" COLLATE {quote(collation)}"
            for (text, collation), cid in zip(index.terms, index.cids, strict=True)
        ]
        return " AND ".join([*terms, *([f"({index.where})"] if index.where else [])])

    def conflicting_term(self, text: str, cid: int) -> str:
        if cid == ROW_ID:
            return f"t.{text} = NEW.{text}"
        if cid >= 0:
            return f"t.{text} = {self.incoming(cid)}"
        return f"({text}) = (SELECT ({text}) FROM ({self.incoming_row()}))"

    def incoming(self, cid: int) -> str:
        """Return NEW's value; REPLACE stores the default for a NULL in a NOT NULL column."""
        column = self.table.columns[cid]
        new = f"NEW.{quote(column.name)}"
        return f"ifnull({new}, ({column.default}))" if column.default else new

    def incoming_row(self) -> str:
        shown = (
            f"{self.incoming(cid)} AS {quote(column.name)}"
            for cid, column in enumerate(self.table.columns)
        )
        return f"SELECT {', '.join(shown)}"

    def changes(self, index: UniqueIndex) -> str:
        if EXPRESSION in index.cids or index.where:
            return "1"
        return " OR ".join(
            f"NEW.{text} IS NOT OLD.{text} COLLATE {quote(collation)}"
            for text, collation in index.terms
        )


def _removing_constraints(table: SqliteTable) -> tuple[UniqueIndex, ...]:
    """Return the constraints by which REPLACE can remove a row with another key."""
    if not table.row_id or table.has_integer_key:
        return table.unique_indexes
    # A statement may name the rowid, and replace a row by it.
    by_row_id = UniqueIndex("", ((quote(table.row_id), "BINARY"),), (ROW_ID,))
    return (*table.unique_indexes, by_row_id)
