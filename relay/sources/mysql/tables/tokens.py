"""The words of a statement, as the server reads them. Pure.

sqlglot cuts the text. What it does not know of this server is done around it:
executable comments (`/*!50100 … */`, `/*M! … */`) are opened where the server
executes them, and the text of a string is taken apart by the server's rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sqlglot import TokenType
from sqlglot.dialects.mysql import MySQL
from sqlglot.errors import SqlglotError

ANSI_QUOTES = 1 << 2
NO_BACKSLASH_ESCAPES = 1 << 20

TableName = tuple[str, str]  # database, table

_PIECES = re.compile(
    r"""
    (?P<kept> `(?:[^`]|``)*` | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
  | (?P<open> /\*(?P<maria>M?)!(?P<version>\d{5,6})? )
  | (?P<comment> /\*.*?\*/ | \#[^\n]* | --(?=\s|$)[^\n]* )
  | (?P<close> \*/ )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"''|\"\"|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}
_ESCAPES |= {"%": "\\%", "_": "\\_"}
_ANY_NAME = re.compile(
    r"`((?:[^`]|``)*)`|\"((?:[^\"\\]|\"\"|\\.)*)\"|'(?:[^'\\]|''|\\.)*'|([\w$]+)", re.DOTALL
)
_STRINGS = frozenset({TokenType.STRING, TokenType.NATIONAL_STRING})
# Not executed by MariaDB: numbers of MySQL versions that it never was.
_MYSQL_ONLY = range(50700, 100000)


class _Tokenizer(MySQL.Tokenizer):
    COMMANDS: ClassVar[set[TokenType]] = set()


class _AnsiTokenizer(_Tokenizer):
    QUOTES = ["'"]
    IDENTIFIERS = ["`", '"']


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a name in quotes, a string or a mark; `text` without quotes."""

    text: str
    is_name: bool = False  # quoted, so never a keyword
    is_string: bool = False

    @property
    def upper(self) -> str:
        """The keyword it may be; empty for what is quoted."""
        return "" if self.is_name or self.is_string else self.text.upper()


def quote(*parts: str) -> str:
    """Return a name as a statement has it, its parts (database, table, column) joined by dots."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def without_comments(text: str, version: int = 0, *, is_mariadb: bool = True) -> str:
    """Return a statement without comments, those opened that this server executes."""
    found: list[str] = []
    at, skipped_from = 0, -1
    depth = 0
    for match in _PIECES.finditer(text):
        if match["open"] is not None:
            depth += 1
            if skipped_from < 0:
                found.append(text[at : match.start()])
                if not _is_executed(match, version, is_mariadb):
                    skipped_from = depth
        elif match["close"] is not None and depth:
            if skipped_from < 0:
                found.append(text[at : match.start()])
            elif skipped_from == depth:
                skipped_from = -1
            depth -= 1
        elif match["comment"] is not None and skipped_from < 0:
            found.append(text[at : match.start()])
        else:
            continue
        found.append(" ")
        at = match.end()
    if skipped_from < 0:
        found.append(text[at:])
    return "".join(found)


def _is_executed(match: re.Match[str], version: int, is_mariadb: bool) -> bool:
    if match["maria"] and not is_mariadb:
        return False
    number = int(match["version"] or 0)
    if is_mariadb and not match["maria"] and number in _MYSQL_ONLY:
        return False
    return not version or number <= version


def tokens(text: str, sql_mode: int = 0) -> list[Token]:
    """Return the tokens of a statement without comments; raises ValueError."""
    tokenizer = _AnsiTokenizer() if sql_mode & ANSI_QUOTES else _Tokenizer()
    try:
        raw = tokenizer.tokenize(text)
    except SqlglotError as error:
        raise ValueError(f"the statement {text[:80]!r} cannot be read: {error}") from error
    found: list[Token] = []
    end = -1
    for token in raw:
        piece = text[token.start : token.end + 1]
        is_joined = token.start == end + 1
        end = token.end
        if token.token_type in _STRINGS:
            found.append(Token(_unquoted(piece, sql_mode), is_string=True))
        elif token.token_type is TokenType.IDENTIFIER:
            mark = piece[0]
            found.append(Token(piece[1:-1].replace(mark * 2, mark), is_name=True))
        elif is_joined and _goes_on(found, piece):
            found[-1] = Token(found[-1].text + piece)  # a name that begins with digits
        else:
            found += [Token(word) for word in piece.split()]
    return found


def _goes_on(found: Sequence[Token], piece: str) -> bool:
    last = found[-1] if found else None
    if last is None or last.is_name or last.is_string:
        return False
    return last.text.isalnum() and last.text[0].isdigit() and piece[0].isalpha()


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


def every_name(text: str, database: str, sql_mode: int = 0) -> frozenset[TableName]:
    """Return everything in a text that could be a table's name."""
    found: set[TableName] = set()
    before, end = "", 0
    for match in _ANY_NAME.finditer(text):
        quoted = match[2] if sql_mode & ANSI_QUOTES else None
        name = (match[1] or "").replace("``", "`") or quoted or match[3] or ""
        if name:
            found.add((database, name))
        if name and before and text[end : match.start()].strip() == ".":
            found.add((before, name))
        before, end = name, match.end()
    return frozenset(found)


class Reader:
    """Reads tokens from the left; what is asked for and not there raises ValueError."""

    def __init__(self, found: Sequence[Token], database: str = "") -> None:
        self._tokens = found
        self._at = 0
        self.database = database

    @property
    def is_at_end(self) -> bool:
        """Whether nothing is left, or nothing but a semicolon."""
        return all(token.upper == ";" for token in self._tokens[self._at : self._at + 2])

    def peek(self, ahead: int = 0) -> str:
        """Return the keyword or mark that follows; empty for a name, a string or the end."""
        at = self._at + ahead
        return self._tokens[at].upper if at < len(self._tokens) else ""

    def has_ahead(self, *words: str) -> bool:
        """Whether one of these words is anywhere in the rest."""
        return any(token.upper in words for token in self._tokens[self._at :])

    def is_string(self) -> bool:
        """Whether a string follows."""
        return self._at < len(self._tokens) and self._tokens[self._at].is_string

    def take(self) -> Token:
        """Return the next token."""
        if self._at >= len(self._tokens):
            raise ValueError("the statement ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def accept(self, *words: str) -> bool:
        """Pass over these words, all of them in this order; say whether they were there."""
        if all(self.peek(ahead) == word for ahead, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def accept_any(self, *words: str) -> str:
        """Pass over one of these words; return it, or an empty text."""
        word = self.peek()
        if word and word in words:
            self._at += 1
            return word
        return ""

    def expect(self, *words: str) -> None:
        """Pass over these words."""
        if not self.accept(*words):
            raise ValueError(f"{' '.join(words)} is expected {self._place()}")

    def word(self) -> str:
        """Return a name or a word."""
        token = self.take()
        if token.is_string or not (
            token.is_name or token.text[0].isalnum() or token.text[0] in "_$"
        ):
            raise ValueError(f"a name is expected {self._place(-1)}")
        return token.text

    def table(self) -> TableName:
        """Read `table` or `database.table`."""
        if self.accept("."):
            return self.database, self.word()
        first = self.word()
        return (first, self.word()) if self.accept(".") else (self.database, first)

    def column(self) -> str:
        """Read a column's name, which may stand behind its table's."""
        name = self.word()
        while self.accept("."):
            name = self.word()
        return name

    def skip_parentheses(self) -> None:
        """Pass over what stands in parentheses, which follow."""
        self.expect("(")
        depth = 1
        while depth:
            depth += {"(": 1, ")": -1}.get(self.take().upper, 0)

    def rest_of_piece(self) -> list[Token]:
        """Return all up to the next comma or closing parenthesis that is not in parentheses."""
        start = self._at
        while self._at < len(self._tokens) and self.peek() not in (",", ")", ";"):
            if self.peek() == "(":
                self.skip_parentheses()
            else:
                self._at += 1
        return list(self._tokens[start : self._at])

    def error(self) -> ValueError:
        """Return an error about what follows."""
        return ValueError(f"not understood {self._place()}")

    def _place(self, ahead: int = 0) -> str:
        at = self._at + ahead
        near = " ".join(token.text for token in self._tokens[at : at + 5])
        return f"at {near!r}" if near else "at its end"
