"""The assembler with the compiled binlog decoder: bytes of the socket in, windows out.

The decoder reads plain transactions and stops before any other event. The assembler then takes
over the decoder's state, reads that one event and returns its state to the decoder. Both write
into the decoder's current window, so either of them may read any event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog import _decoder
from databus.relay.sources.mysql.binlog._decoder import BinlogDecoder, RowPlan
from databus.relay.sources.mysql.binlog.events import QUERY_COMPRESSED, TRANSACTION_PAYLOAD
from databus.relay.sources.mysql.binlog.gtid import Gtid
from databus.relay.sources.mysql.binlog.packets import StreamBrokenError, event_of
from databus.relay.sources.mysql.binlog.row_plan import plan_of
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.changes import ChangeList, Changes
from databus.relay.sources.mysql.replication.transaction import (
    Group,
    first_scn_of,
    statement_comment,
)
from databus.relay.sources.mysql.rows.changes import RowLayout, row_changes
from databus.relay.sources.source import (
    Change,
    EventEncoder,
    Origin,
    ReadItem,
    TableDefined,
    Transaction,
    WindowRoom,
)
from databus.schemas.errors import DatabusError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.layout import PART
from databus.schemas.event.metadata import metadata_part
from databus.schemas.event.v2 import encode, encode_part, unstamped
from databus.schemas.windows import WindowBatch, WindowEnd, WindowPiece

_MOST_PLANS = 4096
_TYPE_AT = 4  # in an event's header
_STATEMENTS = frozenset(
    {B.QUERY_EVENT, QUERY_COMPRESSED, B.EXECUTE_LOAD_QUERY_EVENT, TRANSACTION_PAYLOAD}
)
# Windows are about twice as large as their part of the log; what has no room goes another way.
_ROOM_FACTOR = 4
_LEAST_ROOM = 1 << 16
_BEGIN = (0, 0, 0)  # the mark before the first change of a window


def make_decoder(encoder: EventEncoder, epoch: int) -> BinlogDecoder:
    """Return a decoder for one stream."""
    return BinlogDecoder(
        end_event=unstamped(encode(end_of_period(0, 0))),
        # The decoder writes the length itself, once it has written the data.
        metadata_head=encode_part(metadata_part(b""))[PART.attributes.offset :],
        before_images=encoder.before_images,
        epoch=epoch,
        comment_of=statement_comment,
    )


class _EncodedChanges:
    """Changes that are written into the decoder's window as events."""

    def __init__(self, windows: EncodedWindows, origin: Origin) -> None:
        self._windows = windows
        self._origin = origin

    def __bool__(self) -> bool:
        return self._windows.decoder.window_bytes > 0

    def add(self, changes: Iterable[Change], scn: int) -> None:
        self._windows.add(changes, self._origin, scn)

    def add_rows(
        self, layout: RowLayout, type_code: int, body: bytes, comment: str | None, scn: int
    ) -> None:
        decoder, plan = self._windows.decoder, self._windows.plan(layout, self._origin, scn)
        decoder.statement_comment = comment
        if plan is None or not decoder.put_rows(plan, type_code, body):
            self.add(row_changes(layout, type_code, body, comment, scn), scn)
        self._windows.hand_over()

    def mark(self) -> tuple[int, int, int]:
        return self._windows.mark()

    def cut(self, mark: tuple[int, int, int]) -> None:
        self._windows.cut(*mark)


