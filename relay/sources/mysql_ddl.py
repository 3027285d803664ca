"""What a statement in the binlog does to watched tables. Pure.

With row format, the statements left in the log are definitions (DDL), and a
few that change data without logging a row: TRUNCATE, DROP, the swapping of
tables and partitions, and statements of sessions that left row format. This
is no SQL parser. It reads the words a statement begins with and the names
after them; where it cannot tell, it errs towards "changes data".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum


class Effect(Enum):
    """What a statement may do to the tables it names."""

    NONE = "nothing"
    COLUMNS = "may change columns or key"
    DATA = "changes rows that are not in the log"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement's effect, on which tables (database, table) or whole databases."""

    effect: Effect
    action: str = ""
    tables: frozenset[tuple[str, str]] = field(default_factory=frozenset)
    databases: frozenset[str] = field(default_factory=frozenset)


_NOTHING = Statement(Effect.NONE)

_TOKEN = re.compile(
    r"""
    (?P<comment> /\*(?![!M]).*?\*/ | \#[^\n]* | --(?=\s|$)[^\n]* )
  | (?P<version> /\*M?!\d* | \*/ )
  | (?P<quoted> `(?:[^`]|``)*` )
  | (?P<string> '(?:[^'\\]|''|\\.)*' )
  | (?P<double> "(?:[^"\\]|""|\\.)*" )
  | (?P<word> [\w$\u0080-\uffff]+ )
  | (?P<mark> [^\s] )
    """,
    re.VERBOSE | re.DOTALL,
)

_DML = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO"})
_DATA_AFTER_ALTER: tuple[tuple[str, set[str]], ...] = (
    ("RENAME", {"COLUMN", "INDEX", "KEY"}),  # anything but these renames the table
    ("EXCHANGE", set()),
    ("DISCARD", set()),
    ("IMPORT", set()),
)
# A part of ALTER TABLE that begins so leaves columns and key as they are.
_HARMLESS_PARTS = re.compile(
    r"(ADD|DROP) (INDEX|KEY|UNIQUE|FULLTEXT|SPATIAL|CONSTRAINT|FOREIGN|CHECK|PARTITION)\b"
    r"|(RENAME|ALTER) (INDEX|KEY|CHECK|CONSTRAINT)\b"
    r"|(ENGINE|AUTO_INCREMENT|COMMENT|ROW_FORMAT|ALGORITHM|LOCK|FORCE|ENABLE|DISABLE|WAIT"
    r"|NOWAIT|STATS_PERSISTENT|STATS_AUTO_RECALC|KEY_BLOCK_SIZE|REORGANIZE|COALESCE|REBUILD"
    r"|ANALYZE|OPTIMIZE|CHECK|REPAIR|REMOVE PARTITIONING|PARTITION BY)\b"
)
# A new foreign key that changes rows behind the log's back; to be looked at.
_CASCADE = re.compile(r"\bON (DELETE|UPDATE) (CASCADE|SET)\b")


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_name: bool  # quoted, so never a keyword
    is_word: bool

    @property
    def upper(self) -> str:
        return "" if self.is_name else self.text.upper()


def read_statement(text: str, database: str, *, ansi_quotes: bool = False) -> Statement:
    """Say what a statement does; `database` is the default of unqualified names."""
    tokens = _without_prefix(_tokens(text, ansi_quotes))
    words = _Words(tokens, database)
    first = words.next_upper()
    if first in _DML:
        return Statement(Effect.DATA, f"{first} in statement format", words.every_name())
    reader = _READERS.get(first)
    return reader(words) if reader else _NOTHING


def _tokens(text: str, ansi_quotes: bool) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        kind, piece = match.lastgroup, match.group()
        if kind in ("comment", "version"):
            continue
        if kind == "quoted" or (kind == "double" and ansi_quotes):
            mark = piece[0]
            found.append(_Token(piece[1:-1].replace(mark * 2, mark), True, True))
        else:
            found.append(_Token(piece, False, kind == "word"))
    return found


def _without_prefix(tokens: list[_Token]) -> list[_Token]:
    # MariaDB: SET STATEMENT a=1, b=2 FOR <statement>
    if [t.upper for t in tokens[:2]] == ["SET", "STATEMENT"]:
        for index, token in enumerate(tokens):
            if token.upper == "FOR":
                return tokens[index + 1 :]
    return tokens


