"""Splits a statement into lexemes by the rules of the servers' own lexer. Pure.

A word may begin with digits: `2015_foo` and `0xg` are names, `2015`, `1e5` and
`0x1f` are numbers, and after a name and its dot (`shop.1e5`) all of them are
names. What quotes mean depends on the session's `sql_mode`. Executable comments
(`/*!50100 … */`, `/*M! … */`) are opened where the server executes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from databus.relay.sources.mysql.tables.sql_mode import ANSI_QUOTES, NO_BACKSLASH_ESCAPES

_LETTER = r"[0-9A-Za-z_$\u0080-\U0010ffff]"
_COMMENT = r"/\*.*?\*/ | \#[^\n]* | --(?=[\s\x00-\x1f]|$)[^\n]*"
_NUMBER = rf"""
    [xX]'[0-9a-fA-F]*' | [bB]'[01]*'
  | 0x[0-9a-fA-F]+ (?!{_LETTER}) | 0b[01]+ (?!{_LETTER})
  | [0-9]+ [eE] [+-]?[0-9]+
  | [0-9]+ (?!{_LETTER}) (?:\.[0-9]* (?:[eE][+-]?[0-9]+)?)?
  | \.[0-9]+ (?:[eE][+-]?[0-9]+)?
"""
_DOT = re.compile(r"(?P<mark>\.)")
_NAME_BEHIND_DOT = re.compile(f"(?P<word>{_LETTER}+)")
# MariaDB does not execute comments with these numbers, which are MySQL's versions.
_MYSQL_ONLY = range(50700, 100000)


def _quotes(sql_mode: int) -> tuple[str, str]:
    """Return the patterns of a string and of a quoted name."""
    single, double = "'(?:[^']|'')*'", '"(?:[^"]|"")*"'
    name = "`(?:[^`]|``)*`"
    if sql_mode & ANSI_QUOTES:
        name += f"|{double}"
    if not sql_mode & NO_BACKSLASH_ESCAPES:
        single, double = r"'(?:[^'\\]|\\.|'')*'", r'"(?:[^"\\]|\\.|"")*"'
    return (single if sql_mode & ANSI_QUOTES else f"{single}|{double}"), name


@cache
def _comments(sql_mode: int) -> re.Pattern[str]:
    string, name = _quotes(sql_mode)
    return re.compile(
        rf"(?P<kept> {string} | {name} )"
        r"| (?P<open> /\*(?P<maria>M?)!(?P<version>\d{5,6})? )"
        rf"| (?P<comment> {_COMMENT} ) | (?P<close> \*/ )",
        re.VERBOSE | re.DOTALL,
    )


@cache
def _words(sql_mode: int) -> re.Pattern[str]:
    string, name = _quotes(sql_mode)
    return re.compile(
        rf"\s+ | (?P<number> {_NUMBER} ) | (?P<string> [nN]?(?:{string}) ) | (?P<name> {name} )"
        rf"| (?P<word> {_LETTER}+ ) | (?P<mark> [^'\"`] )",
        re.VERBOSE | re.DOTALL,
    )


def pieces(text: str, sql_mode: int = 0) -> Iterator[re.Match[str]]:
    """Yield the lexemes of a statement without comments; raises ValueError.

    `lastgroup` of each is its kind: string, name (in quotes), number, word or mark.
    """
    words = _words(sql_mode & (ANSI_QUOTES | NO_BACKSLASH_ESCAPES))
    at = 0
    is_name = is_behind_dot = False
    while at < len(text):
        found = _NAME_BEHIND_DOT.match(text, at) if is_behind_dot else None
        # Directly after a name, `.5` is a dot and a name, not a number.
        if is_name and text[at] == ".":
            found = _DOT.match(text, at)
        found = found or words.match(text, at)
        if found is None:
            raise ValueError(f"the statement {text[:80]!r} has a quote without its end")
        at = found.end()
        is_behind_dot = is_name and found.lastgroup == "mark" and found[0] == "."
        is_name = found.lastgroup in ("name", "word")
        if found.lastgroup:
            yield found


def without_comments(
    text: str, version: int = 0, *, is_mariadb: bool = True, sql_mode: int = 0
) -> str:
    """Return a statement without comments; those that this server executes are unwrapped."""
    found: list[str] = []
    at, skipped_from = 0, -1
    depth = 0
    for match in _comments(sql_mode & (ANSI_QUOTES | NO_BACKSLASH_ESCAPES)).finditer(text):
        if match["open"] is not None:
            # Executable comments may contain others; a skipped one is skipped with all in it.
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
        found.append(" ")  # a comment separates words
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
