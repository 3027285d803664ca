"""A copy of a table that is made of its changes, against which checksums are held."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from databus.client.spark.verify.source_table import SourceTable
from databus.client.spark.verify.texts import digest, row_text
from databus.relay.sources.source import RowChange
from databus.schemas.event.metadata import Op


class Replica:
    """The digests of rows as the stream tells them, against which checksums are held."""

    def __init__(self, table: SourceTable, checksums: str, keys: int) -> None:
        self._text = row_text(table.shape.columns, table.shape.dialect)
        self._names = table.shape.names
        self._checksums = checksums
        # The stream begins behind these rows.
        rows = table.rows_of([(key,) for key in range(keys)])
        self._rows = {row["id"]: self._digest(row) for row in rows}
        self.wrong: list[Mapping[str, Any]] = []
        self.seen = 0

    def take(self, change: RowChange) -> None:
        """Take the next change; of a checksum, note whether it holds."""
        if change.table.source == self._checksums:
            self.seen += change.op is Op.INSERT
            if change.op is Op.INSERT and not self._holds(change.row):
                self.wrong.append(change.row)
            return
        if change.before is not None:
            self._rows.pop(change.before["id"], None)
        if change.op is Op.DELETE:
            self._rows.pop(change.row["id"], None)
        else:
            self._rows[change.row["id"]] = self._digest(change.row)

    def _digest(self, row: Mapping[str, Any]) -> int:
        return digest(self._text([row[name] for name in self._names]))

    def _holds(self, row: Mapping[str, Any]) -> bool:
        after, last = row["after_key"], row["last_key"]
        found = [
            value
            for key, value in self._rows.items()
            if (after is None or key > after) and (last is None or key <= last)
        ]
        xor = 0
        for value in found:
            xor ^= value
        return (len(found), xor) == (row["chunk_rows"], row["digest"])
