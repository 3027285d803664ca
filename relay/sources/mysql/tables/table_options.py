"""Reads what follows the columns of a CREATE TABLE: options, and perhaps a query. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl_tokens import Reader, Token


def read_table_options(options: Sequence[Token], rules: Rules) -> str | None:
    """Return the default character set in table options; None when there is none.

    An empty text stands for the database's default. Raises ValueError.
    """
    words = Reader(options)
    charset: str | None = None
    while not words.is_at_end and words.peek() != "PARTITION":
        if words.peek() in ("CHARSET", "CHARACTER") or words.peek() == "CHAR":
            if words.take().upper != "CHARSET":
                words.expect("SET")
            charset = option_charset(words, rules)
        elif words.accept("COLLATE"):
            words.accept("=")
            named = words.take()
            is_default = named.upper == "DEFAULT"
            found = "" if is_default else rules.charset_of_collation(named.text)
            charset = found if charset is None else charset
        else:
            words.take()
    return charset


def has_versioning(options: Sequence[Token]) -> bool:
    """Return whether table options make a system-versioned table."""
    upper = [token.upper for token in options]
    return ("WITH", "SYSTEM", "VERSIONING") in zip(upper, upper[1:], upper[2:], strict=False)


def option_charset(words: Reader, rules: Rules) -> str:
    """Read a character set's name; an empty text stands for the default."""
    words.accept("=")
    named = words.take()
    return "" if named.upper == "DEFAULT" else rules.charset(named.text)


QUERIES = frozenset({"SELECT", "VALUES", "WITH", "TABLE"})


def has_query(options: Sequence[Token]) -> bool:
    """Return whether a query follows the table options, with or without parentheses."""
    depth = 0
    before = ""
    for at, token in enumerate(options):
        word = token.upper
        if depth == 0 and word in QUERIES:
            is_versioning = word == "WITH" and options[at + 1].upper == "SYSTEM"
            if not is_versioning and before != "=":
                return True
        if word == "(" and depth == 0:
            inside = [token.upper for token in options[at:] if token.upper != "("]
            if inside and inside[0] in QUERIES:
                return True
        depth += {"(": 1, ")": -1}.get(word, 0)
        before = word
    return False
