"""Encodes a source's transactions as windows: Avro rows in version 2 events.

A row is written with the schema that its table had at that SCN. A table that differs from
the source's current schema makes a new version, which is registered before the window is
published: every schema of a published event can be requested. Used by one thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from databus.conf.source_names import SourceNames
from databus.daemon.faults import is_transient
from databus.daemon.log_setup import about
from databus.registry.registry import SchemaRegistry
from databus.registry.version import SchemaVersion
from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.source import (
    Change,
    Origin,
    RowChange,
    SourceSchema,
    TableAltered,
    TableDefined,
    TableEmptied,
    TableEncoder,
    Transaction,
    UnfitRowError,
)
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import (
    ProtocolError,
    RowError,
    SchemaError,
    UnknownSourceError,
)
from databus.schemas.event.control import ddl_event, dml_event, end_of_period
from databus.schemas.event.event import WHOLE_TABLE_KEY, Event, Opcode, Part
from databus.schemas.event.keys import key_maker
from databus.schemas.event.metadata import EventMetadata, Notes, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode, unstamped
from databus.schemas.table import Table
from databus.schemas.table_change import (
    WHOLE_TABLE,
    TableChange,
    change_of,
    changes_nothing,
    describes,
    shape,
    shape_id,
    with_change,
)
from databus.schemas.table_schema import avro_schema
from databus.schemas.windows import EmptyWindow, EncodedWindow

PARTITION_ID = 0
_NO_NOTES = Notes()
_SAME_NAMES = SourceNames()
_EVERY_COLUMN = ColumnRules()

log = logging.getLogger(__name__)


class WindowEncoder:
    """Encodes the transactions of one physical source.

    `src_ids` maps its sources' names to ids, and `names` the tables of transactions to those
    names; with `before_images` the row before an update goes into the metadata. All changes pass
    through the rules of `columns`. In a transaction whose SCN is in `acknowledged_scns`, rows that
    cannot be encoded are skipped and logged.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        src_ids: Mapping[str, int],
        before_images: bool = True,
        acknowledged_scns: Collection[int] = (),
        names: SourceNames = _SAME_NAMES,
        columns: ColumnRules = _EVERY_COLUMN,
    ) -> None:
        self._registry = registry
        self._src_ids = src_ids
        self._names = names
        self._columns = columns
        self.before_images = before_images
        self.first_scn = 0
        """For a second reading of the log: no version begins before it.

        What was in force before the first reading is no version of the windows after it.
        """
        self._acknowledged_scns = frozenset(acknowledged_scns)
        self.registers_versions = True
        """False: windows are only looked at, and versions that they make are forgotten."""
        self._current: dict[str, TableEncoder] = {}  # by the table's name in its database
        self._left_out: frozenset[str] = frozenset()  # by the table's name in its database
        # Versions made by the current window; registered before it is published.
        self._made: list[SchemaVersion] = []
        self.revision = 0

    def relist(self, src_ids: Mapping[str, int]) -> None:
        """Encode the rows of other sources from the next window on."""
        self._src_ids = src_ids
        self._current.clear()
        self.revision += 1

    @property
    def src_ids(self) -> Mapping[str, int]:
        """The ids of the sources, by name."""
        return self._src_ids

    def schemas(self) -> Mapping[str, Sequence[SourceSchema]]:
        """Return all schema versions of each source, the oldest first, by name."""
        return {
            name: [
                SourceSchema(name, version.text, version.start_scn, version.schema_id)
                for version in self._registry.versions(name)
            ]
            for name in self._src_ids
        }

    def adopt(self, schemas: Sequence[SourceSchema]) -> None:
        """Register versions as another relay has them, in order; raise SchemaError."""
        self._registry.register_unchecked([(s.source, s.text, s.start_scn) for s in schemas])

    def leave_out(self, tables: Collection[str]) -> None:
        """Write the windows from now on without the rows of some tables."""
        self._left_out = frozenset(tables)

    def encode(self, transaction: Transaction) -> EncodedWindow:
        """Return the encoded window, including its end-of-period event.

        Raises UnfitRowError; then no part of the window may be published.
        """
        self.take_back()  # left by a window that failed
        scn, timestamp_ns = transaction.scn, transaction.timestamp_ns
        events = []
        row_index = 0
        for change in transaction.changes:
            event = self._event(change, transaction.origin, row_index, scn, timestamp_ns)
            if event is not None:
                events.append(event)
            # A skipped row counts, too: later rows keep their numbers.
            row_index += not isinstance(change, TableDefined)
        events.append(encode(end_of_period(scn, timestamp_ns, PARTITION_ID)))
        self.settle()
        return EncodedWindow(scn, b"".join(events), timestamp_ns)

    def encode_change(self, change: Change, origin: Origin, row_index: int, scn: int) -> bytes:
        """Return one change's event, unstamped; empty if skipped as acknowledged.

        `row_index` counts the row changes and truncated tables of the transaction. `scn` is
        named in errors, and is the start of a new schema version unless `origin` or the
        statement has one. Raises UnfitRowError.
        """
        event = self._event(change, origin, row_index, scn, 0)
        return b"" if event is None else unstamped(event)

    def known_table(self, table: Table, origin: Origin, scn: int) -> TableEncoder | None:
        """Return the encoder of a table's rows at `scn`.

        None if it has no version yet, or if not all of its columns are captured as they are: then
        only `encode_change` writes its rows. Raises UnknownSourceError, or SchemaError if the
        table cannot have a schema.
        """
        if self._columns and self._columns.view(table) is not None:
            return None
        return self._known(table, origin, scn)

    def _known(self, table: Table, origin: Origin, scn: int) -> TableEncoder | None:
        # Sources pass the same object for equal tables, so the comparison is rare.
        encoder = self._current.get(table.source)
        if encoder is not None and (encoder.table is table or encoder.table == table):
            return encoder
        named = self._named(table)
        version = self._find(named, avro_schema(named), origin, scn)
        return None if version is None else self._use(table, version)

    def mark(self) -> int:
        """Return the number of versions made by the current window."""
        return len(self._made)

    def take_back(self, mark: int = 0) -> None:
        """Forget the versions made after `mark`."""
        for version in self._made[mark:]:
            self._current.pop(self._names.table_of(version.source), None)
            self.revision += 1
        del self._made[mark:]

    def settle(self) -> None:
        """Register the versions made by a window, before it is published."""
        if self._made and self.registers_versions:
            # No compatibility check: rows must be captured whatever was altered.
            made = [(version.source, version.text, version.start_scn) for version in self._made]
            self._registry.register_unchecked(made)
            self._made.clear()

    def publish_first(self, tables: Iterable[Table], scn: int = 0) -> None:
        """Register tables that have no schema, so that clients get it before the first row.

        Raises SourceStoppedError, which names `scn`, if the rules of columns do not fit a table.
        """
        if self._columns:
            tables = [one for one in tables if one.source not in self._left_out]
            self._columns.check(tables, scn)
            self._warn_of_weaker(tables)
            tables = map(self._columns.table, tables)
        new = [t for t in map(self._named, tables) if not self._registry.versions(t.source)]
        for table in new:
            self._src_id(table)
        self._registry.register_unchecked([(t.source, avro_schema(t), 0) for t in new])

    def _warn_of_weaker(self, tables: Iterable[Table]) -> None:
        """Warn of what was protected in the newest version, and is not from now on."""
        for table in tables:
            versions = self._registry.versions(self._names.name_of(table.source))
            found = self._columns.weakened(table, versions[-1].text) if versions else ()
            if found:
                text = "%s: not protected any more, or otherwise, from the next row on: %s"
                log.warning(text, table.source, ", ".join(found))

    def _named(self, table: Table) -> Table:
        """Return a table of a transaction under its source's name."""
        return table.named(self._names.name_of(table.source))

    def _versions(self, source: str) -> Sequence[SchemaVersion]:
        versions = self._registry.versions(source)
        made = [version for version in self._made if version.source == source]
        return (*versions, *made) if made else versions

    def _find(self, table: Table, text: str, origin: Origin, scn: int) -> SchemaVersion | None:
        """Return the version of a row: valid at `scn`, made by its window, or the newest."""
        self._src_id(table)
        versions = self._versions(table.source)
        begin = bisect_left(versions, _first_scn(origin, scn), key=attrgetter("start_scn"))
        end = bisect_right(versions, scn, key=attrgetter("start_scn"))
        found = (*versions[max(begin - 1, 0) : end], *versions[-1:])
        return next((known for known in found if shape(known.text) == text), None)

    def _make(self, table: Table, origin: Origin, scn: int) -> SchemaVersion:
        """Make a version known only from a row, valid from the first SCN of its window."""
        text, first_scn = avro_schema(table), _first_scn(origin, scn)
        versions = self._versions(table.source)
        if versions:
            self._columns.refuse_another_name(self._names.table_of(table.source), versions[-1].text)
            # Its DDL statement was not parsed, or has been purged from the log.
            last = versions[-1].text
            before = shape_id(last)
            # The log has the characters that the catalogue could not show.
            is_same = describes(text, last)
            change = TableChange if is_same else TableChange.unknown
            text = with_change(text, change(first_scn, before))
        return self._add(table, text, first_scn)

    def _add(self, table: Table, text: str, scn: int) -> SchemaVersion:
        src_id, versions = self._src_id(table), self._versions(table.source)
        # Versions are in force from their SCNs on: an older one would change delivered rows.
        if versions and scn < versions[-1].start_scn:
            raise SchemaError(
                f"{table.source}: its definition at scn {scn} matches no version of that time, and "
                f"the newest version is from scn {versions[-1].start_scn}"
            )
        if versions and scn < self.first_scn:
            raise SchemaError(
                f"{table.source}: its definition at scn {scn} is from before this relay's first "
                f"start, at scn {self.first_scn}, and is none of its schema versions: begin after "
                "that, or bootstrap"
            )
        version = SchemaVersion(table.source, src_id, len(versions) + 1, text, scn)
        self._made.append(version)
        return version

    def _alter(self, altered: TableAltered, scn: int) -> SchemaVersion | None:
        """Make the version that results from a DDL statement, with its effect on existing rows.

        At once, not with the next row: consumers' rows change now, and no row may ever
        follow. Returns the new version, or None.
        """
        table, change = self._named(altered.table), altered.change
        before_it = None if altered.before is None else self._named(altered.before)
        scn = scn if change.scn < 0 else change.scn
        self._src_id(table)
        versions = self._versions(table.source)
        if not versions and not change.is_emptied:
            return self._add(table, avro_schema(table), scn)
        if not versions:
            # Its CREATE: the log has every row that it ever had.
            created = with_change(avro_schema(table), TableChange(scn, "", is_emptied=True))
            return self._add(table, created, scn)
        text, last = avro_schema(table), versions[-1].text
        if change.is_emptied or WHOLE_TABLE in change.reload:
            self._columns.refuse_another_name(altered.table.source, last)
        # Only these: a table that is altered often has thousands.
        first = bisect_left(versions, scn, key=attrgetter("start_scn"))
        end = bisect_right(versions, scn, key=attrgetter("start_scn"))
        for version in versions[first:end]:
            made = change_of(version.text)
            if made is not None and made.scn == scn and shape(version.text) == text:
                return version  # the same statement, read a second time
        if versions[-1].start_scn > scn or scn < self.first_scn:
            return None
        before = shape_id(last)
        is_known = before_it is not None and describes(last, avro_schema(before_it))
        if change.is_emptied or is_known:
            change = replace(change, scn=scn, before=before)
        else:
            change = TableChange.unknown(scn, before)
        if text == shape(last) and (change.is_emptied or changes_nothing(change)):
            return None
        self._current.pop(altered.table.source, None)
        self.revision += 1
        return self._add(table, with_change(text, change), scn)

    def _event(
        self, change: Change, origin: Origin, row_index: int, scn: int, timestamp_ns: int
    ) -> bytes | None:
        """Return the change's event.

        None if its table is left out, or if it is skipped because its SCN is acknowledged.
        """
        if self._left_out and self._left_out.issuperset(_tables_of(change)):
            return None
        try:
            if self._columns:
                change = self._columns.shown(change)
            if isinstance(change, RowChange):
                event = self._row_event(change, origin, row_index, scn, timestamp_ns)
            elif isinstance(change, TableEmptied):
                event = self._emptied_event(change, origin, row_index, scn, timestamp_ns)
            else:
                event = self._ddl_event(change, scn, timestamp_ns)
            return encode(event)
        except (RowError, SchemaError, ProtocolError) as error:
            if is_transient(error):  # such as a full disk of the registry: no fault of the row
                raise
            # Not the transaction's end, which a large one has not reached yet.
            own_scn = change.scn if isinstance(change, RowChange) else None
            named = scn if own_scn is None else own_scn
            if not self._acknowledged_scns & {scn, named}:
                tables = _tables_of(change)
                raise UnfitRowError(named, row_index, error, tables) from error
            text = "scn %d: row %d was skipped because its SCN is acknowledged: %s"
            log.warning(text, named, row_index, error, extra=about(scn=named))
            return None

    def _row_event(
        self, change: RowChange, origin: Origin, row_index: int, scn: int, timestamp_ns: int
    ) -> Event:
        encoder = self._known(change.table, origin, scn)
        if encoder is None:
            version = self._make(self._named(change.table), origin, scn)
            self.revision += 1  # until now only Python could write its rows
            encoder = self._use(change.table, version)
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
            # Only the digest identifies the schema: a relay with another history numbers
            # its versions differently.
            Part(codec.encode(change.row, absent), encoder.digest),
            metadata_part(encode_metadata(metadata)),
        )

    def _emptied_event(
        self, change: TableEmptied, origin: Origin, row_index: int, scn: int, timestamp_ns: int
    ) -> Event:
        # Without a row, no schema is needed.
        src_id = self._src_id(self._named(change.table))
        fields = _origin_fields(origin)
        metadata = EventMetadata(Op.TRUNCATE, *fields, row_index, None, change.comment)
        part = metadata_part(encode_metadata(metadata))
        # fmt: off
        return Event(scn, timestamp_ns, src_id, PARTITION_ID, WHOLE_TABLE_KEY, Opcode.DELETE,
                     None, part)
        # fmt: on

    def _ddl_event(self, change: TableDefined, scn: int, timestamp_ns: int) -> Event:
        made = {}
        for altered in change.altered:
            version = self._alter(altered, scn)
            if version is not None:
                made[version.source] = version.schema_id.hex()
        sources = tuple(map(self._names.name_of, change.sources))
        database, statement = change.database, change.statement
        make = dml_event if change.is_dml else ddl_event
        return make(scn, timestamp_ns, PARTITION_ID, sources, database, statement, made)

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
            key_maker(self._named(table)),
        )
        # A table's first encoder changes nothing for the rows of the tables before it.
        self.revision += table.source in self._current
        self._current[table.source] = encoder
        return encoder


def _tables_of(change: Change) -> tuple[str, ...]:
    return change.sources if isinstance(change, TableDefined) else (change.table.source,)


def encode_empty(window: EmptyWindow) -> EncodedWindow:
    """Return the bytes of a window without rows: its end-of-period event."""
    scn, timestamp_ns = window
    return EncodedWindow(scn, encode(end_of_period(scn, timestamp_ns, PARTITION_ID)), timestamp_ns)


def _first_scn(origin: Origin, scn: int) -> int:
    return scn if origin.first_scn is None else origin.first_scn


def _origin_fields(origin: Origin) -> tuple[str | None, int, str, int, int]:
    return origin.gtid, origin.server_id, origin.file, origin.offset, origin.epoch
