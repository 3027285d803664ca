"""Finds what was executed before a place in a server's log, where it was not kept while reading.

A MariaDB server tells it. Of a MySQL server, the file is read up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import EventReader
from databus.relay.sources.mysql.binlog.executed import ExecutedGtids
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.replication.log_cursor import LogCursor
from databus.relay.sources.mysql.search.search_progress import SearchProgress
from databus.relay.sources.mysql.search.transaction_walk import gtid_of
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET, Start
from databus.relay.sources.source import TellSearch

_PURPOSE = "which GTIDs were executed before the place where it is read from"
_ASK = "SELECT BINLOG_GTID_POS(%s, %s)"


def executed_before(
    place: Start,
    catalog: ServerCatalog,
    open_dump: Callable[[Start], BinlogDump],
    tell: TellSearch,
    *,
    is_mariadb: bool,
) -> str | None:
    """Return the GTIDs before a file and offset; None if they are not known.

    Raises SourceError, StreamBrokenError, and ValueError on damage.
    """
    if place.offset <= FIRST_OFFSET:
        return None  # the file itself says it
    if is_mariadb:
        ((found,),) = catalog.ask(_ASK, (place.file, place.offset))
        return None if found is None else str(found)
    ((mode,),) = catalog.ask("SELECT @@GLOBAL.gtid_mode")
    if str(mode).upper() != "ON":
        return None
    progress = SearchProgress(tell, _PURPOSE, place.offset)
    try:
        with closing(open_dump(Start(place.file, FIRST_OFFSET))) as dump:
            return _executed_in(progress.of_events(events_to_the_end(dump)), place.offset)
    finally:
        progress.end()


def _executed_in(stream: Iterable[bytes], offset: int) -> str | None:
    """Return the GTIDs of a file's transactions that begin before an offset."""
    executed = ExecutedGtids(is_mariadb=False)
    reader, cursor = EventReader(), LogCursor(has_gaps=False)
    for data in stream:
        event = cursor.place(reader.read(data), is_inside=True)
        if event.start_offset >= offset and event.type_code != B.ROTATE_EVENT:
            break
        executed.follow(event)
        opened = gtid_of(event)
        if opened is not None and opened.text is not None:
            executed.add(opened.text)
    return executed.text
