"""A window larger than the ring, on its way into the log.

Its SCN is known only when its transaction commits, and each of its events has it. Until then the
events go, as they come, into a file without a name in the log's folder, of which a kill leaves
nothing. After the commit the log's thread stamps them, and writes them in frames that say that they
go on. They count once the last one is synced. What a kill leaves of them has no end: it is cut at
the next start, and the source sends the transaction again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from databus.daemon.files import make_folder
from databus.relay.log.gate import LogGate
from databus.relay.log.windows import Windows, parts_of_window, stamped_events
from databus.schemas.errors import ProtocolError
from databus.schemas.event.v2 import Buffer


class LargeWindow:
    """The events of one window. One thread writes them, and another one reads them after that."""

    def __init__(self, folder: Path) -> None:
        """Make the file in a folder; raise OSError."""
        make_folder(folder)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.scn = self.timestamp_ns = -1
        self.length = 0
        self.is_cancelled = False  # nobody waits for it any more
        self.is_durable = False  # all of it is in the log
        self.error: ProtocolError | None = None  # why it will never be

    def close(self) -> None:
        """Close the file, which is gone then; may be called twice."""
        self._file.close()

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.is_durable or self.error is not None

    def write(self, at: int, data: Buffer) -> None:
        """Write bytes, `at` bytes after the window's beginning; raise OSError."""
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file.fileno(), view, at)
            view, at = view[count:], at + count

    def read(self, at: int, size_bytes: int) -> bytes:
        """Return bytes of the events, not stamped; raise ProtocolError at the end."""
        data = os.pread(self._file.fileno(), min(size_bytes, self.length - at), at)
        if not data:
            raise ProtocolError("a window does not end with an EOP", at)
        return data

    def parts(self, frame_bytes: int) -> Iterator[Windows]:
        """Yield the stamped events in parts for frames; raise ProtocolError if they are not sound.

        Ends early if nobody waits for it any more.
        """
        size_bytes = 0
        for part in parts_of_window(self.read, frame_bytes, self._stamp):
            yield part
            size_bytes += len(part.data)
            if self.is_cancelled:
                return
        if size_bytes != self.length:
            raise ProtocolError("a window ends before its end", size_bytes)

    def _stamp(self, data: bytes, first_offset: int) -> tuple[Windows, int]:
        stamped, count, is_over = stamped_events(data, self.scn, self.timestamp_ns)
        times = self.timestamp_ns, self.timestamp_ns, self.timestamp_ns
        part = Windows(stamped, self.scn, self.scn, *times, first_offset, not is_over)
        return part, count


class LargeWindowWriter:
    """Where a ring puts the windows that it has no room for. The ring's writer calls it."""

    def __init__(self, folder: Path, gate: LogGate, submit: Callable[[LargeWindow], None]) -> None:
        """`submit` gives a whole window to the log's thread, which closes it in the end."""
        self._folder, self._gate, self._submit = folder, gate, submit
        self._window: LargeWindow | None = None
        self.size_bytes = 0  # of the window that is being written; 0 without one

    def write(self, at: int, data: Buffer) -> None:
        """Write bytes of a window, a new one at 0; raise OSError."""
        if at == 0:
            self.discard()
        if self._window is None:
            self._window = LargeWindow(self._folder)
        self._window.write(at, data)
        self.size_bytes = at + len(data)

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Return once the log has the window durably.

        Raises WaitEndedError if the wait is ended, and ProtocolError if it is not sound.
        """
        window, self._window = self._window, None
        assert window is not None, "a window is written before it is finished"
        window.length, window.scn, window.timestamp_ns = length, scn, timestamp_ns
        self._submit(window)
        try:
            self._gate.wait_until(lambda: window.is_over)
        finally:
            window.is_cancelled = True
            self.size_bytes = 0
        if window.error is not None:
            raise window.error

    def discard(self) -> None:
        """Forget the window that is being written, if there is one."""
        self.size_bytes = 0
        if self._window is not None:
            self._window.close()
            self._window = None