class EncodedWindows:
    """Windows written by the decoder; `items` are the finished ones, in order."""

    def __init__(self, decoder: BinlogDecoder, encoder: EventEncoder) -> None:
        self.decoder = decoder
        self.items: list[ReadItem] = []
        self._encoder = encoder
        encoder.take_back()  # versions of a window that an earlier connection left unfinished
        self._revision = encoder.revision
        self._origin = Origin()  # of the current transaction
        # The key includes the schema id: after an ALTER that is reverted, rows have the same
        # layout as before but another version.
        self._plans: dict[tuple[int, bytes], tuple[RowLayout, RowPlan | None]] = {}

    def begin(self, origin: Origin) -> _EncodedChanges:
        """Begin a transaction."""
        gtid = None if origin.gtid is None else origin.gtid.encode()
        self.decoder.begin(gtid, origin.server_id, origin.offset)
        return self.begun(origin)

    def begun(self, origin: Origin) -> _EncodedChanges:
        """Return the changes of a transaction that the decoder began by itself."""
        self._origin = origin
        return _EncodedChanges(self, origin)

    def announce(self, table_id: int, content: bytes, layout: RowLayout | None, scn: int) -> None:
        """Pass a TABLE_MAP and the plan of its rows to the decoder."""
        plan = None if layout is None else self.plan(layout, self._origin, scn)
        self.decoder.bind(table_id, content, layout, plan)

    def plan(self, layout: RowLayout, origin: Origin, scn: int) -> RowPlan | None:
        """Return the decoder's plan for a table's rows; None if Python must write them.

        Python writes the rows of a version that is not registered yet, because only a row
        registers a version, not its TABLE_MAP.
        """
        try:
            encoder = self._encoder.known_table(layout.table, origin, scn)
        except DatabusError:
            return None  # Python raises it at the first row; there may be no row
        self._follow()
        if encoder is None:
            return None
        key = id(layout), encoder.digest
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            known = self._plans[key] = (layout, plan_of(layout, encoder))
        return known[1]

    def _follow(self) -> None:
        """Discard the decoder's plans if the encoder may now use other versions."""
        if self._encoder.revision != self._revision:
            self._revision = self._encoder.revision
            self.decoder.unbind()

    def mark(self) -> tuple[int, int, int]:
        """Return the bytes, rows and versions of the current window, as `cut` takes them."""
        return self.decoder.window_bytes, self.decoder.rows, self._encoder.mark()

    def cut(self, size: int, rows: int, versions: int) -> None:
        """Remove everything after a mark."""
        self.decoder.cut(size, rows)
        self._encoder.take_back(versions)
        self._follow()

    def settle(self) -> None:
        """Register the versions of the window that ends, before the window is handed over."""
        self._encoder.settle()

    def join(self, earlier: Any, later: Any, origin: Origin) -> Changes:  # noqa: ARG002
        """Return the changes in the window, where both transactions already are."""
        if not isinstance(later, ChangeList):
            changes: Changes = later
            return changes
        encoded = self.begin(origin)
        encoded.add(later.changes, 0)
        return encoded

    def finish(
        self, scn: int, timestamp_ns: int, changes: Any, origin: Origin
    ) -> Transaction | None:
        """End the window, which is then in `items` or in the decoder's batch."""
        if isinstance(changes, ChangeList):
            self.begin(origin).add(changes.changes, scn)
        self.settle()
        status = self.decoder.commit(scn, timestamp_ns)
        if status == _decoder.EMPTY:  # all its rows were skipped, because its SCN is acknowledged
            return Transaction(scn, timestamp_ns, (), origin)
        if status == _decoder.FINISHED:
            self.end()
        elif status != _decoder.MORE:
            raise MemoryError
        return None

    def end(self) -> None:
        """Move the rest of a window that was handed over in pieces to `items`, and its end."""
        self.take_piece()
        self.items.append(WindowEnd(*self.decoder.take_end()))

    def add(self, changes: Iterable[Change], origin: Origin, scn: int) -> None:
        """Add changes to the current window, event by event."""
        decoder = self.decoder
        for change in changes:
            event = self._encoder.encode_change(change, origin, decoder.rows, scn)
            decoder.append_events(event, 0 if isinstance(change, TableDefined) else 1)
        self._follow()
        self.hand_over()

    def hand_over(self) -> None:
        """Move the written part of a large window to `items`, to bound the decoder's memory."""
        if self.decoder.held_bytes >= _decoder.PIECE_BYTES:
            self.take_batch()
            self.take_piece()

    def take_batch(self) -> None:
        """Move the complete windows to `items`."""
        batch = self.decoder.take_batch()
        if batch is not None:
            self.items.append(WindowBatch(*batch))

    def take_piece(self) -> None:
        """Move the written part of the current window to `items`; call `take_batch` first."""
        piece = self.decoder.take_piece()
        if piece is not None:
            self.items.append(WindowPiece(*piece, self.decoder.begin_scn))


