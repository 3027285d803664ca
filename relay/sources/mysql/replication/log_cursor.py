"""Where in its file each event of a stream ends. Pure.

An event's header has the offset in 32 bits, and sometimes none: MariaDB ≥ 11.4
leaves it 0 inside transactions, and a file longer than 4 GiB begins anew. So
the offset is counted along the stream, from the place that the stream begins
with; a header that says one must agree: each event begins where the one before
ended, and each file has the next number. Only in a stream that was asked for by
GTID (`has_gaps`) may it lie ahead, between two transactions: the server left out
what the GTIDs exclude. Anything else breaks the stream. What the server makes up
for one stream (its first ROTATE and FORMAT_DESCRIPTION, heartbeats) takes no room
in any file; of START_ENCRYPTION, which stands in the file, a copy is sent.
"""

from __future__ import annotations

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import HEARTBEAT_V2, Event, parse_rotate
from databus.relay.sources.mysql.binlog.packets import StreamBrokenError
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET, file_number
from databus.schemas.scn import MAX_FILE_NUMBER

_WRAP = 1 << 32
_LARGEST_OFFSET = 1 << 48
_MADE_UP = frozenset({B.HEARTBEAT_LOG_EVENT, HEARTBEAT_V2})
# Said at the head of a stream, at the offset 0, when that does not begin a file.
_REPEATED = frozenset({B.FORMAT_DESCRIPTION_EVENT, B.MARIADB_START_ENCRYPTION_EVENT})


class LogCursor:
    """The place in the log that a stream of events has come to."""

    def __init__(self, *, has_gaps: bool = True) -> None:
        self.file = ""
        self.file_number = 0
        self.offset = 0
        self._has_gaps = has_gaps
        self._unsent = 0  # bytes of the file that are known not to be sent as they stand there

    def place(self, event: Event, *, is_inside: bool = False) -> Event:
        """Return the event with the offset it ends at, and stand there.

        `is_inside`: a transaction is under way. Raises StreamBrokenError, and
        ValueError for a file that cannot be.
        """
        if event.type_code == B.ROTATE_EVENT:
            self._rotate(event)
            return event
        if is_made_up(event):
            if event.type_code == B.MARIADB_START_ENCRYPTION_EVENT:
                self._unsent = event.size
            return event
        expected = self.offset + event.size
        ahead = (event.end_offset - expected) % _WRAP if event.end_offset else 0
        # What GTIDs leave out is whole transactions.
        may_skip = (self._has_gaps and not is_inside) or ahead == self._unsent
        if ahead >= _WRAP // 2 or (ahead and not may_skip):
            raise StreamBrokenError(
                f"an event at {self.file}:{self.offset} says that it ends at {event.end_offset}, "
                f"and ends at {expected}"
            )
        if not (event.end_offset or is_inside or self._has_gaps):
            raise StreamBrokenError(f"an event at {self.file}:{self.offset} does not say its place")
        self._unsent = 0
        self.offset = expected + ahead
        if self.offset == event.end_offset:
            return event
        return event._replace(end_offset=self.offset)

    def is_at(self, file: str, offset: int) -> bool:
        """Say whether this is the place, of which the offset may be told in 32 bits only."""
        return file == self.file != "" and (self.offset - offset) % _WRAP == 0

    def _rotate(self, event: Event) -> None:
        name, offset = parse_rotate(event.body)
        number = file_number(name)
        if number > MAX_FILE_NUMBER or offset > _LARGEST_OFFSET:
            raise ValueError(f"no binlog goes on at {name}:{offset}")
        is_here = (number, offset) == (self.file_number, self.offset)
        is_next = (number, offset) == (self.file_number + 1, FIRST_OFFSET)
        if self.file and not (is_here or is_next):
            raise StreamBrokenError(
                f"the log goes on at {name}:{offset} behind {self.file}:{self.offset}"
            )
        self.file_number = number
        self.file, self.offset = name, offset


def is_made_up(event: Event) -> bool:
    """Say whether the server made an event for this stream, so that it stands in no file."""
    if event.type_code in _MADE_UP or event.is_artificial:
        return True
    return event.end_offset == 0 and event.type_code in _REPEATED
