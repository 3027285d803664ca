"""Names in SQL statements: quoted whatever characters they have, and not too long."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from databus.schemas.errors import SettingsError

# MySQL and MariaDB, under the two names that SQLAlchemy has for them.
MYSQL = ("mysql", "mariadb")
_KNOWN = (*MYSQL, "postgresql", "sqlite")


def check_database(url: URL) -> None:
    """Raise SettingsError for a database that may not store each value unchanged."""
    if (name := url.get_backend_name()) not in _KNOWN:
        raise SettingsError(
            f"{url.render_as_string()}: tables can be kept in PostgreSQL, MariaDB, MySQL and "
            f"SQLite, and not in {name}"
        )


def run(connection: Connection, statement: str) -> None:
    """Run a statement without parameters: a percent sign in it is literal."""
    connection.exec_driver_sql(
        statement.replace("%", "%%") if formats(connection.dialect) else statement
    )


def quoted_text(dialect: sa.Dialect, text: str) -> str:
    """Return a text as a SQL string literal."""
    escaped = text.replace("'", "''")
    if dialect.name in MYSQL:
        escaped = escaped.replace("\\", "\\\\")
    return f"'{escaped}'"


def quoted(dialect: sa.Dialect, name: str) -> str:
    """Return a name as a quoted identifier, whatever characters it has."""
    return undoubled(dialect, str(dialect.identifier_preparer.quote_identifier(name)))


def undoubled(dialect: sa.Dialect, text: str) -> str:
    """Return a text of SQLAlchemy, which doubles percent signs for drivers that format."""
    return text.replace("%%", "%") if formats(dialect) else text


def quoted_table(dialect: sa.Dialect, table: sa.Table) -> str:
    """Return a table's quoted name, with its schema if it has one."""
    name = quoted(dialect, table.name)
    return name if table.schema is None else f"{quoted(dialect, table.schema)}.{name}"


def in_schema(table: sa.Table, schema: str) -> sa.Table:
    """Return the table in a schema; "" = the connection's own."""
    return table.to_metadata(sa.MetaData(), schema=schema) if schema else table


def formats(dialect: sa.Dialect) -> bool:
    """Return whether the driver reads a percent sign in a statement as a parameter."""
    return dialect.paramstyle in ("format", "pyformat")


def check_length(name: str, dialect: sa.Dialect) -> None:
    """Raise SettingsError for a name that the database would cut or refuse."""
    is_postgres = dialect.name == "postgresql"
    most, unit = (63, "bytes") if is_postgres else (64, "characters")
    length = len(name.encode() if is_postgres else name)
    if dialect.name in (*MYSQL, "postgresql") and length > most:
        raise SettingsError(
            f"{name!r} has {length} {unit}, but a name in {dialect.name} has {most} at most: "
            "give the table another name, or leave the column out"
        )
