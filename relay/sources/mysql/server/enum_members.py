"""Finds ENUM and SET members that the server's catalogue cannot show.

information_schema is in utf8mb3, and shows `?` for a character beyond it. On MariaDB a
variable of the column's type gives the real member. MySQL has no such way, so the member
is marked as unknown. Logged rows that need it are refused (`rows.columns.check_members`)
unless the log itself has the members. A scan selects the texts of such a column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from databus.relay.sources.mysql.rows.charsets import BINARY
from databus.relay.sources.mysql.rows.columns import SqlType, parse_sql_type
from databus.relay.sources.mysql.rows.layout import DefinedColumn, quoted_member
from databus.relay.sources.mysql.tables.ddl_tokens import quote
from databus.schemas.table import UNKNOWN_CHARACTER

# Sets with characters beyond utf8mb3, and bytes.
_BEYOND_CATALOGUE = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030", BINARY})

# Runs a query for one value; returns None when the server does not know or allow it.
Ask = Callable[[str], str | None]


def with_members(column: DefinedColumn, database: str, table: str, ask: Ask) -> DefinedColumn:
    """Return a column with its real members; unknown ones are marked."""
    if "?" not in column.sql_type or column.charset not in _BEYOND_CATALOGUE:
        return column
    try:
        sql = parse_sql_type(column.sql_type)
    except ValueError:
        return column  # said when there are rows of it
    if not sql.members:
        return column
    place = quote(database, table, column.name)
    members = [
        _member(sql, index, place, column.charset, ask) if "?" in member else member
        for index, member in enumerate(sql.members)
    ]
    return replace(column, sql_type=f"{sql.name}({','.join(map(quoted_member, members))})")


def _member(sql: SqlType, index: int, place: str, charset: str | None, ask: Ask) -> str:
    value = index + 1 if sql.name == "enum" else 1 << index
    text = "x" if charset == BINARY else "CONVERT(x USING utf8mb4)"
    answer = ask(
        f"BEGIN NOT ATOMIC DECLARE x TYPE OF {place}; SET x = {value}; SELECT HEX({text}); END"
    )
    try:
        if answer is not None:
            return bytes.fromhex(answer).decode("utf-8")
    except ValueError:
        pass  # bytes that are not valid text
    return sql.members[index].replace("?", UNKNOWN_CHARACTER)
