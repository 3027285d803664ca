"""From a source's transaction to a window's bytes: Avro rows in version 2 events.

The schema a row is written with is the one its table had at that SCN. A table
that differs from the source's current one makes a new version, registered
before the window leaves here: nobody can read an event whose schema he cannot
ask for. Used by one thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from databus.daemon.faults import is_transient
from databus.daemon.log_setup import about
from databus.registry.registry import SchemaRegistry
from databus.registry.version import SchemaVersion
from databus.relay.sources.source import (
    Change,
    Origin,
    RowChange,
    TableAltered,
    TableDefined,
    TableEmptied,
    TableEncoder,
    Transaction,
)
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import (
    DatabusError,
    ProtocolError,
    RowError,
    SchemaError,
    UnknownSourceError,
)
from databus.schemas.event.control import ddl_event, end_of_period
from databus.schemas.event.event import WHOLE_TABLE_KEY, Event, Opcode, Part
from databus.schemas.event.keys import key_maker
from databus.schemas.event.metadata import EventMetadata, Notes, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode, unstamped
from databus.schemas.table import Table
from databus.schemas.table_change import (
    TableChange,
    change_of,
    changes_nothing,
    shape,
    shape_id,
    with_change,
)
from databus.schemas.table_schema import avro_schema
from databus.schemas.windows import EncodedWindow

PARTITION_ID = 0
_NO_NOTES = Notes()

log = logging.getLogger(__name__)


class UnfitRowError(ValueError):
    """A row that cannot be written with its table's schema; never leaves the relay."""

    def __init__(self, scn: int, row_index: int, error: DatabusError) -> None:
        super().__init__(
            f"row {row_index} of the transaction at scn {scn} cannot be captured: {error}"
        )
        self.way_on = f"to go on without this row: acknowledged_scns = [{scn}]"


