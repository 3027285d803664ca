"""Copy the windows of a ring into its log, as they come. No threads.

A log goes on only where it is certain that it is the ring's: the ring's id is the one in its
segments, and what both have is the same, byte for byte. Otherwise, and if the ring no longer
has what comes after the log's end, the log begins anew with the ring's oldest window. The old one
is kept aside, and `gap` says why: nothing is ever read across a hole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from databus.relay.log.large_window import LargeWindow
from databus.relay.log.layout import UNKNOWN_SCN
from databus.relay.log.reader import LogReader
from databus.relay.log.windows import Windows, parts_of_window, whole_windows
from databus.relay.log.writer import LogWriter
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.reader import RingReader
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError
from databus.schemas.log_mark import LogMark

FRAME_BYTES = 256 << 10
COMPARED_BYTES = 16 << 20
_OVERWRITTEN = "the ring no longer has what comes after scn "


class LogFollower:
    """Copies one ring into one log. One thread at a time may call it.

    After an error of `copy` or `sync`, `roll_back` must follow before it is tried again.
    """

    def __init__(
        self,
        reader: RingReader,
        writer: LogWriter,
        mark: Callable[[], LogMark | None] = lambda: None,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        """`mark` returns the newest mark of the source's log, for the segments' headers."""
        self._reader = reader
        self._writer = writer
        self._mark = mark
        self._frame_bytes = frame_bytes
        self._opening = reader.opening
        self._proved: int | None = None  # the ring's opening that was compared with the log
        self._position: int | None = None  # in the ring; None until it is looked up
        self.durable_position = -1  # up to which the log has the ring's windows on disk
        # What is added to a position of the log for the ring's; None until both are one.
        self.shift: int | None = None
        self.gap = ""  # why the log began anew the last time; "" if it did not

    def place(self) -> None:
        """Find where in the ring the log ends, or begin the log anew; raises as `copy`."""
        position = self._place()
        self.durable_position = self._reader.tail if position is None else position
        self.shift = None if position is None else position - self._writer.durable.position
        self._position = position

    @property
    def behind_bytes(self) -> int:
        """How much the ring has that was not copied yet; 0 until it is known where that begins."""
        return 0 if self._position is None else self._reader.tail - self._position

    def copy(self, *, is_all: bool, most_bytes: int | None = None) -> bool:
        """Write the ring's new windows, only full frames unless `is_all`; return if there were any.

        Those that are appended meanwhile are left to the next call. Not many more than `most_bytes`
        are written.
        Raises OSError, RingError, and ProtocolError for windows that are not sound.
        """
        position = self._place()
        if position is None:  # the log has more than the ring
            self.durable_position, self.shift = self._reader.tail, None
            return False
        self._position, until = position, self._reader.tail
        if most_bytes is not None:
            until = min(until, position + most_bytes)
        try:
            while self._position < until:
                end = self._copy_frame(self._position, is_all=is_all)
                if end is None:
                    break
                self._position = end
        except DamagedWindowsError as error:
            self._position = self._begin_behind(error)
        except ScnNotFoundError:
            self._position = self._begin_at_head(_OVERWRITTEN + str(self._writer.written.scn))
        return self._position != position

    def add_large(self, window: LargeWindow) -> bool:
        """Write a window that the ring has no room for, behind all that the ring has.

        Returns False if the ring has windows that are still to be copied. The ring passes over
        the window once it is synced. Raises as `copy`; ProtocolError also if it is not sound.
        """
        if self._position is not None and self._position < self._reader.tail:
            return False
        if self._position is None or self._writer.written.scn >= window.scn:
            self._position = None  # written before a kill or a pause: the ring is not that far
            if self._has(window):
                return True
            self._position = self._begin_at_head(f"the source has another window {window.scn}")
            return False
        for part in window.parts(self._frame_bytes):
            self._writer.append(part, self._reader.ring_id, self._mark())
        if window.is_cancelled:
            self.roll_back()
        elif self._position is not None:
            self._position += window.length
        return True

    def _has(self, window: LargeWindow) -> bool:
        """Return whether the log has a window already, byte for byte."""
        with closing(LogReader(self._writer)) as logged:
            try:
                at, end = logged.find(window.scn, 0), logged.find(window.scn, WINDOW_DONE)
                if at is None or end != at + window.length:
                    return False
                for part in window.parts(self._frame_bytes):
                    if logged.read(at, len(part.data)) != part.data:
                        return False
                    at += len(part.data)
            except DamagedWindowsError:
                return True  # it cannot be compared, and reading it is an error of its own
            except ScnNotFoundError:
                return False
        return True

    def begin_sync(self) -> None:
        """Begin to make durable what was copied; raise OSError if the sync before has failed."""
        self._writer.begin_sync()
        self._take_durable()

    def sync(self) -> None:
        """Make what was copied durable; raise OSError."""
        self._writer.sync()
        self._take_durable()

    def _take_durable(self) -> None:
        """Learn up to where in the ring the log is durable."""
        if self._position is not None:
            self.shift = self._position - self._writer.written.position
            self.durable_position = self._writer.durable.position + self.shift

    def roll_back(self) -> None:
        """Forget what was copied since the last `sync`; raise OSError."""
        self._position = None
        self._writer.roll_back()

    def _place(self) -> int | None:
        """Return where in the ring the log ends; None if the ring is not that far yet."""
        self._reader.follow()
        if self._position is not None and self._opening == self._reader.opening:
            return self._position
        self._opening = self._reader.opening
        writer, end = self._writer, self._writer.written
        if writer.ring_id not in (None, self._reader.ring_id):
            return self._begin_at_head("it is the log of another ring")
        if writer.ring_id is None or end.scn == UNKNOWN_SCN:
            return self._begin_at_head("")
        try:
            position = self._reader.find(end.scn, WINDOW_DONE)
        except DamagedWindowsError as error:
            return self._begin_behind(error)
        except ScnNotFoundError:
            return self._begin_at_head(_OVERWRITTEN + str(end.scn))
        held = None if position is None else self._reader.window_at(end.scn)
        if held not in (None, (end.scn, end.timestamp_ns)):
            return self._begin_at_head(f"the ring has another window at scn {end.scn}")
        if position is not None and self._proved != self._opening:
            if not self._is_same(position):
                return self._begin_at_head(f"the ring has other windows up to scn {end.scn}")
            self._proved = self._opening
        return position

    def _is_same(self, position: int) -> bool:
        """Return whether both have the same before the log's end, `position` in the ring.

        A ring that was put back from a copy captures windows again, perhaps of other tables. The
        newest bytes are compared, and how many all are.
        """
        shift = position - self._writer.written.position
        with closing(LogReader(self._writer)) as logged:
            if not self._begins_alike(logged, shift):
                return False
            end = logged.tail + shift
            at = max(self._reader.head, logged.head + shift, end - COMPARED_BYTES)
            while at < end:
                size = min(FRAME_BYTES, end - at)
                try:
                    if self._reader.read(at, size) != logged.read(at - shift, size):
                        return False
                except DamagedWindowsError:
                    pass  # it cannot be compared, and reading it is an error of its own
                except ScnNotFoundError:
                    at = self._reader.head  # overwritten meanwhile
                    continue
                at += size
        return True

    def _begins_alike(self, logged: LogReader, shift: int) -> bool:
        """Return whether the younger of both begins where the other one has that place."""
        extent = self._reader.extent()
        try:
            if extent.head >= logged.head + shift:
                found = logged.find(extent.prev_scn, WINDOW_DONE)
                return extent.prev_scn < 0 or found is None or found == extent.head - shift
            found = self._reader.find(logged.prev_scn, WINDOW_DONE)
            return logged.prev_scn < 0 or found == logged.head + shift
        except ScnNotFoundError:
            return True  # it is not known, or was overwritten meanwhile

    def _begin_at_head(self, gap: str) -> int:
        extent = self._reader.extent()
        self._begin_anew(gap, extent.prev_scn)
        return extent.head

    def _begin_behind(self, damage: DamagedWindowsError) -> int | None:
        """Begin anew behind damaged windows of the ring; return where that is."""
        self._begin_anew(str(damage), damage.until)
        return self._reader.find(damage.until, WINDOW_DONE)

    def _begin_anew(self, gap: str, prev_scn: int) -> None:
        if gap:
            self.gap = f"the log {self._writer.folder} begins anew after scn {prev_scn}: {gap}"
        self.shift = None
        self._writer.begin_anew(prev_scn)

    def _copy_frame(self, position: int, *, is_all: bool) -> int | None:
        """Write one frame, or a window larger than one; return its end, None if there is none."""
        reader, size = self._reader, self._frame_bytes
        left = reader.newest()[1] - position
        if left <= 0 or (left < size and not is_all):
            return None
        end = reader.end_of_windows(position, size, size // 4)
        if end == position:
            return self._copy_large(position)
        windows = whole_windows(reader.read(position, end - position), self._writer.written.scn)
        self._append(windows)
        return position + len(windows.data)

    def _copy_large(self, position: int) -> int:
        """Write the parts of a window that is larger than a frame; return its end."""

        def read(at: int, size_bytes: int) -> bytes:
            return self._reader.read(begin + at, size_bytes)

        begin = position
        for part in parts_of_window(read, self._frame_bytes):
            self._append(part)
            position += len(part.data)
        return position

    def _append(self, windows: Windows) -> None:
        ring_id, mark = self._reader.ring_id, self._mark()
        self._writer.append(windows, ring_id, mark)
