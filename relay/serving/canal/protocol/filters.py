"""Canal's filters of tables: Perl's regular expressions, with commas between them. Pure.

An expression is compared with the whole of `schema.table`, without regard to case. What a client
sends is run by RE2, whose time is linear in the length of the text: Perl's own way, which is that
of Python's `re`, can be made to take years by a few characters. So there are no look-around
assertions and no back references; an error says which part is refused.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from databus.conf.extras import how_to_install
from databus.relay.serving.canal.protocol.errors import BAD_REQUEST, CanalError

MOST_CHARS = 64 << 10
MOST_EXPRESSIONS = 1000
_MOST_MEMORY_BYTES = 8 << 20  # of one compiled filter
_OPENING, _CLOSING = "{[(", "}])"


class Matcher(Protocol):
    """A compiled expression."""

    def fullmatch(self, text: str) -> Any:
        """Return a match of the whole text; None without one."""
        ...


class TableFilter:
    """Decides which tables pass: those of the white list that are not on the black one."""

    def __init__(self, white: str = "", black: str = "") -> None:
        """An empty white list passes all tables, an empty black one removes none.

        Raises CanalError for an expression that cannot be used.
        """
        self.white, self.black = white, black
        self._white, self._black = _compile(white), _compile(black)
        self._known: dict[str, bool] = {}

    def passes(self, table: str) -> bool:
        """Return whether a table, `schema.table`, passes; what is of no table does."""
        if not table:
            return True
        found = self._known.get(table)
        if found is None:
            found = self._known[table] = self._decide(table.lower())
        return found

    def _decide(self, table: str) -> bool:
        if self._black is not None and self._black.fullmatch(table):
            return False
        return self._white is None or bool(self._white.fullmatch(table))


def split_filter(text: str) -> list[str]:
    """Return the expressions of a filter: commas inside brackets do not separate."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(0, depth - 1)
        elif char == "," and not depth:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]


def _compile(text: str) -> Matcher | None:
    if len(text) > MOST_CHARS:
        raise CanalError(
            BAD_REQUEST, f"the filter has {len(text)} characters; at most {MOST_CHARS} are taken"
        )
    parts = split_filter(text)
    if len(parts) > MOST_EXPRESSIONS:
        raise CanalError(
            BAD_REQUEST,
            f"the filter has {len(parts)} expressions; at most {MOST_EXPRESSIONS} are taken",
        )
    if not parts:
        return None
    re2 = _engine()
    options = re2.Options()
    options.case_sensitive = False
    options.dot_nl = True
    options.never_capture = True
    options.log_errors = False
    options.max_mem = _MOST_MEMORY_BYTES
    for part in parts:  # each alone, so that one cannot end the brackets of another
        _compile_one(part, options)
    return _compile_one("|".join(f"(?:{part})" for part in parts), options)


def _compile_one(text: str, options: Any) -> Matcher:
    re2 = _engine()
    try:
        compiled: Matcher = re2.compile(text, options)
    except re2.error as error:
        problem = error.args[0]
        shown = problem.decode("utf-8", "replace") if isinstance(problem, bytes) else problem
        raise CanalError(
            BAD_REQUEST,
            f"the filter {text[:200]!r} cannot be used: {shown}. Look-around assertions and back "
            "references are not taken: name the tables, or exclude some by `black_filter` of the "
            "destination in the relay's settings",
        ) from None
    return compiled


def _engine() -> Any:
    """Return the module of RE2; an extra, so it is imported only where it is used."""
    try:
        return import_module("re2")
    except ModuleNotFoundError as error:
        text = f"{error}: {how_to_install('canal')}"
        raise CanalError(BAD_REQUEST, text) from error
