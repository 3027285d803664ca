"""The assembler behind a compiled binlog decoder: bytes of the socket in, windows out.

The decoder reads plain transactions and stops before any event that is not plain. The
assembler takes over the decoder's state, reads that one event and hands its state back. Both
write into the window under way, which the decoder owns, so it does not matter which of them
reads an event.
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
_NOBODYS = (0, 0, 0)  # a mark before the first change of a window


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
    """Changes that are events in the decoder's window already."""

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
            self.add(row_changes(layout, type_code, body, comment), scn)
        self._windows.hand_over()

    def mark(self) -> tuple[int, int, int]:
        return self._windows.mark()

    def cut(self, mark: tuple[int, int, int]) -> None:
        self._windows.cut(*mark)


class EncodedWindows:
    """Windows written by the decoder; `items` are those that wait to be taken, in order."""

    def __init__(self, decoder: BinlogDecoder, encoder: EventEncoder) -> None:
        self.decoder = decoder
        self.items: list[ReadItem] = []
        self._encoder = encoder
        encoder.take_back()  # what a connection before this one has not finished
        self._revision = encoder.revision
        self._origin = Origin()  # of the transaction under way
        # By the layout's identity and the schema's id: a table may be altered, and altered
        # back, and its rows are then of another version, though they look as before.
        self._plans: dict[tuple[int, bytes], tuple[RowLayout, RowPlan | None]] = {}

    def begin(self, origin: Origin) -> _EncodedChanges:
        """Begin a transaction."""
        gtid = None if origin.gtid is None else origin.gtid.encode()
        self.decoder.begin(gtid, origin.server_id, origin.offset)
        return self.begun(origin)

    def begun(self, origin: Origin) -> _EncodedChanges:
        """Return the changes of a transaction that the decoder has begun."""
        self._origin = origin
        return _EncodedChanges(self, origin)

    def announce(self, table_id: int, content: bytes, layout: RowLayout | None, scn: int) -> None:
        """Give the decoder a TABLE_MAP and the plan of its rows."""
        plan = None if layout is None else self.plan(layout, self._origin, scn)
        self.decoder.bind(table_id, content, layout, plan)

    def plan(self, layout: RowLayout, origin: Origin, scn: int) -> RowPlan | None:
        """Return how the decoder writes a table's rows; None when Python writes them.

        Python writes rows that make a new version: only a row makes one, not its TABLE_MAP.
        """
        try:
            encoder = self._encoder.known_table(layout.table, origin, scn)
        except DatabusError:
            return None  # the first row raises it
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
        """Have tables announced again when rows may be of another version than before."""
        if self._encoder.revision != self._revision:
            self._revision = self._encoder.revision
            self.decoder.unbind()

    def mark(self) -> tuple[int, int, int]:
        """Return what `cut` takes: bytes, rows and versions of the window under way."""
        return self.decoder.window_bytes, self.decoder.rows, self._encoder.mark()

    def cut(self, size: int, rows: int, versions: int) -> None:
        """Drop everything behind these."""
        self.decoder.cut(size, rows)
        self._encoder.take_back(versions)
        self._follow()

    def settle(self) -> None:
        """Register what the window that ends has made, before it is handed over."""
        self._encoder.settle()

    def join(self, earlier: Any, later: Any, origin: Origin) -> Changes:  # noqa: ARG002
        """Return what is in the window; there, one transaction is behind the other already."""
        if not isinstance(later, ChangeList):
            changes: Changes = later
            return changes
        encoded = self.begin(origin)
        encoded.add(later.changes, 0)
        return encoded

    def finish(
        self, scn: int, timestamp_ns: int, changes: Any, origin: Origin
    ) -> Transaction | None:
        """End the window; what is to be taken then is in `items` or in the decoder's batch."""
        if isinstance(changes, ChangeList):
            self.begin(origin).add(changes.changes, scn)
        self.settle()
        status = self.decoder.commit(scn, timestamp_ns)
        if status == _decoder.EMPTY:  # its rows were skipped: its SCN is acknowledged
            return Transaction(scn, timestamp_ns, (), origin)
        if status == _decoder.FINISHED:
            self.end()
        elif status != _decoder.MORE:
            raise MemoryError
        return None

    def end(self) -> None:
        """Take the rest of a window that was handed over in pieces."""
        self.take_piece()
        self.items.append(WindowEnd(*self.decoder.take_end()))

    def add(self, changes: Iterable[Change], origin: Origin, scn: int) -> None:
        """Add changes to the window under way, event by event."""
        decoder = self.decoder
        for change in changes:
            event = self._encoder.encode_change(change, origin, decoder.rows, scn)
            decoder.append_events(event, 0 if isinstance(change, TableDefined) else 1)
        self._follow()
        self.hand_over()

    def hand_over(self) -> None:
        """Hand over what there is of a window that has become large."""
        if self.decoder.held_bytes >= _decoder.PIECE_BYTES:
            self.take_batch()
            self.take_piece()

    def take_batch(self) -> None:
        """Move the windows that are complete to `items`."""
        batch = self.decoder.take_batch()
        if batch is not None:
            self.items.append(WindowBatch(*batch))

    def take_piece(self) -> None:
        """Move what there is of the window under way to `items`; no complete one is before it."""
        piece = self.decoder.take_piece()
        if piece is not None:
            self.items.append(WindowPiece(*piece, self.decoder.begin_scn))


