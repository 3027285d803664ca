"""Converts columns, and the members of ENUM and SET, to another character set. Pure."""

from __future__ import annotations

from dataclasses import replace

from databus.relay.sources.mysql.rows.charsets import (
    BINARY,
    byte_table,
    decoder_of,
    stored_bytes,
    stored_text,
)
from databus.relay.sources.mysql.rows.columns import parse_sql_type
from databus.relay.sources.mysql.rows.layout import DefinedColumn, quoted_member
from databus.relay.sources.mysql.tables.column_spec import (
    BLOBS,
    TEXTS,
    ColumnSpec,
    Rules,
    of_size,
    text_type,
)
from databus.schemas.table import UNKNOWN_CHARACTER


def converted(column: DefinedColumn, charset: str, rules: Rules) -> DefinedColumn:
    """Return a column after `CONVERT TO CHARACTER SET`; a text may get a larger type."""
    if column.charset is None or column.charset == BINARY:
        return column
    kind, _, rest = column.sql_type.partition("(")
    if kind in ("enum", "set"):
        sql_type = _garbled(column, charset)
        has_name = charset != BINARY or rules.dialect.is_mariadb
        return replace(column, sql_type=sql_type, charset=charset if has_name else None)
    arguments = (int(rest.rstrip(")")),) if rest else ()
    if kind in TEXTS:
        characters = _MOST_BYTES[kind] // rules.char_bytes(column.charset)
        most = 1 if charset == BINARY else rules.char_bytes(charset)
        names = BLOBS if charset == BINARY else TEXTS
        sql_type = of_size(names, min(characters * most, 0xFFFFFFFF))
    else:
        sql_type = text_type(ColumnSpec(column.name, kind, arguments), charset, rules)
    return replace(column, sql_type=sql_type, charset=None if charset == BINARY else charset)


def _garbled(column: DefinedColumn, charset: str) -> str:
    """Return an ENUM or SET after a change of its character set.

    Servers keep the bytes of its members and interpret them in the new set.
    """
    before = column.charset or BINARY
    if before == charset:
        return column.sql_type
    sql = parse_sql_type(column.sql_type)
    decode = decoder_of("utf8mb4" if charset == BINARY else charset)
    try:
        if decode is None or any(_may_be_garbled(m, before, charset) for m in sql.members):
            raise ValueError
        members = [decode(stored_bytes(member, before)) for member in sql.members]
        if any(stored_text(member, charset) != member for member in members):
            raise ValueError
    except ValueError as error:
        raise ValueError(
            f"which members column {column.name!r} has in {charset} is not known"
        ) from error
    return f"{sql.name}({','.join(map(quoted_member, members))})"


def _may_be_garbled(member: str, before: str, after: str) -> bool:
    """Whether a member may be the catalogue's rendering of bytes not valid in their set."""
    if (before, after) == ("utf8mb3", "utf8mb4") or byte_table(before) is not None:
        return False
    return not member or "?" in member or UNKNOWN_CHARACTER in member


_MOST_BYTES = dict(zip(TEXTS, (0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF), strict=True))
