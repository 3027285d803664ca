"""Reads a stream of events from a given place of the log, each event with its SCN. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog import events
from databus.relay.sources.mysql.binlog.compressed import events_inside, plain_query
from databus.relay.sources.mysql.binlog.events import Event, EventReader
from databus.relay.sources.mysql.replication.log_cursor import LogCursor, is_made_up
from databus.schemas.scn import MAX_OFFSET, BinlogPosition


class EventPlacer:
    """Finds the SCN of each event, and decompresses events. For a stream without gaps."""

    def __init__(self, epoch: int) -> None:
        self.reader = EventReader()
        self.cursor = LogCursor(has_gaps=False)
        self._epoch = epoch

    def place(self, data: bytes) -> Iterator[tuple[int, Event]]:
        """Yield an event, or the events inside it, with their SCN; none if no file has it.

        Raises ValueError on damage, and StreamBrokenError.
        """
        event = self.cursor.place(self.reader.read(data), is_inside=True)
        if is_made_up(event) or event.type_code == B.ROTATE_EVENT:
            return
        offset = min(self.cursor.offset, MAX_OFFSET)
        scn = BinlogPosition(self._epoch, self.cursor.file_number, offset).to_scn()
        if event.type_code == events.QUERY_COMPRESSED:
            yield scn, plain_query(event)
        elif event.type_code == events.TRANSACTION_PAYLOAD:
            for inner in events_inside(event):
                yield scn, inner
        else:
            yield scn, event


def placed(stream: Iterable[bytes], epoch: int) -> Iterator[tuple[int, Event]]:
    """Yield the events that a file has, decompressed, with their SCN."""
    placer = EventPlacer(epoch)
    for data in stream:
        yield from placer.place(data)