class WindowEncoder:
    """Encodes the transactions of one physical source.

    `src_ids` are its sources' names and ids; `before_images` says whether the
    row before an update goes into the metadata. In a transaction whose SCN is
    among `acknowledged_scns`, rows that don't fit are left out, and logged.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        src_ids: Mapping[str, int],
        before_images: bool = True,
        acknowledged_scns: Collection[int] = (),
    ) -> None:
        self._registry = registry
        self._src_ids = src_ids
        self.before_images = before_images
        self._acknowledged_scns = frozenset(acknowledged_scns)
        self._current: dict[str, TableEncoder] = {}
        # Of the window under way: whoever reads their rows will find them registered.
        self._made: list[SchemaVersion] = []
        self.revision = 0

    def encode(self, transaction: Transaction) -> EncodedWindow:
        """Return the window's bytes, its end-of-period event included.

        Raises UnfitRowError; then nothing of it may be published.
        """
        self.take_back()  # of one that could not be encoded
        scn, timestamp_ns = transaction.scn, transaction.timestamp_ns
        events = []
        row_index = 0
        for change in transaction.changes:
            event = self._event(change, transaction.origin, row_index, scn, timestamp_ns)
            if event is not None:
                events.append(event)
            row_index += not isinstance(change, TableDefined)
        events.append(encode(end_of_period(scn, timestamp_ns, PARTITION_ID)))
        self.settle()
        return EncodedWindow(scn, b"".join(events), timestamp_ns)

    def encode_change(self, change: Change, origin: Origin, row_index: int, scn: int) -> bytes:
        """Return one change's event, unstamped; empty when it is left out, as told.

        `row_index` counts the row changes and emptied tables of the
        transaction. `scn` is what an error names, and from where on a new schema
        version is, unless `origin` or the statement says it. Raises UnfitRowError.
        """
        event = self._event(change, origin, row_index, scn, 0)
        return b"" if event is None else unstamped(event)

    def known_table(self, table: Table, origin: Origin, scn: int) -> TableEncoder | None:
        """Return how a table's rows are written at `scn`; None when it has no version yet.

        Raises UnknownSourceError, SchemaError when the table cannot have one.
        """
        encoder = self._current.get(table.source)
        if encoder is not None and (encoder.table is table or encoder.table == table):
            return encoder
        version = self._find(table, avro_schema(table), origin, scn)
        return None if version is None else self._use(table, version)

    def mark(self) -> int:
        """Return how many versions the window under way has made."""
        return len(self._made)

    def take_back(self, mark: int = 0) -> None:
        """Forget those after the first `mark` of them."""
        for version in self._made[mark:]:
            self._current.pop(version.source, None)
            self.revision += 1
        del self._made[mark:]

    def settle(self) -> None:
        """Register the versions that a window has made; before anybody can read it."""
        for version in self._made:
            # Unchecked: a table may be altered in any way, and its rows must be captured.
            self._registry.register(version.source, version.text, version.start_scn, check=False)
        self._made.clear()

    def publish_first(self, table: Table) -> None:
        """Register a table that has no schema yet, so that clients can ask before the first row."""
        if not self._registry.versions(table.source):
            self._add(table, avro_schema(table), 0)
            self.settle()

    def _versions(self, source: str) -> Sequence[SchemaVersion]:
        versions = self._registry.versions(source)
        return (*versions, *(made for made in self._made if made.source == source))

    def _find(self, table: Table, text: str, origin: Origin, scn: int) -> SchemaVersion | None:
        """Return the version of a row's table: in force, made by its window, or the newest."""
        self._src_id(table)
        versions = self._versions(table.source)
        begin = bisect_left(versions, _first_scn(origin, scn), key=attrgetter("start_scn"))
        end = bisect_right(versions, scn, key=attrgetter("start_scn"))
        found = (*versions[max(begin - 1, 0) : end], *versions[-1:])
        return next((known for known in found if shape(known.text) == text), None)

    def _make(self, table: Table, origin: Origin, scn: int) -> SchemaVersion:
        """Make a version that only a row shows: it holds from the first SCN of its window."""
        text, first_scn = avro_schema(table), _first_scn(origin, scn)
        versions = self._versions(table.source)
        if versions:
            # Its statement was not understood, or is not in the log any more.
            before = shape_id(versions[-1].text)
            text = with_change(text, TableChange.unknown(first_scn, before))
        return self._add(table, text, first_scn)

    def _add(self, table: Table, text: str, scn: int) -> SchemaVersion:
        src_id, versions = self._src_id(table), self._versions(table.source)
        if versions and scn < versions[-1].start_scn:
            raise SchemaError(
                f"{table.source}: at scn {scn} it is as none of its versions of then is, and "
                f"the newest is from scn {versions[-1].start_scn}"
            )
        version = SchemaVersion(table.source, src_id, len(versions) + 1, text, scn)
        self._made.append(version)
        return version

    def _alter(self, altered: TableAltered, scn: int) -> SchemaVersion | None:
        """Make what a statement made of a table, with what it made of the rows in it.

        At once: somebody's rows are others from now on, though none may ever be written again.
        Returns the version that it made, None for none.
        """
        table, change = altered.table, altered.change
        scn = scn if change.scn < 0 else change.scn
        self._src_id(table)
        versions = self._versions(table.source)
        if not versions:
            return self._add(table, avro_schema(table), scn)
        text, last = avro_schema(table), versions[-1].text
        for version in versions:
            made = change_of(version.text)
            if made is not None and made.scn == scn and shape(version.text) == text:
                return version  # the log is read again
        if versions[-1].start_scn > scn:
            return None
        before = shape_id(last)
        is_known = altered.before is not None and avro_schema(altered.before) == shape(last)
        if change.is_emptied or is_known:
            change = replace(change, scn=scn, before=before)
        else:
            change = TableChange.unknown(scn, before)
        if text == shape(last) and (change.is_emptied or changes_nothing(change)):
            return None
        self._current.pop(table.source, None)
        self.revision += 1
        return self._add(table, with_change(text, change), scn)

    def _event(
        self, change: Change, origin: Origin, row_index: int, scn: int, timestamp_ns: int
    ) -> bytes | None:
        """Return the change's event; None when it does not fit and is left out, as told."""
        try:
            if isinstance(change, RowChange):
                event = self._row_event(change, origin, row_index, scn, timestamp_ns)
            elif isinstance(change, TableEmptied):
                event = self._emptied_event(change, origin, row_index, scn, timestamp_ns)
            else:
                event = self._ddl_event(change, scn, timestamp_ns)
            return encode(event)
        except (RowError, SchemaError, ProtocolError) as error:
            if is_transient(error):  # a full disk under the registry, say: it is not the row's
                raise
            if scn not in self._acknowledged_scns:
                raise UnfitRowError(scn, row_index, error) from error
            text = "scn %d: row %d was left out, as told: %s"
            log.warning(text, scn, row_index, error, extra=about(scn=scn))
            return None

    def _row_event(
        self, change: RowChange, origin: Origin, row_index: int, scn: int, timestamp_ns: int
    ) -> Event:
        encoder = self.known_table(change.table, origin, scn)
        if encoder is None:
            encoder = self._use(change.table, self._make(change.table, origin, scn))
        codec, notes = encoder.codec, change.notes
        if notes is not None and not self.before_images:
            notes = notes._replace(before_absent=(), before_raw={})
        absent, before_absent, _, _ = notes or _NO_NOTES
        before = None
        if self.before_images and change.before is not None:
            before = codec.encode(change.before, before_absent)
        # fmt: off
        metadata = EventMetadata(
            change.op, *_origin_fields(origin), row_index, before, change.comment,
            None if notes == _NO_NOTES else notes,
        )
        # fmt: on
        return Event(
            scn,
            timestamp_ns,
            encoder.src_id,
            PARTITION_ID,
            encoder.key_of(change.row),
            Opcode.DELETE if change.op is Op.DELETE else Opcode.UPSERT,
            # Named by its digest alone: a relay that was started later counts fewer
            # versions, and would number this one differently.
            Part(codec.encode(change.row, absent), encoder.digest),
            metadata_part(encode_metadata(metadata)),
        )

    def _emptied_event(
        self, change: TableEmptied, origin: Origin, row_index: int, scn: int, timestamp_ns: int
    ) -> Event:
        # Its schema is not asked for: there is no row.
        src_id = self._src_id(change.table)
        fields = _origin_fields(origin)
        metadata = EventMetadata(Op.TRUNCATE, *fields, row_index, None, change.comment)
        told = metadata_part(encode_metadata(metadata))
        # fmt: off
        return Event(scn, timestamp_ns, src_id, PARTITION_ID, WHOLE_TABLE_KEY, Opcode.DELETE,
                     None, told)
        # fmt: on

    def _ddl_event(self, change: TableDefined, scn: int, timestamp_ns: int) -> Event:
        made = {}
        for altered in change.altered:
            version = self._alter(altered, scn)
            if version is not None:
                made[altered.table.source] = version.schema_id.hex()
        sources, database, statement = change.sources, change.database, change.statement
        return ddl_event(scn, timestamp_ns, PARTITION_ID, sources, database, statement, made)

    def _src_id(self, table: Table) -> int:
        if table.source not in self._src_ids:
            raise UnknownSourceError(table.source, list(self._src_ids))
        return self._src_ids[table.source]

    def _use(self, table: Table, version: SchemaVersion) -> TableEncoder:
        encoder = TableEncoder(
            table,
            version.src_id,
            version.schema_id,
            row_codec(version.text),
            key_maker(table),
        )
        self._current[table.source] = encoder
        self.revision += 1
        return encoder


def _first_scn(origin: Origin, scn: int) -> int:
    return scn if origin.first_scn is None else origin.first_scn


def _origin_fields(origin: Origin) -> tuple[str | None, int, str, int, int]:
    return origin.gtid, origin.server_id, origin.file, origin.offset, origin.epoch
