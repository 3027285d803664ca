"""Prepares a second reading of a server's binlog, from an older place.

It begins with the file of that place, since a file begins between two transactions, whatever the
place is. But it does not begin before a first reading from the end of the log on, if the place is
after that: what was altered before would make schema versions that the relay's windows do not have.
The definitions of the tables are those that the relay has kept for its first reading. Where that
has read older rows, they begin somewhere in the log, and not between two transactions.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.files import make_private
from databus.relay.sources.kind import RereadPlace, RereadRequest
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET
from databus.relay.sources.mysql.tables.history import History
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.scn import BinlogPosition, binlog_position


def prepare_reread(
    settings: PhysicalSourceSettings, request: RereadRequest, kept: Path, copy: Path
) -> RereadPlace:
    """Copy the history of definitions; return where reading is to begin.

    Raises SourceStoppedError if the place is of another server's log, or was purged, or if nothing
    is known by which the server's log could be recognised.
    """
    place = binlog_position(request.scn)
    if place.epoch != settings.epoch:
        raise SourceStoppedError(
            settings.name,
            request.scn,
            f"the place is of epoch {place.epoch}, another server's log; it is epoch "
            f"{settings.epoch} now",
        )
    if request.mark is None:
        raise SourceStoppedError(
            settings.name, request.scn, "no identity of the server's log is known yet"
        )
    # The end of a transaction beyond 4 GiB is the beginning of the next file.
    number = max(place.file_number - (place.offset < FIRST_OFFSET), 0)
    _check_kept(settings, request.scn, number)
    if kept.exists():
        make_private(copy)  # before it has any content
        copy.write_bytes(_whole_lines(kept))
    begin = BinlogPosition(place.epoch, number, FIRST_OFFSET).to_scn()
    history = History(copy)
    start = history.start_scn
    if start is not None and start <= request.scn:
        begin = max(begin, start)
    return RereadPlace(begin, history.begin_scn or 0)


def _whole_lines(path: Path) -> bytes:
    """Return the whole lines of a history that is perhaps being written.

    It is only appended to, or replaced by another file. The statement of a line that is not
    complete yet is further on in the log than any place that is asked for, so it is read there.
    """
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def _check_kept(settings: PhysicalSourceSettings, scn: int, number: int) -> None:
    """Raise SourceStoppedError if the server has purged a file; not if it does not answer."""
    with suppress(SourceUnavailableError):
        catalog = ServerCatalog(address_of(settings), settings, scn)
        with catalog.session():
            files = catalog.log_files()
        if files and files[0].number > number:
            oldest = files[0].name
            problem = f"files were purged: number {number} is gone, the oldest is {oldest}"
            raise SourceStoppedError(settings.name, scn, problem)
