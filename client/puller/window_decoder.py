"""Decodes a stream answer into windows for the buffer. Pure.

It returns whole windows, in order, each with the bindings that decode it. A server that goes
back without saying so, or sends an event without a row, raises ProtocolError; the position
stays after the last good window.
"""

from __future__ import annotations

from collections.abc import Sequence

from databus.client.machines.connection_messages import HalfWindow, Progress
from databus.client.machines.position import Position
from databus.client.puller.buffer_items import (
    NOTICE_BYTES,
    BufferItem,
    ReadWindow,
    RolledBack,
    position_after,
)
from databus.client.puller.unknown_schemas import UnknownSchemaError, explain_unknown
from databus.client.subscription import Bindings, schemas_of
from databus.schemas.errors import DatabusError, ProtocolError
from databus.schemas.event.control import checkpoint_of
from databus.schemas.stream.row_reader import RowReader, RowWindow
from databus.schemas.stream.stream_reader import ControlEvent


class WindowDecoder:
    """Decodes the stream answers of one registration, one at a time."""

    def __init__(self, max_window_bytes: int) -> None:
        self._reader = RowReader(max_window_bytes)
        self._bindings: Bindings = {}
        self._position: Position | None = None
        self._failure: DatabusError | None = None  # behind the items that were returned
        self._asked: set[str] = set()  # schema ids of DDL events that were requested

    def use(self, bindings: Bindings) -> None:
        """Decode with these bindings from now on."""
        self._bindings = bindings
        self._reader.known = schemas_of(bindings)

    def begin(self, position: Position) -> None:
        """Start an answer; `position` is after the last whole window."""
        self._position = position
        self._failure = None

    def receive(self, chunk: bytes) -> list[BufferItem]:
        """Return the items that the bytes complete.

        Raises ProtocolError (also as WindowTooLargeError) or UnknownSchemaError; if there are
        items before it, these are returned, and `check` raises it.
        """
        assert self._position is not None, "begin() comes first"
        items: list[BufferItem] = []
        since, last_scn, bindings = self._position, self._position.floor_scn, self._bindings
        last: RowWindow | None = None
        try:
            for item in self._read(chunk):
                if isinstance(item, RowWindow):
                    scn = item.scn
                    # Hot path: nearly all windows pass without a call.
                    if scn <= last_scn or item.unknown or item.statements:
                        self._check(item, last_scn)
                    items.append(ReadWindow(item, bindings, since))
                    last, last_scn = item, scn
                # The relay announces that it goes back: the windows after its SCN are sent again.
                elif item.event.is_scn_regress:
                    since, last = _went_back(item, last_scn), None
                    last_scn = since.floor_scn
                    items.append(RolledBack(since.scn))
                else:
                    _refuse(item)
        except (ProtocolError, UnknownSchemaError) as error:
            self._failure = error
        # Once per chunk, not per window: creating a checkpoint is slow.
        self._position = position_after(since, last) if last else since
        if not items:
            self.check()
        return items

    def check(self) -> None:
        """Raise the error behind the items that `receive` returned, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _read(self, chunk: bytes) -> Sequence[RowWindow | ControlEvent]:
        """Return what the bytes complete, damage behind it or not."""
        try:
            return self._reader.receive(chunk)
        except ProtocolError as error:
            self._failure = error
            return self._reader.before_damage

    def end(self) -> None:
        """End the answer; raise ProtocolError inside an event."""
        self._reader.close()

    def reset(self) -> None:
        """Forget the incomplete window."""
        self._reader.reset()

    @property
    def progress(self) -> Progress:
        """What has arrived since `begin`."""
        failure, is_latest = self._failure, self._position is not None and self._position.is_latest
        if isinstance(failure, UnknownSchemaError):
            # "Latest", requested again, would mean a position after that window.
            return Progress(self._position, HalfWindow(failure.scn, 0) if is_latest else None)
        scn = self._reader.pending_scn
        half = None if scn is None else HalfWindow(scn, self._reader.pending_events)
        return Progress(self._position, half)

    def empty_window(self, position: Position) -> ReadWindow:
        """Return an empty window that ends at `position`."""
        window = RowWindow(position.scn, position.checkpoint.ts_ns, (), NOTICE_BYTES)
        return ReadWindow(window, self._bindings, position)

    def _check(self, window: RowWindow, last_scn: int) -> None:
        # A window that comes twice, or out of order, would corrupt what consumers have stored.
        if window.scn <= last_scn:
            raise ProtocolError(f"window {window.scn} after window {last_scn}")
        if window.unknown:
            explain_unknown(window.unknown, self._bindings, window.scn)
        if window.statements:
            self._ask_for_versions(window)

    def _ask_for_versions(self, window: RowWindow) -> None:
        """Request the versions that a DDL statement made, once, before delivering it."""
        by_name = {bound.name: bound for bound in self._bindings.values()}
        for _, told in window.statements:
            for name, digits in told.schemas.items():
                bound = by_name.get(name)
                # Once per version: a relay that does not list it would otherwise be asked for ever.
                if bound is None or digits in self._asked:
                    continue
                self._asked.add(digits)
                if (digest := bytes.fromhex(digits)) not in bound.versions:
                    raise UnknownSchemaError(bound.src_id, digest, window.scn)


def _went_back(item: ControlEvent, last_scn: int) -> Position:
    """Return the position after a server went back; raise ProtocolError if it is ahead."""
    since = Position(checkpoint_of(item.event))
    if since.floor_scn > last_scn:
        raise ProtocolError(f"a return to {since.floor_scn}, which is ahead of {last_scn}")
    return since


def _refuse(item: ControlEvent) -> None:
    event = item.event
    if event.is_error:
        text = event.value.decode("utf-8", "replace")
        raise ProtocolError(f"the server sent error event {event.src_id}: {text}")
    raise ProtocolError(f"a control event of src_id {event.src_id} has no place in a stream")
