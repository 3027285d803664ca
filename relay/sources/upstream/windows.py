"""From bodies of `/stream` to windows as the ring takes them, every byte as it came. Pure.

Both CRCs of each event are compared before a window is handed over. A window larger than an
answer comes in pieces. The ring stamps the events of a window that it was given in pieces: with
the SCN and time that they have already, so their bytes stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from databus.relay.sources.source import Captured
from databus.schemas.errors import ProtocolError
from databus.schemas.event.v2 import peek
from databus.schemas.stream.row_reader import RowReader, RowWindow
from databus.schemas.stream.whole_events import count_events
from databus.schemas.windows import MARK, WindowBatch, WindowEnd, WindowPiece

WINDOW_DONE = -1
_NO_LIMIT = 1 << 50  # the ring decides how large a window may be

Schema = tuple[int, bytes]  # src_id, schema id


class WindowCutter:
    """Cuts the bodies that follow one another, from the end of window `scn` on.

    `schemas` are those that rows may have. `mark` is the newest window with rows that was handed
    over: its SCN, and its time in ns.
    """

    def __init__(self, scn: int, schemas: Iterable[Schema] = ()) -> None:
        self.scn = scn
        self.schemas = frozenset(schemas)
        self.mark: tuple[int, int] | None = None
        self._piece = _Piece()

    @property
    def is_inside(self) -> bool:
        """Whether a part of a window was handed over."""
        return self._piece.size_bytes > 0

    def unknown_in(self, windows: Iterable[RowWindow]) -> set[Schema]:
        """Return the schemas of windows that are not in `schemas`."""
        return {one for window in windows for one in window.unknown - self.schemas}

    def read(self, body: bytes) -> list[RowWindow]:
        """Return the windows that a body has, the first one perhaps without its beginning.

        Raises ProtocolError.
        """
        reader = RowReader(_NO_LIMIT)
        reader.known = self.schemas
        found = reader.receive(body)
        reader.close()
        windows = [window for window in found if isinstance(window, RowWindow)]
        if reader.pending_events or len(windows) != len(found):
            raise ProtocolError("a body that should have whole windows has something else")
        scn = self.scn
        for window in windows:
            if window.scn <= scn:
                raise ProtocolError(f"window {window.scn} comes after window {scn}")
            scn = window.scn
        return windows

    def take(self, body: bytes, windows: list[RowWindow]) -> list[Captured]:
        """Return what a body of `read` is to the ring."""
        found: list[Captured] = []
        at = 0
        if self.is_inside:
            first, windows = windows[0], windows[1:]
            at = first.size_bytes
            found = self._end_piece(body[:at], first)
        if windows:
            found.append(self._batch(body[at:], windows))
        return found

    def take_part(self, body: bytes) -> list[Captured]:
        """Return a body that is a part of one window, which does not end with it.

        Raises ProtocolError.
        """
        rows = count_events(body)
        first = peek(body)
        if first.scn <= self.scn or first.scn != self._piece.scn_or(first.scn):
            raise ProtocolError(f"a part of window {first.scn} comes after {self.scn}")
        piece = WindowPiece(self._piece.size_bytes, body, max(self.scn, 0))
        timestamp_ns = first.timestamp_ns
        size_bytes = self._piece.size_bytes + len(body)
        self._piece = _Piece(size_bytes, self._piece.rows + rows, first.scn, timestamp_ns)
        return [piece]

    def _end_piece(self, rest: bytes, window: RowWindow) -> list[Captured]:
        piece, self._piece = self._piece, _Piece()
        if (window.scn, window.timestamp_ns) != (piece.scn, piece.timestamp_ns):
            raise ProtocolError(f"window {piece.scn} goes on with events of window {window.scn}")
        length, rows = piece.size_bytes + len(rest), piece.rows + len(window.events)
        begin_scn, self.scn = max(self.scn, 0), window.scn
        self.mark = window.scn, window.timestamp_ns
        return [
            WindowPiece(piece.size_bytes, rest, begin_scn),
            WindowEnd(length, window.scn, window.timestamp_ns, rows),
        ]

    def _batch(self, body: bytes, windows: list[RowWindow]) -> WindowBatch:
        marks, end = [], 0
        for window in windows:
            end += window.size_bytes
            rows = len(window.events)
            marks.append(MARK.pack(window.scn, end, window.timestamp_ns, rows))
            if rows:
                self.mark = window.scn, window.timestamp_ns
        self.scn = windows[-1].scn
        return WindowBatch(body, b"".join(marks))


class _Piece(NamedTuple):
    """What was handed over of a window."""

    size_bytes: int = 0
    rows: int = 0
    scn: int = -1
    timestamp_ns: int = 0

    def scn_or(self, scn: int) -> int:
        """Return its SCN, or the given one if it has not begun."""
        return self.scn if self.size_bytes else scn
