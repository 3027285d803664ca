"""Prepares a second reading of a server's binlog, from an older place.

It begins with the file of that place: a file begins between two transactions, whatever the place
is. The definitions of the tables are those that the relay has kept for its first reading.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.files import make_private
from databus.relay.sources.kind import RereadRequest
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET
from databus.schemas.errors import SourceStoppedError
from databus.schemas.scn import BinlogPosition, binlog_position


def prepare_reread(
    settings: PhysicalSourceSettings, request: RereadRequest, kept: Path, copy: Path
) -> int:
    """Copy the history of definitions; return the SCN after which reading is to begin.

    Raises SourceStoppedError if the place is of another server's log, or if nothing is known by
    which the server's log could be recognised.
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
    if kept.exists():
        make_private(copy)  # before it has any content
        shutil.copyfile(kept, copy)
    # The end of a transaction beyond 4 GiB is the beginning of the next file.
    number = place.file_number - (place.offset < FIRST_OFFSET)
    return BinlogPosition(place.epoch, max(number, 0), FIRST_OFFSET).to_scn()
