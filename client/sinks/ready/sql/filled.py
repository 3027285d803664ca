"""Tables that a sink has filled: before it goes on, they must still be there, with rows.

`databus_tables` names in `filled_by` the sink that left rows in a table. So a table that is gone or
empty, where nobody but the sink should have emptied it, is found, and not filled with a few rows
more. A table whose rows were all deleted by the source is named by nobody.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready.sql.definitions import Shape
from databus.client.sql.column_types import binary_text
from databus.client.sql.modes import SOURCE
from databus.client.sql.names import quoted_text

FILLED_BY = "filled_by"


def filled_by_column() -> sa.Column[str]:
    """Return the column of `databus_tables`."""
    return sa.Column(FILLED_BY, binary_text(100), nullable=False, server_default="")


class FilledTables:
    """What a sink knows of the rows of its tables, on one connection.

    With `is_alone` nobody else writes as this sink, so it also knows which tables are empty.
    """

    def __init__(
        self, sink: str, noted: sa.Table, shape: Shape, connection: Connection, *, is_alone: bool
    ) -> None:
        self._sink, self._noted, self._shape = sink, noted, shape
        self._connection = connection
        # A history may be pruned by those who read it.
        self._sees_empty = is_alone and not shape.mode.is_history
        self._known: dict[str, bool] = {}  # by source: it has rows of this sink

    def is_filled(self, name: str, source: str) -> bool:
        """Return whether this sink has left rows in a table."""
        if source not in self._known:
            found = self._connection.execute(
                sa.select(self._noted.c[FILLED_BY]).where(self._is_it(name, source))
            ).scalar()
            self._known[source] = found == self._sink
        return self._known[source]

    def check_there(self, name: str, source: str) -> None:
        """Raise SinkError for a table that is not there, and was filled."""
        if self.is_filled(name, source):
            raise SinkError(
                f"the table {name}, which has had rows of {source}, is not there any more: "
                f"{self._remedy(name, source)}"
            )

    def check_rows(self, table: sa.Table, source: str) -> None:
        """Raise SinkError for a table that was filled, and is empty."""
        if self._sees_empty and self.is_filled(table.name, source):
            if self._has_rows(table, source):
                return
            raise SinkError(
                f"the table {table.name} has lost its rows of {source}, which somebody else has "
                f"removed: {self._remedy(table.name, source)}"
            )

    def wrote(self, table: sa.Table, source: str, changes: Sequence[Change]) -> None:
        """Note what a table has after these changes."""
        was = self.is_filled(table.name, source)
        if was and (not self._sees_empty or changes[-1].is_upsert):
            return
        if was is not self._has_rows(table, source):
            self._known[source] = not was
            values = {FILLED_BY: "" if was else self._sink}
            update = self._noted.update().where(self._is_it(table.name, source))
            self._connection.execute(update.values(values))

    def _has_rows(self, table: sa.Table, source: str) -> bool:
        column = self._shape.source_column if self._shape.mode.has_keys else SOURCE
        one = sa.select(sa.literal(1)).select_from(table).limit(1)
        if column:
            one = one.where(table.c[column] == source)
        return self._connection.execute(one).first() is not None

    def _is_it(self, name: str, source: str) -> sa.ColumnElement[bool]:
        return sa.and_(self._noted.c.name == name, self._noted.c.source == source)

    def _remedy(self, name: str, source: str) -> str:
        dialect = self._connection.dialect
        place, shown = (quoted_text(dialect, one) for one in (name, source))
        sink, argument = shlex.quote(self._sink), shlex.quote(source)
        return (
            f"to load them again, UPDATE {self._noted.fullname} SET {FILLED_BY} = '' WHERE name = "
            f"{place} AND source = {shown}; then databus sink retry {sink} -c FILE, and databus "
            f"sink reload {sink} {argument} -c FILE"
        )
