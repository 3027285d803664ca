"""The text of a SELECT: the places of its parts, and errors that name a place.

Spark gets expressions as they were written, with only the column names completed.
sqlglot's tree is used to analyse a text, but SQL generated from it may differ from
what was written. So parts are cut out of the text by their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError

from databus.schemas.errors import SettingsError

_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
_END = frozenset({TokenType.UNION, TokenType.SEMICOLON})
# Tokens of `LEFT JOIN` and its kin, which do not belong to the condition before them.
_BEFORE_JOIN = frozenset({TokenType.LEFT, TokenType.INNER, TokenType.OUTER})


@dataclass(slots=True)
class Clauses:
    """The tokens of one SELECT's parts; each part has at least one."""

    items: list[list[Token]] = field(default_factory=lambda: [[]])
    has_from: bool = False
    conditions: list[list[Token]] = field(default_factory=list)  # of the joins
    where: list[Token] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SqlText:
    """A text in Spark's dialect, and its name in messages."""

    name: str
    text: str

    def parse(self) -> list[exp.Expr]:
        """Return the trees of its statements; raises SettingsError if it is not Spark SQL."""
        dialect = Spark()
        try:
            found = dialect.parser().parse(self.tokens(), self.text)
        except ParseError as error:
            first = error.errors[0] if error.errors else {}
            where = f", line {first.get('line')}, column {first.get('col')}" if first else ""
            problem = first.get("description") or str(error)
            raise SettingsError(f"{self.name}{where}: not Spark SQL: {problem}") from error
        return [statement for statement in found if statement is not None]

    def tokens(self) -> list[Token]:
        """Return the tokens; raises SettingsError for a text that cannot be tokenized."""
        try:
            return Spark().tokenize(self.text)
        except TokenError as error:
            raise SettingsError(f"{self.name}: not Spark SQL: {error}") from error

    def refusal(self, at: exp.Expr | None, problem: str) -> SettingsError:
        """Return the error for a part, with its line and column."""
        offset = None if at is None else begin_of(at)
        where = "" if offset is None else f", {self.place(offset)}"
        return SettingsError(f"{self.name}{where}: {problem}")

    def place(self, offset: int) -> str:
        """Return a character's line and column, both counted from 1."""
        before = self.text[:offset]
        return (
            f"line {before.count(chr(10)) + 1}, column {offset - (before.rfind(chr(10)) + 1) + 1}"
        )

    def clauses(self) -> list[Clauses]:
        """Return the parts of each SELECT; for a text without subqueries."""
        tokens = self.tokens()
        begins = [at for at, token in enumerate(tokens) if token.token_type is TokenType.SELECT]
        return [_clauses(tokens, begin + 1) for begin in begins]

    def spliced(
        self, tokens: list[Token], columns: Iterator[exp.Column], name: Callable[[exp.Column], str]
    ) -> str:
        """Return the text of tokens, with its column names replaced."""
        begin, end = tokens[0].start, tokens[-1].end + 1
        text = self.text[begin:end]
        # From the end to the begin, so that the offsets before a replaced name stay right.
        spans = sorted(((*_span(column), name(column)) for column in columns), reverse=True)
        for first, last, written in spans:
            text = text[: first - begin] + written + text[last - begin :]
        return text


def begin_of(node: exp.Expr) -> int | None:
    """Return the offset of a node's first character, or None."""
    starts = [found.meta["start"] for found in node.walk() if "start" in found.meta]
    return min(starts, default=None)


def without_alias(tokens: list[Token], item: exp.Expr) -> list[Token]:
    """Return the tokens of a SELECT item without `AS name`."""
    if not isinstance(item, exp.Alias):
        return tokens
    begin = item.args["alias"].meta["start"]
    kept = [token for token in tokens if token.start < begin]
    return kept[:-1] if kept[-1].token_type is TokenType.ALIAS else kept


def _span(column: exp.Column) -> tuple[int, int]:
    parts = column.parts
    return parts[0].meta["start"], parts[-1].meta["end"] + 1


def _clauses(tokens: list[Token], begin: int) -> Clauses:
    found = Clauses()
    into = found.items[-1]
    depth = 0
    previous: Token | None = None
    for token in tokens[begin:]:
        kind = token.token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth < 0 or (depth == 0 and kind in _END):
            break
        if depth or kind in _CLOSING:
            into.append(token)
        elif kind is TokenType.COMMA and not found.has_from:
            into = []
            found.items.append(into)
        # `IS DISTINCT FROM` is an operator, and no clause begins there.
        elif kind is TokenType.FROM and not _is_distinct_from(previous):
            found.has_from, into = True, []
        elif kind is TokenType.ON:
            into = []
            found.conditions.append(into)
        elif kind is TokenType.JOIN:
            while into and into[-1].token_type in _BEFORE_JOIN:
                into.pop()
            into = []
        elif kind is TokenType.WHERE:
            into = found.where
        else:
            into.append(token)
        previous = token
    return found


def _is_distinct_from(previous: Token | None) -> bool:
    return previous is not None and previous.token_type is TokenType.DISTINCT
