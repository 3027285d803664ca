"""One catch-up: the source's log, read a second time from an older place.

The capture loop, the ring and the relay log are those of a physical source, in a folder of their
own that is removed at the end. A thread looks after them: it compares what both have where the
catch-up meets the relay's history (`junction`), and lets capture rest while it is joined, or far
ahead of its slowest reader.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from databus.conf.settings import PhysicalSourceSettings, RelayLogSettings
from databus.daemon.faults import is_transient
from databus.daemon.files import make_folder
from databus.daemon.log_setup import about
from databus.relay.capture.capture import Capture
from databus.relay.capture.max_scn import MaxScnStore
from databus.relay.capture.status import State
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.captured_spans import CapturedSpans
from databus.relay.catch_up.junction import beyond, bound_of, compare
from databus.relay.catch_up.left_out import LeftOut
from databus.relay.catch_up.read_ahead import ReadAhead, ReadAheadGate
from databus.relay.catch_up.server_read import ServerRead
from databus.relay.catch_up.start_mark import StartMark
from databus.relay.catch_up.status import CatchUpState
from databus.relay.clock import Clock
from databus.relay.log.archive.away import SegmentAwayError
from databus.relay.log.archive.manifest import ArchiveError
from databus.relay.log.history import HistoryReader
from databus.relay.log.layout import UNKNOWN_SCN
from databus.relay.log.recorder import LogRecorder
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.relay.ring.scn_index import Extent
from databus.relay.sources.kind import RereadPlace, RereadRequest
from databus.relay.sources.source import Source
from databus.schemas.errors import (
    DamagedWindowsError,
    DatabusError,
    RelayLogError,
    ScnNotFoundError,
)
from databus.schemas.event.event import Event
from databus.schemas.event.v2 import SMALLEST_BYTES, peek
from databus.schemas.log_mark import LogMark

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.2
_STOP_S = 60.0
_FETCH_S = 1.0
_PROVE_EVERY_S = 5.0
_MOST_SEGMENT_BYTES = 64 << 20
_FOR_EVER_HOURS = 24.0 * 365_000
_READERS, _ANY_BYTES = (
    "its readers",
    1 << 62,
)  # whose unread windows are kept; reading waits for them
_OVERLAP_PART = 4  # of what the relay holds, which a joined catch-up has, too


class Reread(NamedTuple):
    """How a source's log is read a second time; see `SourceKind`.

    `open_source` opens a source that keeps what it must remember in a folder.
    """

    prepare: Callable[[PhysicalSourceSettings, RereadRequest], RereadPlace]
    open_source: Callable[[PhysicalSourceSettings, Path], Source]


@dataclass(frozen=True, slots=True)
class MainHistory:
    """A physical source's own history, and how its log is read from another place.

    `reread` is how the source's log is read a second time.
    """

    settings: PhysicalSourceSettings
    data_dir: Path
    ring_path: Path
    ring: Ring
    max_scn: MaxScnStore
    recorder: LogRecorder | None
    reread: Reread
    server: ServerRead
    make_encoder: Callable[[], WindowEncoder]
    spans: CapturedSpans
    on_problem: Callable[[Exception], None]
    clock: Clock

    def newest_mark(self) -> LogMark | None:
        """Return the newest known identity of the source's log."""
        saved = self.max_scn.mark()
        return max([*self.ring.log_marks(), *([] if saved is None else [saved])], default=None)

    def counts(self, event: Event) -> bool:
        """Return whether the relay has all rows of an event's source in its window."""
        return self.spans.has_all(event.src_id, event.scn)


