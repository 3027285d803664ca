"""Positions of SQL sinks: a row of `databus_positions`, written in the transaction with the rows.

    databus_positions   sink, physical_source, position, version (grows with each transaction),
                        owner (of the last one: a sink in one process)

A transaction first raises the version that it knows, which locks the row: of two processes that
write as the same sink, the first to commit wins, and the other one stops.

The row is made when the sink is opened for the first time, without a position: where it is missing
later the database has lost it, and rows perhaps too.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready.sql.existing import make_once
from databus.client.sinks.ready.sql.options import SqlOptions
from databus.client.sql.column_types import binary_text, text
from databus.client.sql.names import in_schema

_POSITIONS = sa.Table(
    "databus_positions",
    sa.MetaData(),
    sa.Column("sink", binary_text(100), primary_key=True),
    sa.Column("physical_source", binary_text(255), primary_key=True),
    sa.Column("position", text()),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("owner", binary_text(32), nullable=False),
)


class StoredPosition:
    """The position of one sink over one physical source."""

    def __init__(self, options: SqlOptions, opening: Opening) -> None:
        self._sink, self._source = opening.sink, opening.physical_source
        self._is_first = opening.is_first
        self._owner, self._versions = options._owner, options._versions
        self._table = in_schema(_POSITIONS, options.target_schema)
        self._is_mine = sa.and_(
            self._table.c.sink == self._sink, self._table.c.physical_source == self._source
        )
        self._takes_over = opening.takes_over
        self._version = 0
        self.position: Position | None = None

    def read(self, connection: Connection) -> Position | None:
        """Make what is not there at the very start, and read the position; raise SinkError."""
        make_once(connection, self._table)
        found = connection.execute(self._table.select().where(self._is_mine)).first()
        if found is None:
            self._begin(connection)
            connection.commit()
            self.committed()
            return None
        connection.rollback()
        self._version = found.version
        if self._takes_over:
            self._versions.pop(self._source, None)
        # Also if a commit was not answered: then the version is another one, and the owner is not.
        known = self._versions.setdefault(self._source, self._version)
        if found.owner != self._owner and known != self._version:
            raise self._taken()
        self.position = Position.from_json(found.position) if found.position else None
        return self.position

    def _begin(self, connection: Connection) -> None:
        """Make the row; raise SinkError if it must have been there."""
        if not self._is_first or self._source in self._versions:
            raise SinkError(
                f"{self._table.fullname} has no row of the sink {self._sink} over {self._source}, "
                "which has been there: the database has lost it, or is another one. Begin anew "
                "with another name of the sink and a bootstrap"
            )
        row = {"sink": self._sink, "physical_source": self._source, "version": 0}
        connection.execute(self._table.insert(), {**row, "owner": self._owner})

    def claim(self, connection: Connection) -> None:
        """Begin a transaction of this process; raise SinkError if another one has written."""
        values = {"version": self._version + 1, "owner": self._owner}
        is_known = self._table.c.version == self._version
        update = self._table.update().where(self._is_mine, is_known).values(values)
        if connection.execute(update).rowcount != 1:
            raise self._taken()
        self._version += 1

    def committed(self) -> None:
        """Take note that the transaction is committed."""
        self._versions[self._source] = self._version

    def store(self, connection: Connection, position: Position) -> None:
        """Write the position within the transaction."""
        text = position.to_json()
        connection.execute(self._table.update().where(self._is_mine).values(position=text))
        self.position = position

    def _taken(self) -> SinkError:
        return SinkError(
            f"another process writes as the sink {self._sink} over {self._source}, or its row of "
            f"{self._table.name} was changed: stop one of them, or give one another name; "
            "`databus sink retry` has this one go on, and the other one stops"
        )
