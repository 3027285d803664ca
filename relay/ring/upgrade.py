"""Read a ring of layout version 1, whose events have the CRCs and schema ids of earlier versions.

Nothing is believed of it but what the CRCs confirm, and nothing is written to it: the ring of
today's layout is another file, which takes the name once it has every window.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar

from databus.daemon.log_setup import about
from databus.relay.ring.events import windows_between
from databus.relay.ring.layout import (
    FIRST,
    FORMER_VERSION,
    HEAD,
    NEWEST_SCN,
    PAGE_BYTES,
    PREV_SCN,
    TAIL,
    UNKNOWN_SCN,
    Layout,
    RingFile,
)
from databus.relay.ring.scn_index import ScnIndex
from databus.schemas.errors import DatabusError, RingCorruptError, RingError
from databus.schemas.event.restamping import restamped_run
from databus.schemas.log_mark import LogMark
from databus.schemas.windows import EncodedWindow

log = logging.getLogger(__name__)


class NewRing(Protocol):
    """A ring that can say what became of the one before it."""

    dropped: str


RingT = TypeVar("RingT", bound=NewRing)


class FormerRing:
    """A ring of layout version 1; raises RingCorruptError if it cannot be read.

    `ids` maps its schema ids to today's.
    """

    def __init__(self, path: Path, fd: int, layout: Layout, ids: Mapping[bytes, bytes]) -> None:
        if os.fstat(fd).st_size < layout.file_bytes:
            raise RingCorruptError(str(path), "it is shorter than its header says")
        self._file = RingFile(path, layout, fd, writable=False)
        self._ids = ids

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()

    @property
    def newest_scn(self) -> int:
        """SCN of the newest window; UNKNOWN_SCN if there never was one."""
        return self._file.scn(NEWEST_SCN)

    def prev_scn(self) -> int:
        """Return the newest SCN that is no longer held; raises RingCorruptError if it is lost."""
        ring_file, cells = self._file, self._file.cells
        if all(map(ring_file.is_sound, (HEAD, TAIL, FIRST, PREV_SCN))):
            if cells[HEAD] == cells[TAIL]:
                return ring_file.scn(PREV_SCN)
            entry = ScnIndex(cells, ring_file.layout.index_slots).get(cells[FIRST])
            held = cells[TAIL] - cells[HEAD]
            if entry and entry.position == cells[HEAD] and 0 < held <= ring_file.capacity_bytes:
                return entry.prev_scn
        raise RingCorruptError(str(ring_file.path), "its cells are damaged")

    def windows(self) -> Iterator[EncodedWindow]:
        """Yield its windows with today's CRCs and schema ids; raises ProtocolError at damage."""
        cells = self._file.cells
        for window in windows_between(self._file, cells[HEAD], cells[TAIL]):
            yield window._replace(data=restamped_run(window.data, self._ids))

    def marks(self) -> list[LogMark]:
        """Return the marks of the source's log."""
        return self._file.marks()


def is_former(path: Path, fd: int) -> bool:
    """Return whether an open file is a ring of the former layout; close it on failure."""
    try:
        return Layout.version_of(os.pread(fd, PAGE_BYTES, 0)) == FORMER_VERSION
    except OSError as error:
        os.close(fd)
        raise RingError(f"ring {path}: {error}") from error


def upgraded(
    path: Path,
    fd: int,
    wanted: Layout,
    start_scn: int,
    ids: Mapping[bytes, bytes],
    make: Callable[..., RingT],
) -> RingT:
    """Return a ring with the windows of one of the former layout, which is closed.

    The old file stays until the new one takes its name, so after a kill this starts over. If
    it is damaged or the disk has no room for both, the new ring begins after the older of its
    end and `start_scn`. Raises RingError if it is another physical source's.
    """
    said = about(physical_source=wanted.name)
    newest_scn = UNKNOWN_SCN
    try:
        layout = _layout(path, fd, wanted.name)
        log.warning("ring %s is of an earlier version: its events get new CRCs", path, extra=said)
        try:
            with closing(FormerRing(path, fd, layout, ids)) as former:
                newest_scn = former.newest_scn
                ring = make(path, wanted, former.prev_scn(), None, former=former)
        except DatabusError as error:
            return _make_anew(path, wanted, _start_of(newest_scn, start_scn), error, make)
        log.warning("ring %s is brought up to date", path, extra=said)
        return ring
    finally:
        os.close(fd)


def _layout(path: Path, fd: int, name: str) -> Layout:
    layout = Layout.decode(path, os.pread(fd, PAGE_BYTES, 0), FORMER_VERSION)
    if layout.name != name:
        raise RingError(f"ring {path} is of physical source {layout.name!r}, not {name!r}")
    return layout


def _make_anew(
    path: Path, wanted: Layout, start_scn: int, error: DatabusError, make: Callable[..., RingT]
) -> RingT:
    """Replace a ring that cannot be brought up to date by an empty one after `start_scn`."""
    # Without the old one there is room. After a kill before the next step MaxSCN alone counts.
    path.unlink()
    ring = make(path, wanted, start_scn, None)
    ring.dropped = (
        f"ring {path} of an earlier version cannot be brought up to date ({error}): it begins "
        f"anew after scn {start_scn}, and consumers that are not past it need a bootstrap server"
    )
    log.warning("%s", ring.dropped, extra=about(physical_source=wanted.name))
    return ring


def _start_of(newest_scn: int, start_scn: int) -> int:
    """Return the older of the former ring's end and MaxSCN, as a restart does."""
    known = [scn for scn in (newest_scn, start_scn) if scn != UNKNOWN_SCN]
    return min(known, default=UNKNOWN_SCN)
