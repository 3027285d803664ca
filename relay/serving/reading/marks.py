"""A window with rows up to a place: by it, a consumer proves later that the log is the one it left.

Those that a consumer gets itself are such marks. One whose selection has nothing for long needs
another one: an SCN alone proves nothing, for another log may have one just there. It is of the
consumer's own sources if any is near, because other relays may have other sources besides those.
"""

from __future__ import annotations

from collections.abc import Container

from databus.relay.capture.standby.newest_rows import newest_rows
from databus.relay.ring.reader import RingReader
from databus.relay.serving.reading.window_reader import HeldWindows
from databus.relay.span import Span
from databus.schemas.errors import OtherLogError, RingError

_NEAR_BLOCKS = 4  # of the ring, 32 KiB each
_MOST_BLOCKS = 64


def check_mark(
    windows: HeldWindows, span: Span, physical_source: str, mark: tuple[int, int] | None
) -> None:
    """Raise OtherLogError if a checkpoint's mark contradicts this log.

    The mark is a window with rows that the consumer or its relay had. An SCN proves nothing.
    """
    if mark is None or span.has_passed(mark[0]):
        return
    held = windows.window_at(mark[0])
    if held is not None and held != mark:
        raise OtherLogError.of(physical_source, mark, held)


def mark_up_to(
    reader: RingReader, scn: int, src_ids: Container[int] | None = None
) -> tuple[int, int] | None:
    """Return SCN and timestamp of a late window with rows up to `scn`, if the ring has one."""
    try:
        own = None if src_ids is None else newest_rows(reader, scn, _NEAR_BLOCKS, src_ids)
        return own or newest_rows(reader, scn, _MOST_BLOCKS)
    except RingError:  # damaged: who reads there is told
        return None
