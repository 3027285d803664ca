"""The table `databus_tables`: for which schema a table was made, and which sink filled it.

    name, source, version, columns: the schema of the rows that were written last,
    filled_by: the sink that left rows in it, noted: grows with each note

So a table that is gone or empty, where nobody but the sink should have emptied it, is found, and
not filled with a few rows more.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from databus.client.sinks.errors import SinkError
from databus.client.sinks.ready.clickhouse.names import identifier, literal
from databus.client.sinks.ready.clickhouse.server import Server
from databus.schemas.columns.avro_columns import WriterSchema

TABLE = "databus_tables"
_COLUMNS = (
    "name String, source String, version Int64, columns String, filled_by String, noted UInt64"
)


@dataclass(frozen=True, slots=True)
class Note:
    """What is known of a table."""

    name: str
    schema: WriterSchema
    filled_by: str = ""
    noted: int = 0


class Notes:
    """The notes of one sink."""

    def __init__(self, server: Server, sink: str) -> None:
        self._server, self._sink = server, sink
        self._place = server.place(TABLE)
        self._known: dict[str, Note | None] = {}  # by source

    def begin(self, *, is_first: bool) -> None:
        """Make the table, if it is not there; raise SinkError if it has been."""
        if not is_first and not self.is_there(TABLE):
            raise SinkError(
                f"{self._place} is not there any more, and tables may be gone with it: begin anew "
                "with another name of the sink and a bootstrap"
            )
        engine = "ENGINE = ReplacingMergeTree(noted) ORDER BY (name, source)"
        self._server.run(f"CREATE TABLE IF NOT EXISTS {self._place} ({_COLUMNS}) {engine}")

    def is_there(self, table: str) -> bool:
        """Return whether the database has a table."""
        where = f"database = {literal(self._server.database)} AND name = {literal(table)}"
        return bool(self._server.rows(f"SELECT 1 AS found FROM system.tables WHERE {where}"))

    def read(self, name: str, source: str) -> Note | None:
        """Return the note of a table: another lane may have written it."""
        found = self._server.rows(
            f"SELECT * FROM {self._place} FINAL "
            f"WHERE name = {literal(name)} AND source = {literal(source)}"
        )
        note = self._known[source] = _note(found[0]) if found else None
        return note

    def schema(self, name: str, schema: WriterSchema) -> None:
        """Note the schema that a table has now."""
        was = self.read(name, schema.source) or Note(name, schema)
        self._write(replace(was, schema=schema))

    def check_there(self, name: str, source: str) -> None:
        """Raise SinkError for a table that is not there, and was filled."""
        if self._is_filled(name, source):
            raise SinkError(
                f"the table {name}, which has had rows of {source}, is not there any more: "
                f"{self._remedy(name, source)}"
            )

    def check_rows(self, name: str, source: str) -> None:
        """Raise SinkError for a table that was filled, and is empty: deleted rows stay in it."""
        place = self._server.place(name)
        if self._is_filled(name, source) and not self._server.rows(
            f"SELECT 1 FROM {place} LIMIT 1"
        ):
            raise SinkError(
                f"the table {name} has lost its rows of {source}, which somebody else has removed: "
                f"{self._remedy(name, source)}"
            )

    def filled(self, name: str, source: str) -> None:
        """Note that a table has rows of this sink."""
        if not self._is_filled(name, source):
            note = self.read(name, source)
            if note is not None and note.filled_by != self._sink:
                self._write(replace(note, filled_by=self._sink))

    def _is_filled(self, name: str, source: str) -> bool:
        note = self._known[source] if source in self._known else self.read(name, source)
        return note is not None and note.filled_by == self._sink

    def _write(self, note: Note) -> None:
        note = replace(note, noted=note.noted + 1)
        texts = (note.name, note.schema.source, note.schema.text, note.filled_by)
        name, source, text, filled_by = map(literal, texts)
        values = f"{name}, {source}, {note.schema.version}, {text}, {filled_by}, {note.noted}"
        self._server.run(f"INSERT INTO {self._place} VALUES ({values})")
        self._known[note.schema.source] = note

    def _remedy(self, name: str, source: str) -> str:
        where = f"name = {literal(name)} AND source = {literal(source)}"
        sink, argument = shlex.quote(self._sink), shlex.quote(source)
        database = identifier(self._server.database)
        return (
            f"to load them again, DELETE FROM {database}.{TABLE} WHERE {where}; then databus sink "
            f"retry {sink} -c FILE, and databus sink reload {sink} {argument} -c FILE"
        )


def _note(row: dict[str, object]) -> Note:
    texts = {name: str(value) for name, value in row.items()}
    schema = WriterSchema(texts["source"], 0, int(texts["version"]), texts["columns"])
    return Note(texts["name"], schema, texts["filled_by"], int(texts["noted"]))