class CompiledAssembler(Assembler):
    """Assembles the bytes of a socket, chunk by chunk."""

    def __init__(self, *arguments: Any, encoder: EventEncoder, epoch: int, **more: Any) -> None:
        self._decoder = make_decoder(encoder, epoch)
        self._encoded = EncodedWindows(self._decoder, encoder)
        super().__init__(*arguments, epoch=epoch, windows=self._encoded, **more)
        self._transactions = self._decoder.transactions
        self._room: WindowRoom | None = None

    def write_into(self, room: WindowRoom) -> None:
        """Write windows into the room of a ring, as far as there is any."""
        self._room = room

    def receive_bytes(self, chunk: memoryview | bytes, size: int) -> Iterator[ReadItem]:
        """Take the first `size` bytes of a chunk; yield the items that they complete.

        Raises AssemblyStopped, StreamBrokenError, AnotherLogError, or StreamEnded when the
        server ends the stream. Items yielded before the error are valid.
        """
        self._decoder.feed(chunk, size)
        reserved = self._room.reserve(_ROOM_FACTOR * size + _LEAST_ROOM) if self._room else None
        if reserved is None:
            yield from self._run()
            return
        position, room = reserved
        with room:
            yield from self._run_into(position, room) if len(room) >= _LEAST_ROOM else self._run()

    def _run(self, status: int = _decoder.FULL) -> Iterator[ReadItem]:
        """Decode all that was fed, from where a status stopped."""
        while status != _decoder.MORE:
            self._enter()
            status = self._decoder.run()
            self._leave()
            yield from self._outcome(status)

    def _run_into(self, position: int, room: memoryview) -> Iterator[ReadItem]:
        """Decode all that was fed, into room behind the ring's newest window.

        Windows that are handed over with their data take the place of what is written later.
        So from the first of them on none is placed.
        """
        status, at = _decoder.FULL, 0
        while status != _decoder.MORE:
            self._enter()
            with room[at:] as left:
                status, size, marks = self._decoder.run_into(left)
            self._leave()
            if marks is not None:
                yield WindowBatch(b"", marks, position + at)
                at += size
            is_placed = True
            for item in self._outcome(status):
                is_placed = is_placed and isinstance(item, Transaction) and not item.changes
                yield item
            if not is_placed or at > len(room) - _LEAST_ROOM:
                yield from self._run(status)
                return

    def _outcome(self, status: int) -> Iterator[ReadItem]:
        """Yield the finished items, and handle the reason for which the decoder stopped."""
        decoder, encoded = self._decoder, self._encoded
        # Complete windows come first: in the log they are before the current one.
        encoded.take_batch()
        if status == _decoder.LARGE:
            encoded.take_piece()
        elif status == _decoder.FINISHED:
            encoded.end()
        elif status == _decoder.EMPTY:
            encoded.items.append(Transaction(*decoder.empty, ()))
        yield from self._taken()
        if status == _decoder.BROKEN:
            raise StreamBrokenError(
                f"the packet after {self.position} does not have the number {decoder.sequence} "
                "or the length of its event"
            )
        if status == _decoder.PACKET:
            event_of(decoder.next_event())
        elif status == _decoder.EVENT:
            yield from self._assemble(decoder.next_event())

    def _assemble(self, event: bytes) -> Iterator[ReadItem]:
        """Read one event in Python."""
        self._layouts.update(self._decoder.layouts())
        for transaction in self.receive_parts(event):
            if transaction is not None:
                self._encoded.take_batch()
                self._encoded.items.append(transaction)
            yield from self._taken()
        if event[_TYPE_AT] in _STATEMENTS:
            self._decoder.unbind()  # the statement may have changed the layout of rows
        if not self._layouts:
            self._decoder.end_statements()
        self._transactions = self._decoder.transactions

    def _taken(self) -> list[ReadItem]:
        items, self._encoded.items = self._encoded.items, []
        return items

    def _enter(self) -> None:
        """Copy the assembler's state to the decoder."""
        decoder, cursor, group, held = self._decoder, self._cursor, self._group, self._held
        if decoder.file != cursor.file:
            decoder.file, decoder.file_number = cursor.file, cursor.file_number
        decoder.offset = cursor.offset
        decoder.has_checksum = self._reader.has_checksum
        decoder.newest_ns, decoder.yielded_second = self._newest_ns, self._yielded_second
        decoder.held_scn, decoder.held_ns = (
            (-1, 0) if held is None else (held.scn, held.timestamp_ns)
        )
        decoder.statement_comment = self._comment
        decoder.is_open = group is not None
        # The decoder then only cuts events. Prepared transactions, those beyond 4 GiB and events
        # of a proof do not go into its window.
        decoder.cuts_only = self._beyond is not None or self.identities.is_proving
        trail = self.identities.trail
        decoder.trail_begin, decoder.trail_digest = trail.begin, trail.digest
        decoder.expected_scn = self.identities.expected_scn
        if group is not None:
            decoder.cuts_only |= not isinstance(group.changes, _EncodedChanges)
            decoder.is_begun, decoder.commit_ns = group.is_begun, group.gtid.commit_timestamp_ns

    def _leave(self) -> None:
        """Copy the decoder's state to the assembler."""
        decoder = self._decoder
        self._cursor.offset = decoder.offset
        trail = self.identities.trail
        trail.begin, trail.digest = decoder.trail_begin, decoder.trail_digest
        self._note_executed()
        for scn, begin, digest, gtid, timestamp_ns in decoder.take_ended():
            self.identities.take(scn, self._cursor, begin, digest, gtid, timestamp_ns)
        self._newest_ns, self._yielded_second = decoder.newest_ns, decoder.yielded_second
        if decoder.held_scn < 0:
            self._held = None
        elif self._held is None or self._held.scn != decoder.held_scn:
            self._held = Transaction(decoder.held_scn, decoder.held_ns, ())
        self._comment = decoder.statement_comment
        if decoder.transactions != self._transactions:
            self._transactions = decoder.transactions
            self._layouts.clear()
            self._group = None
            # The first of them is the transaction to which Python has added versions.
            self._encoded.settle()
        if not decoder.is_open:
            self._group = None
        elif self._group is None:
            self._group = self._group_of_decoder()
        if self._group is not None:
            self._group.is_begun = decoder.is_begun

    def _note_executed(self) -> None:
        """Add the transactions that the decoder has ended to the executed ones."""
        runs, executed = self._decoder.take_runs(), self.identities.executed
        if executed is None:
            return
        # The first of them may have been begun in Python, and then only Python knows its GTID.
        if self._group is not None and self._decoder.transactions != self._transactions:
            gtid = self._group.gtid.text
            if gtid is not None:
                executed.add(gtid)
        executed.add_runs(runs)

    def _group_of_decoder(self) -> Group:
        decoder = self._decoder
        is_standalone = False if self._dialect.is_mariadb else None
        gtid = Gtid(decoder.gtid_text, is_standalone, decoder.commit_ns)
        offset, first_scn = decoder.start_offset, first_scn_of(decoder.begin_scn)
        origin = Origin(gtid.text, decoder.server_id, decoder.file, offset, self._epoch, first_scn)
        changes = self._encoded.begun(origin)
        return Group(decoder.start_offset, gtid, origin, changes, _BEGIN)
