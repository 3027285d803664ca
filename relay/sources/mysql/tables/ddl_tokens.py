"""Tokens of a statement (names, strings, marks), and the reader that a parser uses. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from databus.relay.sources.mysql.tables.lexer import pieces
from databus.relay.sources.mysql.tables.sql_mode import NO_BACKSLASH_ESCAPES

TableName = tuple[str, str]  # database, table

_ANY_WORD = re.compile(r"`[^`]*`|[\w$\u0080-\U0010ffff]+|\.")
_BEYOND_NAMES = re.compile("[\U00010000-\U0010ffff]")
_ESCAPED = re.compile(r"''|\"\"|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_ESCAPES |= {"%": "\\%", "_": "\\_"}


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a name in quotes, a string or a mark; `text` without quotes."""

    text: str
    is_name: bool = False  # quoted, so never a keyword
    is_string: bool = False
    is_mark: bool = False  # neither a word nor a number

    @property
    def upper(self) -> str:
        """The keyword it may be; empty for what is quoted."""
        return "" if self.is_name or self.is_string else self.text.upper()


def quote(*parts: str) -> str:
    """Quote a name for a statement, its parts (database, table, column) joined by dots."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def tokens(text: str, sql_mode: int = 0) -> list[Token]:
    """Return the tokens of a statement without comments; raises ValueError."""
    return [_token(found, sql_mode) for found in pieces(text, sql_mode)]


def _token(found: re.Match[str], sql_mode: int) -> Token:
    piece = found[0]
    if found.lastgroup == "string":
        return Token(_unquoted(piece, sql_mode), is_string=True)
    if found.lastgroup == "name":
        mark = piece[0]
        return Token(_as_name(piece[1:-1].replace(mark * 2, mark)), is_name=True)
    return Token(_as_name(piece), is_mark=found.lastgroup == "mark")


def _as_name(text: str) -> str:
    """Return a name as the server stores it: `?` replaces characters beyond utf8mb3."""
    return _BEYOND_NAMES.sub("?", text)


def _unquoted(piece: str, sql_mode: int) -> str:
    inner = piece.lstrip("nN")
    mark = inner[0]
    inner = inner[1:-1]
    if sql_mode & NO_BACKSLASH_ESCAPES:
        return inner.replace(mark * 2, mark)

    def plain(match: re.Match[str]) -> str:
        if match[1]:
            return _ESCAPES.get(match[1], match[1])
        return mark if match[0][0] == mark else match[0]

    return _ESCAPED.sub(plain, inner)


_DIGITS = re.compile(r"(?:0x|x')(?P<hex>[0-9a-f]+)'?|(?:0b|b')(?P<bits>[01]+)'?", re.IGNORECASE)


def ascii_of_number(text: str) -> str | None:
    """Return the ASCII text of a literal such as `x'61'`, `0x61` or `b'01100001'`, or None."""
    found = _DIGITS.fullmatch(text)
    if found is None:
        return None
    number = int(found["hex"], 16) if found["hex"] else int(found["bits"], 2)
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return data.decode() if data.isascii() else None


def every_name(text: str, database: str, sql_mode: int = 0) -> frozenset[TableName]:
    """Return every possible table name in a text."""
    try:
        found = tokens(text, sql_mode)
    except ValueError:
        # Rather too many names than too few: capture stops for a watched one.
        found = [Token(word.strip("`")) for word in _ANY_WORD.findall(text)]
    names = {(database, token.text) for token in found if token.text and not token.is_string}
    triples = zip(found, found[1:], found[2:], strict=False)
    return frozenset(names | {(a.text, b.text) for a, dot, b in triples if dot.upper == "."})


class Reader:
    """Reads tokens from left to right; raises ValueError when an expected one is missing."""

    def __init__(self, found: Sequence[Token], database: str = "") -> None:
        self._tokens = found
        self._at = 0
        self.database = database

    @property
    def is_at_end(self) -> bool:
        """Whether nothing but perhaps a semicolon is left."""
        return all(token.upper == ";" for token in self._tokens[self._at : self._at + 2])

    def peek(self, ahead: int = 0) -> str:
        """Return the next keyword or mark; empty for a name, a string or the end."""
        at = self._at + ahead
        return self._tokens[at].upper if at < len(self._tokens) else ""

    def has_ahead(self, *words: str) -> bool:
        """Whether one of these words is anywhere in the rest."""
        return any(token.upper in words for token in self._tokens[self._at :])

    def is_string(self) -> bool:
        """Whether the next token is a string."""
        return self._at < len(self._tokens) and self._tokens[self._at].is_string

    def take(self) -> Token:
        """Return the next token."""
        if self._at >= len(self._tokens):
            raise ValueError("the statement ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    @property
    def place(self) -> int:
        """The number of tokens read, for `since`."""
        return self._at

    def since(self, place: int) -> tuple[Token, ...]:
        """Return the tokens read since a place."""
        return tuple(self._tokens[place : self._at])

    def accept(self, *words: str) -> bool:
        """Skip these words if they all follow in this order; return whether they did."""
        if all(self.peek(ahead) == word for ahead, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def accept_any(self, *words: str) -> str:
        """Skip one of these words if it follows; return it, or an empty text."""
        word = self.peek()
        if word and word in words:
            self._at += 1
            return word
        return ""

    def expect(self, *words: str) -> None:
        """Skip these words, which must follow."""
        if not self.accept(*words):
            raise ValueError(f"{' '.join(words)} is expected {self._place()}")

    def string(self) -> str:
        """Return a string, which may be written in hexadecimal or binary digits."""
        token = self.take()
        text = token.text if token.is_string else ascii_of_number(token.text)
        if text is None:
            raise ValueError(f"a string is expected {self._place(-1)}")
        return text

    def word(self) -> str:
        """Return a name or a word."""
        token = self.take()
        if token.is_string or token.is_mark:
            raise ValueError(f"a name is expected {self._place(-1)}")
        return token.text

    def table(self) -> TableName:
        """Read `table` or `database.table`."""
        if self.accept("."):  # `.table` is a table of the current database
            return self.database, self.word()
        first = self.word()
        return (first, self.word()) if self.accept(".") else (self.database, first)

    def column(self) -> str:
        """Read a column's name, which may be qualified by its table's."""
        name = self.word()
        while self.accept("."):
            name = self.word()
        return name

    def skip_parentheses(self) -> None:
        """Skip the parentheses that follow, with their content."""
        self.expect("(")
        depth = 1
        while depth:
            depth += {"(": 1, ")": -1}.get(self.take().upper, 0)

    def rest_of_piece(self) -> list[Token]:
        """Return all tokens up to the next comma or closing parenthesis at this level."""
        start = self._at
        while self._at < len(self._tokens) and self.peek() not in (",", ")", ";"):
            if self.peek() == "(":
                self.skip_parentheses()
            else:
                self._at += 1
        return list(self._tokens[start : self._at])

    def error(self) -> ValueError:
        """Return an error about the next token."""
        return ValueError(f"not understood {self._place()}")

    def _place(self, ahead: int = 0) -> str:
        at = self._at + ahead
        near = " ".join(token.text for token in self._tokens[at : at + 5])
        return f"at {near!r}" if near else "at its end"
