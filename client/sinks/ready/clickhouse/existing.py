"""What the server says of a table that is there, and whether rows fit into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready.clickhouse.definitions import VERSION, Shape
from databus.client.sinks.ready.clickhouse.names import listed, literal
from databus.client.sinks.ready.clickhouse.server import Server
from databus.client.sinks.ready.clickhouse.types import column_type, fits, held_type
from databus.client.sql.modes import DELETED
from databus.schemas.columns.avro_columns import AvroColumn

_WRITTEN = "('', 'DEFAULT')"  # not those that the server computes


class Existing:
    """Looks at tables."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def columns(self, table: str) -> dict[str, str]:
        """Return the type of each column that can be written; none = there is no such table."""
        found = self._server.rows(
            f"SELECT name, type FROM system.columns WHERE {self._is_it(table, 'table')} "
            f"AND default_kind IN {_WRITTEN} ORDER BY position"
        )
        return {str(one["name"]): str(one["type"]) for one in found}

    def check(self, source: str, table: str, shape: Shape, columns: Sequence[AvroColumn]) -> None:
        """Raise SinkError if a table that somebody else has made cannot take the rows."""
        held = self.columns(table)
        wanted = [*(one.name for one in columns), *shape.extras]
        if lacks := [one for one in wanted if one not in held]:
            raise SinkError(
                f"the table {table} was there and lacks {', '.join(lacks)}, which rows of {source} "
                "have: add the columns, leave them out, or let `table` name another one"
            )
        check_fits(source, table, held, columns)
        for name, kind in shape.extras.items():
            if held[name] != kind:
                raise SinkError(
                    f"the table {table} was there, and {name} is {held[name]}, not {kind}"
                )
        if shape.mode.has_keys:
            self._check_engine(table, shape, columns)

    def _check_engine(self, table: str, shape: Shape, columns: Sequence[AvroColumn]) -> None:
        (found,) = self._server.rows(
            "SELECT engine, engine_full, sorting_key FROM system.tables "
            f"WHERE {self._is_it(table, 'name')}"
        )
        wanted = f"ReplacingMergeTree({VERSION}, {DELETED})"
        arguments = str(found["engine_full"]).partition("(")[2].partition(")")[0]
        is_one = str(found["engine"]).endswith("ReplacingMergeTree")
        if not is_one or listed(arguments)[-2:] != [VERSION, DELETED]:
            raise SinkError(
                f"the table {table} was there and its engine is {found['engine_full']!s:.200}: the "
                f"sink needs {wanted}, or a Replicated or Shared one with these two; or let "
                "`table` name another table"
            )
        keys = shape.keys(columns)
        if sorted(listed(str(found["sorting_key"]))) != sorted(keys):
            raise SinkError(
                f"the table {table} was there and is sorted by {found['sorting_key']}: rows are "
                f"replaced by ORDER BY, which must be {', '.join(keys)}, in any order"
            )

    def _is_it(self, table: str, column: str) -> str:
        return f"database = {literal(self._server.database)} AND {column} = {literal(table)}"


def check_fits(
    source: str, table: str, held: Mapping[str, str], columns: Sequence[AvroColumn]
) -> None:
    """Raise SinkError for a column whose type does not have all values of the source's."""
    for column in columns:
        if column.name in held and not fits(held_type(held[column.name]), column):
            raise SinkError(
                f"the table {table} has {column.name} as {held[column.name]}, and rows of {source} "
                f"need {column_type(column)}, a wider type, or String: alter it"
            )
