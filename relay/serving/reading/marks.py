"""Windows with rows up to a place: they prove later to a consumer that the log is the one it left.

An SCN alone proves nothing, for another log may have one just there. A consumer's *mark* is a
window of its own sources, if any is near: those that it gets are such. Its *log window* is nearer
to its place, and may have no row of its sources: a relay that captures others cannot tell.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from databus.relay.capture.standby.newest_rows import RowsWindow, newest_rows
from databus.relay.relay import Relay
from databus.relay.ring.reader import RingReader
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.window_reader import HeldWindows
from databus.relay.span import Span, Spans
from databus.schemas.checkpoint import LogWindow
from databus.schemas.errors import OtherLogError, RingError
from databus.schemas.event.v2 import peek

_NEAR_BLOCKS = 4  # of the ring, 32 KiB each
_MOST_BLOCKS = 64
_LOOKED_AT_BYTES = 1 << 16


def check_marks(windows: HeldWindows, spans: Spans, selection: Selection) -> None:
    """Raise OtherLogError if a window that a checkpoint names contradicts this log.

    The consumer had it, or its relay.
    """
    checkpoint, window = selection.checkpoint, selection.checkpoint.log_window
    span, name = spans.of(selection.src_ids), selection.physical_source
    if checkpoint.mark is not None:
        _check(windows, span, name, checkpoint.mark)
    elif window is not None and not window[2]:
        _check(windows, span, name, window[:2])
    if window is not None and selection.log_src_id is not None:
        span = spans.of((selection.log_src_id,))
        if span.is_captured_at(window[0]):
            _check(windows, span, name, window[:2])


def _check(windows: HeldWindows, span: Span, physical_source: str, window: tuple[int, int]) -> None:
    if span.has_passed(window[0]):
        return
    held = windows.window_at(window[0])
    if held is not None and held != window:
        raise OtherLogError.of(physical_source, window, held)


def mark_up_to(
    reader: RingReader, scn: int, src_ids: Container[int] | None = None
) -> tuple[int, int] | None:
    """Return SCN and timestamp of a late window with rows up to `scn`, if the ring has one.

    It is of these sources if one is near, or else of any.
    """
    own = None if src_ids is None else own_mark_up_to(reader, scn, src_ids)
    return own or own_mark_up_to(reader, scn, None)


def own_mark_up_to(
    reader: RingReader, scn: int, src_ids: Container[int] | None
) -> tuple[int, int] | None:
    """Return SCN and timestamp of the newest window up to `scn` with rows of these sources.

    None: the ring has none near. Of a quiet source it may be far, and is not looked for.
    """
    most_blocks = _MOST_BLOCKS if src_ids is None else _NEAR_BLOCKS
    found = _newest(reader, scn, src_ids, most_blocks)
    return None if found is None else (found.scn, found.timestamp_ns)


def log_window_up_to(
    reader: RingReader, scn: int, names: Mapping[int, str], *, are_all: bool = True
) -> LogWindow | None:
    """Return the newest window up to `scn` with rows of the named sources, if the ring has one.

    `are_all`: they are all that the relay captures, so that it is not far.
    """
    found = _newest(reader, scn, names, _MOST_BLOCKS if are_all else _NEAR_BLOCKS)
    return None if found is None else (found.scn, found.timestamp_ns, names[found.src_id])


def _newest(
    reader: RingReader,
    scn: int,
    src_ids: Container[int] | None,
    most_blocks: int,
) -> RowsWindow | None:
    try:
        return newest_rows(reader, scn, most_blocks, src_ids)
    except RingError:  # damaged: who reads there is told
        return None


def ends_with_rows(body: bytes) -> bool:
    """Return whether the last of some whole windows has rows, by which a consumer knows the log.

    Not looked at in a large body that begins with rows: what follows it tells.
    """
    at, has_rows, ended_with_rows = 0, False, False
    while at < len(body):
        event = peek(body, at)
        if event.src_id >= 0:
            if len(body) > _LOOKED_AT_BYTES:
                return True
            has_rows = True
        elif event.is_eop:
            ended_with_rows, has_rows = has_rows, False
        at += event.length
    return ended_with_rows


def names_to_tell(relay: Relay, selection: Selection) -> Mapping[int, str]:
    """Return id → name of the sources that a log window of a selection may name."""
    listed, readable = relay.catalog.src_ids_of(selection.physical_source), selection.readable
    return {
        src_id: name for name, src_id in listed.items() if readable is None or readable.match(name)
    }
