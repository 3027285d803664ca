"""From transactions to windows: what sources that read whole transactions share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from databus.relay.sources.source import (
    Captured,
    EventEncoder,
    Newest,
    ReadItem,
    Transaction,
    UnfitRowError,
)
from databus.schemas.errors import SourceStoppedError
from databus.schemas.windows import MARK, NO_SCN, EmptyWindow, WindowBatch

BATCH_BYTES = 1 << 20  # a batch that has grown so large is complete


class WindowWriter:
    """Writes windows of what one connection of a source reads; make one at each `open`.

    `newest` is what `open` was given. The ring has the windows up to there: they are not
    encoded again, and only their marks say how far the log was read. Without an encoder, all
    windows are empty.
    """

    def __init__(
        self,
        source: str,
        encoder: EventEncoder | None = None,
        newest: Newest | None = None,
    ) -> None:
        self._source = source
        self._encoder = encoder
        self._held_scn = self._written_scn = NO_SCN if newest is None else newest.scn
        self._problem: Exception | None = None
        self._found: list[Captured] = []
        self._data: list[bytes] = []
        self._marks: list[bytes] = []
        self._size_bytes = 0
        self._last_scn = NO_SCN

    @property
    def is_whole(self) -> bool:
        """Whether all that was read was written."""
        return self._problem is None

    def write_from(self, read: Callable[[], Sequence[ReadItem]]) -> Sequence[Captured]:
        """Return the windows of what `read` returns.

        Windows before one that cannot be written are good. They are returned, and the next
        call raises: SourceStoppedError for a row that does not fit its schema.
        """
        if self._problem is None:
            items = read()
            try:
                for item in items:
                    self._take(item)
            except Exception as error:
                self._problem = error
            self._end_batch()
        found, self._found = self._found, []
        if self._problem is not None and not found:
            raise self._problem
        return found

    def _take(self, item: ReadItem) -> None:
        if not isinstance(item, Transaction):
            self._end_batch()
            self._found.append(item)
        elif self._encoder is None or not item.changes:
            self._end_batch()
            self._found.append(EmptyWindow(item.scn, item.timestamp_ns))
        elif item.scn <= self._held_scn:
            self._add(item, b"")
        else:
            self._add(item, self._encode(item, self._encoder))
            self._written_scn = item.scn

    def _encode(self, transaction: Transaction, encoder: EventEncoder) -> bytes:
        try:
            return encoder.encode(transaction).data
        except UnfitRowError as error:
            origin = transaction.origin
            raise SourceStoppedError(
                self._source,
                self._written_scn,
                str(error),
                f"{origin.file}:{origin.offset}" if origin.file else "",
                evidence=f"{transaction.scn} {error}".encode(),
                remedy=error.remedy,
                tables=error.tables,
            ) from error

    def _add(self, transaction: Transaction, data: bytes) -> None:
        scn, timestamp_ns, rows = transaction.scn, transaction.timestamp_ns, transaction.changes
        # SCNs rise within a batch. Where they do not, the capture loop sees a log that went back.
        if scn <= self._last_scn or self._size_bytes >= BATCH_BYTES:
            self._end_batch()
        self._data.append(data)
        self._size_bytes += len(data)
        self._marks.append(MARK.pack(scn, self._size_bytes, timestamp_ns, len(rows)))
        self._last_scn = scn

    def _end_batch(self) -> None:
        if self._marks:
            self._found.append(WindowBatch(b"".join(self._data), b"".join(self._marks)))
        self._data, self._marks, self._size_bytes, self._last_scn = [], [], 0, NO_SCN
