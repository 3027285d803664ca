"""Changes of one table become rows: the net change of each key, or a row of each change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from databus.client.sinks.contract import Change, Row
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.ready.clickhouse.definitions import VERSION
from databus.client.sinks.ready.clickhouse.names import identifier
from databus.client.sinks.ready.clickhouse.row_binary import encoder, text_bytes
from databus.client.sinks.ready.clickhouse.server import Server
from databus.client.sinks.ready.clickhouse.tables import TargetTable
from databus.client.sinks.ready.clickhouse.types import MOMENT, held_type
from databus.client.sinks.ready.clickhouse.versions import VERSION_TYPE, version_of
from databus.client.sinks.ready.net_changes import net_changes
from databus.client.sinks.ready.rows import whole_row
from databus.client.sql.modes import DELETED
from databus.schemas.columns.avro_columns import Kind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_time_bytes = encoder(held_type(MOMENT), Kind.TIMESTAMP)


class TableWriter:
    """Writes to one table."""

    def __init__(self, server: Server, target: TargetTable, batch_bytes: int) -> None:
        self._server, self._target = server, target
        self._batch_bytes = batch_bytes

    def write(self, changes: Sequence[Change]) -> None:
        """Insert rows for changes without a TRUNCATE; raise SinkError, SinkRefusedError."""
        if self._target.shape.mode.has_keys:
            changes = net_changes(changes, self._target.width)
        for body, sent in self._batches(changes):
            self._server.insert(self._target.insert, body, sent)

    def truncate(self, change: Change) -> None:
        """Write a TRUNCATE: all rows that are older are deleted, and nothing that is newer."""
        if not self._target.shape.mode.has_keys:
            self.write([change])
            return
        version = f"CAST('{version_of(change)}' AS {VERSION_TYPE})"
        keys = ", ".join(map(identifier, self._target.keys))
        place = self._target.place
        self._server.run(
            f"INSERT INTO {place} ({keys}, {VERSION}, {DELETED}) SELECT {keys}, {version}, 1 "
            f"FROM {place} FINAL WHERE {VERSION} < {version}"
        )

    def _batches(self, changes: Sequence[Change]) -> Iterator[tuple[bytes, Sequence[Change]]]:
        """Yield rows of about as many bytes as wanted, with their changes."""
        row = self._mirrored if self._target.shape.mode.has_keys else self._noted
        parts: list[bytes] = []
        size, first = 0, 0
        for at, change in enumerate(changes):
            parts.append(row(change))
            size += len(parts[-1])
            if size >= self._batch_bytes:
                yield b"".join(parts), changes[first : at + 1]
                parts, size, first = [], 0, at + 1
        if parts:
            yield b"".join(parts), changes[first:]

    def _mirrored(self, change: Change) -> bytes:
        is_there = change.after is not None
        row = whole_row(change) if is_there else change.key
        version = version_of(change).to_bytes(16, "little")
        return self._values(change, row, has_all=is_there) + version + bytes([not is_there])

    def _noted(self, change: Change) -> bytes:
        """Return the row after a change, of a delete that before it, with what was done."""
        row = change.after or change.before or change.key
        known = {one.name: row.get(one.name) for one in self._target.columns}
        moment = _EPOCH + timedelta(microseconds=change.timestamp_ns // 1000)
        marks = (
            text_bytes(change.op.value.encode()),
            change.scn.to_bytes(8, "little"),
            change.index.to_bytes(4, "little"),
            _time_bytes(moment),
            text_bytes(change.id.encode()),
        )
        return self._values(change, known, has_all=True) + b"".join(marks)

    def _values(self, change: Change, row: Row, *, has_all: bool) -> bytes:
        parts: list[bytes] = []
        for one in self._target.columns:
            if not has_all and one.name not in row:
                parts.append(one.nothing)
                continue
            try:
                parts.append(one.encode(row[one.name]))
            except ValueError as error:
                raise SinkRefusedError(
                    f"{change.source}, column {one.name}, key {dict(change.key)!r:.200}: {error}",
                    change,
                ) from error
        return b"".join(parts)