class CatchUp:
    """Reads the log from a place on, on a thread of its own; the loop's calls the methods."""

    def __init__(
        self,
        main: MainHistory,
        server: PhysicalSourceSettings,
        folder: Path,
        asked_scn: int,
        read_ahead: ReadAhead,
        on_change: Callable[[], None],
        hole_until: int = UNKNOWN_SCN,
    ) -> None:
        """`server` are the settings of the source for the server to read.

        It leads to what follows `hole_until`, if the relay still holds windows up to there.
        `read_ahead` knows its readers. `on_change` is called on its threads when there is more to
        read; it must not block.
        """
        self._main, self._folder, self._on_change = main, folder, on_change
        self.server, self.hole_until = server, hole_until
        self.asked_scn, self._read_ahead = asked_scn, read_ahead
        self.name = f"{main.settings.name}.catch-up"
        self.begin_scn, self._first_scn = -1, 0
        self.proved_scn = -1  # up to which both histories are proved to be the same
        self.problem = ""
        self.is_passing = False  # whether the problem may be gone later, by itself
        self.is_outdated = False  # the relay's ring has begun anew
        self.capture: Capture | None = None
        self.recorder: LogRecorder | None = None
        self._is_opened = self._is_held_back = False
        self._enough_scn = -1
        self._ended = threading.Event()
        self._may_read = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    @property
    def is_queued(self) -> bool:
        """Whether it has not been let read yet."""
        return not self._may_read.is_set()

    @property
    def is_over(self) -> bool:
        """Whether its thread has ended, and its folder is removed."""
        return not self._thread.is_alive()

    @property
    def is_open(self) -> bool:
        """Whether `open_reader` may be called."""
        return self._is_opened and not self.problem and not self._ended.is_set()

    @property
    def state(self) -> CatchUpState:
        """Its state."""
        if self.problem:
            return CatchUpState.FAILED
        if self.capture is None:
            return CatchUpState.QUEUED if self.is_queued else CatchUpState.OPENING
        if self.proved_scn >= 0:
            return CatchUpState.JOINED
        if self._is_held_back:
            return CatchUpState.HELD_BACK
        was_opened = self.capture.status.was_opened
        return CatchUpState.READING if was_opened else CatchUpState.OPENING

    @property
    def trouble(self) -> str:
        """The problem that keeps it from reading on, and is retried; "" without one."""
        if self.capture is None or self.recorder is None:
            return ""
        return self.recorder.problem or self.capture.status.problem

    def read(self) -> None:
        """Let it read; until then it only finds out whether the log has its place."""
        self._may_read.set()

    def end(self) -> None:
        """Stop reading and remove the folder, soon."""
        self._ended.set()
        self._may_read.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return whether it came in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def open_reader(self) -> HistoryReader:
        """Return a reader of what it has read, for one thread; raise RingError."""
        assert self.recorder is not None
        return _OwnedHistory(RingReader.open(self._ring_path), self.recorder)

    @property
    def _ring_path(self) -> Path:
        return self._folder / f"{self.name}.ring"

    def _run(self) -> None:
        try:
            mark = self._prepare()
            while self.is_queued:
                self._may_read.wait(_PROVE_EVERY_S)
                # The place may be purged meanwhile, and what the relay knows may be more.
                mark = self._prepare()
            if self._ended.is_set():
                return
            with ExitStack() as opened:
                own, read = self._open(mark, opened)
                self._is_opened = True
                self._on_change()
                ring_id = own.ring_id
                held = self._held_by(own, opened)
                while not self._ended.wait(LOOK_EVERY_S):
                    self._look(own, held, read, ring_id)
        except Exception as error:
            self._fail(error)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._on_change()

    def _fail(self, error: Exception) -> None:
        is_known = isinstance(error, DatabusError | OSError)
        self.is_passing = is_transient(error)
        self.problem = str(error) if is_known else f"internal error: {error!r}; see the log"
        text = "%s from scn %d failed: %s"
        trace = None if is_known else error
        known = about(physical_source=self._main.settings.name, scn=self.asked_scn)
        log.error(text, self.name, self.asked_scn, self.problem, exc_info=trace, extra=known)
        self._main.on_problem(error)

    def _prepare(self) -> LogMark | None:
        """Find out whether the source's log has the place; return the identity of that log."""
        main, mark = self._main, self._main.newest_mark()
        if mark is None:  # capture notes it a moment after the first window
            self._ended.wait(LOOK_EVERY_S)
            mark = main.newest_mark()
        make_folder(self._folder)
        wanted = RereadRequest(self.asked_scn, mark, self.name, main.data_dir, self._folder)
        self.begin_scn, self._first_scn = main.reread.prepare(self.server, wanted)
        return mark

    def _open(self, mark: LogMark | None, opened: ExitStack) -> tuple[RingReader, HistoryReader]:
        """Open everything; return readers of the relay's ring and of this history."""
        main, begin_scn, settings = self._main, self.begin_scn, self._settings()
        ring = Ring.open(
            self._ring_path, self.name, settings.ring_bytes, start_scn=max(begin_scn, 0)
        )
        opened.callback(ring.close)
        assert settings.log is not None
        recorder = LogRecorder(
            self._ring_path,
            self._folder / "log",
            self.name,
            settings.log,
            lambda: capture.is_to_rest,
            main.on_problem,
            main.clock,
        )
        opened.callback(recorder.close)
        recorder.open()
        ring.gate, ring.large = ReadAheadGate(recorder.gate, self._read_ahead), recorder.large

        def on_append() -> None:
            recorder.notify()
            self._on_change()

        encoder = main.make_encoder()
        encoder.first_scn = self._first_scn
        capture = Capture(
            settings,
            lambda of_table: main.reread.open_source(of_table, self._folder),
            ring,
            encoder,
            StartMark(begin_scn, mark),
            on_append,
            clock=main.clock,
            on_problem=main.on_problem,
            stops=LeftOut(main.spans, ring, begin_scn),
        )
        own = RingReader.open(main.ring_path, follows=True)
        opened.callback(own.close)
        self.recorder = recorder
        read = self.open_reader()
        opened.callback(read.close)
        opened.callback(recorder.stop, _STOP_S)
        recorder.start()
        opened.callback(capture.stop)  # however long it takes: it writes to the ring
        capture.start()
        self.capture = capture
        return own, read

    def _settings(self) -> PhysicalSourceSettings:
        settings = self.server
        most_bytes = settings.catch_up_bytes
        kept = RelayLogSettings(
            segment_bytes=max(64 << 10, min(_MOST_SEGMENT_BYTES, most_bytes // 16)),
            retention_bytes=most_bytes,
            retention_hours=_FOR_EVER_HOURS,
            hold=(_READERS,),
            hold_bytes=_ANY_BYTES,
            compression="zstd" if settings.log is None else settings.log.compression,
        )
        # Two connections of one replica id would disconnect each other.
        return settings.model_copy(update={"name": self.name, "log": kept, "server_id": 0})

    def _held_by(self, own: RingReader, opened: ExitStack) -> HistoryReader | RingReader:
        """Return a reader of all that the relay holds."""
        if self._main.recorder is None:
            return own
        held = HistoryReader(own, self._main.recorder)
        opened.callback(held.close)
        return held

    def _look(
        self,
        own: RingReader,
        held: HistoryReader | RingReader,
        read: HistoryReader,
        ring_id: int,
    ) -> None:
        """Compare, if there is something to compare, and let capture read on or rest."""
        capture = self.capture
        assert capture is not None
        status = capture.status
        if status.state is State.ERROR:
            raise RelayLogError(status.problem)
        own.follow()
        if own.ring_id != ring_id:
            # What it was compared with is gone; another one may be begun.
            self.is_outdated = True
            self._ended.set()
            return
        extent = self._extent(held)
        if extent is None:
            return
        bound = bound_of(extent)
        if self.proved_scn < bound:
            self._prove(extent, held, read)
        is_enough = bound <= self.proved_scn and status.scn >= self._enough_scn
        self._steer(capture, read.extent().tail, is_enough=is_enough)

    def _extent(self, held: HistoryReader | RingReader) -> Extent | None:
        """Return what is held after the hole, if there is one; None if it is evicted just now."""
        extent, until = held.extent(), self.hole_until
        if until <= bound_of(extent):
            return extent
        try:
            position = held.find(until, WINDOW_DONE)
        except DamagedWindowsError:
            raise
        except ScnNotFoundError:
            return None
        return None if position is None else beyond(extent, until, position)

    def _prove(self, extent: Extent, held: HistoryReader | RingReader, read: HistoryReader) -> None:
        """Compare where both meet; raise RelayLogError if they differ."""
        self.proved_scn = -1
        try:
            proved = compare(extent, held, read, self._main.counts)
            if proved is None:
                return
            self._enough_scn = max(proved, _overlap_end(extent, held))
        except DamagedWindowsError:
            raise
        except ScnNotFoundError:
            return  # overwritten meanwhile
        except SegmentAwayError as away:
            # Nobody else fetches it: readers wait for this proof.
            with suppress(ArchiveError):  # tried again at the next look, and shown as the log's
                away.wait(_FETCH_S)
            return
        self.proved_scn = proved
        name = self._main.settings.name
        log.info("%s leads to what %s holds after scn %d", self.name, name, bound_of(extent))
        self._on_change()

    def _steer(self, capture: Capture, tail: int, *, is_enough: bool) -> None:
        assert self.recorder is not None
        self.recorder.hold.note({_READERS: self._read_ahead.after_scn})
        # The gate may hold capture up before: then the server is not kept waiting.
        if self._read_ahead.is_far_ahead(tail):
            self._is_held_back = True
        elif not self._read_ahead.is_far_ahead(tail, part=2):
            self._is_held_back = False
        if is_enough or self._is_held_back:
            capture.pause()
        elif capture.is_to_rest:
            capture.start()


class _OwnedHistory(HistoryReader):
    """A reader of a ring and its log that closes the ring's reader, too."""

    def close(self) -> None:
        """Close all files."""
        super().close()
        self._ring.close()


def _overlap_end(extent: Extent, held: HistoryReader | RingReader) -> int:
    """Return the SCN at a part of what the relay holds; -1 if that is not known.

    Without an overlap, each window that the relay evicts would put the two apart again.
    """
    part = extent.head + (extent.tail - extent.head) // _OVERLAP_PART
    position = held.block_before_position(part)
    data = b"" if position is None else held.read(position, SMALLEST_BYTES)
    return peek(data).scn if len(data) >= SMALLEST_BYTES else -1
