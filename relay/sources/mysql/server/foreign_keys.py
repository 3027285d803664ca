"""Foreign keys that change rows of a table without logging them, from SHOW CREATE TABLE. Pure.

information_schema does not serve: on MariaDB its REFERENTIAL_CONSTRAINTS is empty for an account
that may only read the tables, as the one that captures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from databus.relay.sources.mysql.server.checks import Cascade
from databus.relay.sources.mysql.tables.ddl_tokens import Token, tokens

# Of a session, so that `cascades_of` reads what SHOW CREATE TABLE answers.
SESSION = "SET SESSION sql_mode = '', sql_quote_show_create = 1"
_VERBS = ("DELETE", "UPDATE")
_HARMLESS = ("RESTRICT", "NO")  # NO ACTION


def cascades_of(source: str, definition: str) -> Iterator[Cascade]:
    """Yield the foreign keys of a table that change its rows, by its SHOW CREATE TABLE."""
    for part in _parts(tokens(definition)):
        words = [token.upper for token in part]
        if "FOREIGN" not in words:
            continue
        name = part[1].text if words[0] == "CONSTRAINT" else ""
        for on, verb, rule, more in zip(
            words, words[1:], words[2:], [*words[3:], ""], strict=False
        ):
            if on == "ON" and verb in _VERBS and rule not in _HARMLESS:
                yield Cascade(
                    source, name, f"{verb} {rule} {more}" if rule == "SET" else f"{verb} {rule}"
                )


def _parts(found: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the parts of a table's body: what lies between its commas."""
    part: list[Token] = []
    depth = 0
    for token in found:
        mark = token.text if token.is_mark else ""
        depth += (mark == "(") - (mark == ")")
        if (depth == 1 and mark in ("(", ",")) or not depth:
            if part:
                yield part
            part = []
        else:
            part.append(token)
