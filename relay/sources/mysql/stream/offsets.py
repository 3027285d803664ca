"""Where in its file each event of a stream ends. Pure.

An event's header has the offset in 32 bits, and sometimes none: MariaDB ≥ 11.4
leaves it 0 inside transactions, and a file longer than 4 GiB begins anew. So
the offset is counted along the stream, from the place that the stream begins
with; a header that says one must agree, or lie ahead (the server left out what
the start by GTID excludes). What the server makes up for one stream (its first
ROTATE and FORMAT_DESCRIPTION, heartbeats) takes no room in any file.
"""

from __future__ import annotations

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.server.position import file_number
from databus.relay.sources.mysql.stream.events import HEARTBEAT_V2, Event, parse_rotate
from databus.schemas.scn import MAX_FILE_NUMBER

_WRAP = 1 << 32
_LARGEST_OFFSET = 1 << 48
_MADE_UP = frozenset({B.HEARTBEAT_LOG_EVENT, HEARTBEAT_V2})
# Said at the head of a stream, at the offset 0, when that does not begin a file.
_REPEATED = frozenset({B.FORMAT_DESCRIPTION_EVENT, B.MARIADB_START_ENCRYPTION_EVENT})


class LogCursor:
    """The place in the log that a stream of events has come to."""

    def __init__(self) -> None:
        self.file = ""
        self.file_number = 0
        self.offset = 0

    def place(self, event: Event) -> Event:
        """Return the event with the offset it ends at, and stand there; raises ValueError."""
        if event.type_code == B.ROTATE_EVENT:
            self._rotate(event)
            return event
        if is_made_up(event):
            return event
        expected = self.offset + event.size
        ahead = (event.end_offset - expected) % _WRAP if event.end_offset else 0
        if ahead >= _WRAP // 2:
            raise ValueError(f"it says that it ends at {event.end_offset}, and ends at {expected}")
        self.offset = expected + ahead
        if self.offset == event.end_offset:
            return event
        return event._replace(end_offset=self.offset)

    def _rotate(self, event: Event) -> None:
        name, offset = parse_rotate(event.body)
        number = file_number(name)
        if number > MAX_FILE_NUMBER or offset > _LARGEST_OFFSET:
            raise ValueError(f"no binlog goes on at {name}:{offset}")
        self.file_number = number
        self.file, self.offset = name, offset


def is_made_up(event: Event) -> bool:
    """Say whether the server made an event for this stream, so that it stands in no file."""
    if event.type_code in _MADE_UP or event.is_artificial:
        return True
    return event.end_offset == 0 and event.type_code in _REPEATED
