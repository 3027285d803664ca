"""A source whose windows are read back into the transactions that they are about.

So the same test holds for what Python puts together and for what the compiled
decoder writes: mark it with `pytest.mark.usefixtures("both_ways")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from databus.conf.settings import PhysicalSourceSettings
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.registry.version import SchemaVersion
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import (
    Change,
    Origin,
    ReadItem,
    RowChange,
    TableDefined,
    TableEmptied,
    TableEncoder,
    Transaction,
)
from databus.schemas.event.control import statement_of
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import EventMetadata, Op, decode_metadata
from databus.schemas.event.v2 import decode, stamp
from databus.schemas.table import Table
from databus.schemas.windows import EncodedWindow, WindowBatch, WindowEnd, WindowPiece

WAYS = ("python", "compiled")


class Reading:
    """Which way the sources of a test read."""

    way = "python"


class _Encoder(WindowEncoder):
    """Remembers the table of each schema."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        registry = SchemaRegistry(MemoryStore())
        self.ids = {name: number for number, name in enumerate(settings.source_names, 1)}
        for name, number in self.ids.items():
            registry.add_source(name, number)
        super().__init__(registry, self.ids)
        self.tables: dict[bytes, TableEncoder] = {}

    def _use(self, table: Table, version: SchemaVersion) -> TableEncoder:
        found = super()._use(table, version)
        self.tables[found.digest] = found
        return found


class ReadSource(MysqlSource):
    """A MySQL source that yields transactions, whichever way it reads."""

    def __init__(self, settings: PhysicalSourceSettings, **more: Any) -> None:
        super().__init__(settings, **more)
        self._written = _Encoder(settings)
        self._unfinished = b""
        if Reading.way == "compiled":
            self.write_with(self._written)

    def read_transactions(self) -> list[Transaction]:
        """Return what the source yields, its windows as transactions."""
        return [found for item in super().read_transactions() for found in self._transactions(item)]

    def _transactions(self, item: ReadItem) -> Iterator[Transaction]:
        if isinstance(item, WindowBatch):
            yield from map(self._transaction, item.windows())
        elif isinstance(item, WindowPiece):
            self._unfinished = self._unfinished[: item.at] + item.data
        elif isinstance(item, WindowEnd):
            assert len(self._unfinished) == item.length
            data = stamp(self._unfinished, item.scn, item.timestamp_ns)
            yield self._transaction(EncodedWindow(item.scn, data, item.timestamp_ns))
        else:
            yield item

    def _transaction(self, window: EncodedWindow) -> Transaction:
        at, origin = 0, Origin()
        changes: list[Change] = []
        while at < len(window.data):
            event, at = decode(window.data, at)
            assert (event.scn, event.timestamp_ns) == (window.scn, window.timestamp_ns)
            if event.metadata is not None:
                said = decode_metadata(event.metadata.data, event.metadata.digest)
                origin = Origin(said.gtid, said.server_id, said.file, said.offset, said.epoch)
                changes.append(self._change(event, said))
            elif at < len(window.data):
                said_all = statement_of(event)
                changes.append(TableDefined(*said_all[:3], is_dml=said_all.is_dml))
        return Transaction(window.scn, window.timestamp_ns, tuple(changes), origin)

    def _change(self, event: Event, said: EventMetadata) -> Change:
        names = {number: name for name, number in self._written.ids.items()}
        if said.op is Op.TRUNCATE:
            return TableEmptied(Table(names[event.src_id], ()), said.comment)
        assert event.payload is not None
        written, notes = self._written.tables[event.payload.digest], said.notes
        absent, before_absent = ((), ()) if notes is None else (notes.absent, notes.before_absent)
        row = written.codec.decode(event.payload.data, absent)
        before = None
        if said.before is not None:
            before = written.codec.decode(said.before, before_absent)
        assert written.key_of(row) == event.key
        return RowChange(written.table, said.op, row, before, said.comment, notes)