class _Words:
    """A statement's tokens, read from the left."""

    def __init__(self, tokens: list[_Token], database: str) -> None:
        self._tokens = tokens
        self._at = 0
        self._database = database

    def next_upper(self) -> str:
        if self._at >= len(self._tokens):
            return ""
        self._at += 1
        return self._tokens[self._at - 1].upper

    def skip(self, *words: str) -> bool:
        """Pass over any of these words; say whether there was one."""
        start = self._at
        while self._at < len(self._tokens) and self._tokens[self._at].upper in words:
            self._at += 1
        return self._at > start

    def name(self) -> tuple[str, str]:
        """Read `table` or `database.table`."""
        first = self._take()
        if self._at < len(self._tokens) and self._tokens[self._at].text == ".":
            self._at += 1
            return first, self._take()
        return self._database, first

    def names(self) -> frozenset[tuple[str, str]]:
        """Read names separated by commas."""
        found = [self.name()]
        while self.skip(","):
            found.append(self.name())
        return frozenset(found)

    def every_name(self) -> frozenset[tuple[str, str]]:
        """Return everything in the rest that could be a table's name."""
        found = set()
        rest = self._tokens[self._at :]
        for index, token in enumerate(rest):
            if token.is_word:
                found.add((self._database, token.text))
                if index >= 2 and rest[index - 1].text == ".":
                    found.add((rest[index - 2].text, token.text))
        return frozenset(found)

    def parts(self) -> list[str]:
        """Return the rest, cut at the commas outside parentheses, upper case."""
        parts: list[list[str]] = [[]]
        depth = 0
        for token in self._tokens[self._at :]:
            depth += {"(": 1, ")": -1}.get(token.text, 0) if not token.is_name else 0
            if token.text == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append("?" if token.is_name else token.text.upper())
        return [" ".join(part) for part in parts if part]

    def _take(self) -> str:
        if self._at >= len(self._tokens):
            return ""
        self._at += 1
        return self._tokens[self._at - 1].text


def _create(words: _Words) -> Statement:
    replaces = False
    if words.skip("OR"):
        replaces = words.skip("REPLACE")
    if words.skip("TEMPORARY"):
        return _NOTHING
    if words.next_upper() != "TABLE":
        return _NOTHING
    words.skip("IF", "NOT", "EXISTS")
    tables = frozenset({words.name()})
    if replaces:
        return Statement(Effect.DATA, "CREATE OR REPLACE TABLE", tables)
    return Statement(Effect.COLUMNS, "CREATE TABLE", tables)


def _alter(words: _Words) -> Statement:
    words.skip("ONLINE", "OFFLINE", "IGNORE")
    if words.next_upper() != "TABLE":
        return _NOTHING
    words.skip("IF", "EXISTS")
    tables = frozenset({words.name()})
    parts = words.parts()
    for part in parts:
        if _changes_data(part):
            return Statement(Effect.DATA, f"ALTER TABLE … {part[:40]}", tables)
    if all(_HARMLESS_PARTS.match(part) and not _CASCADE.search(part) for part in parts):
        return _NOTHING
    return Statement(Effect.COLUMNS, "ALTER TABLE", tables)


def _changes_data(part: str) -> bool:
    first, _, rest = part.partition(" ")
    second = rest.partition(" ")[0]
    if (first, second) in (("TRUNCATE", "PARTITION"), ("DROP", "PARTITION")):
        return True
    return any(first == word and second not in but for word, but in _DATA_AFTER_ALTER)


def _drop(words: _Words) -> Statement:
    if words.skip("TEMPORARY"):
        return _NOTHING
    kind = words.next_upper()
    words.skip("IF", "EXISTS")
    if kind in ("DATABASE", "SCHEMA"):
        name = words.name()[1]
        return Statement(Effect.DATA, "DROP DATABASE", databases=frozenset({name}))
    if kind in ("TABLE", "TABLES"):
        return Statement(Effect.DATA, "DROP TABLE", words.names())
    return _NOTHING


def _rename(words: _Words) -> Statement:
    if not words.skip("TABLE", "TABLES"):
        return _NOTHING
    words.skip("IF", "EXISTS")
    tables = {words.name()}
    while words.skip("TO", ",", "WAIT", "NOWAIT"):
        tables.add(words.name())
    return Statement(Effect.DATA, "RENAME TABLE", frozenset(tables))


def _truncate(words: _Words) -> Statement:
    words.skip("TABLE")
    return Statement(Effect.DATA, "TRUNCATE", frozenset({words.name()}))


_READERS = {
    "ALTER": _alter,
    "CREATE": _create,
    "DROP": _drop,
    "RENAME": _rename,
    "TRUNCATE": _truncate,
}