class CompiledAssembler(Assembler):
    """Takes the bytes of the socket, in chunks, and returns what they complete."""

    def __init__(self, *arguments: Any, encoder: EventEncoder, epoch: int, **more: Any) -> None:
        self._decoder = make_decoder(encoder, epoch)
        self._encoded = EncodedWindows(self._decoder, encoder)
        super().__init__(*arguments, epoch=epoch, windows=self._encoded, **more)
        self._transactions = self._decoder.transactions

    def receive_bytes(self, chunk: memoryview | bytes, size: int) -> Iterator[ReadItem]:
        """Take the first `size` bytes of a chunk; yield what is complete then.

        Raises AssemblyStopped, StreamBrokenError, AnotherLogError, and StreamEnded
        when the server says so; what was yielded before that is good.
        """
        self._decoder.feed(chunk, size)
        status = _decoder.FULL
        while status != _decoder.MORE:
            self._enter()
            status = self._decoder.run()
            self._leave()
            yield from self._outcome(status)

    def _outcome(self, status: int) -> Iterator[ReadItem]:
        """Yield what there is to be taken, and do what is to be done, after the decoder stopped."""
        decoder, encoded = self._decoder, self._encoded
        # Before anything else, for it came before; nothing is left of it while pieces are taken.
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
                f"the packet behind {self.position} is not number {decoder.sequence},"
                " or not as long as its event"
            )
        if status == _decoder.PACKET:
            event_of(decoder.next_event())
        elif status == _decoder.EVENT:
            yield from self._assemble(decoder.next_event())

    def _assemble(self, event: bytes) -> Iterator[ReadItem]:
        """Have the assembler in Python read one event."""
        self._layouts.update(self._decoder.layouts())
        for transaction in self.receive_parts(event):
            if transaction is not None:
                self._encoded.take_batch()
                self._encoded.items.append(transaction)
            yield from self._taken()
        if event[_TYPE_AT] in _STATEMENTS:
            self._decoder.unbind()  # what it defines may be read otherwise from now on
        if not self._layouts:
            self._decoder.end_statements()
        self._transactions = self._decoder.transactions

    def _taken(self) -> list[ReadItem]:
        items, self._encoded.items = self._encoded.items, []
        return items

    def _enter(self) -> None:
        """Give the decoder the state of the assembler."""
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
        # Transactions that the decoder has no window for: prepared ones, and those beyond 4 GiB.
        decoder.cuts_only = self._beyond is not None or self.identities.is_proving
        trail = self.identities.trail
        decoder.trail_begin, decoder.trail_digest = trail.begin, trail.digest
        decoder.expected_scn = self.identities.expected_scn
        if group is not None:
            decoder.cuts_only |= not isinstance(group.changes, _EncodedChanges)
            decoder.is_begun, decoder.commit_ns = group.is_begun, group.gtid.commit_timestamp_ns

    def _leave(self) -> None:
        """Take over the state of the decoder."""
        decoder = self._decoder
        self._cursor.offset = decoder.offset
        trail = self.identities.trail
        trail.begin, trail.digest = decoder.trail_begin, decoder.trail_digest
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
            self._encoded.settle()  # the first of them was the one under way
        if not decoder.is_open:
            self._group = None
        elif self._group is None:
            self._group = self._group_of_decoder()
        if self._group is not None:
            self._group.is_begun = decoder.is_begun

    def _group_of_decoder(self) -> Group:
        decoder = self._decoder
        is_standalone = False if self._dialect.is_mariadb else None
        gtid = Gtid(decoder.gtid_text, is_standalone, decoder.commit_ns)
        offset, first_scn = decoder.start_offset, first_scn_of(decoder.begin_scn)
        origin = Origin(gtid.text, decoder.server_id, decoder.file, offset, self._epoch, first_scn)
        changes = self._encoded.begun(origin)
        return Group(decoder.start_offset, gtid, origin, changes, _NOBODYS)
