"""Determines the offset at which each event of a stream ends in its file. Pure.

An event's header has the offset in 32 bits, which wrap in a file beyond 4 GiB; MariaDB 11.4 and
later leave it 0 inside transactions. So the offset is counted along the stream, from the position
with which the stream begins. An offset in a header must agree: each event begins where the one
before it ended, and each file has the next number. Only in a stream requested by GTID
(`has_gaps`) may it be ahead, between two transactions, because the server leaves out what the
GTIDs exclude. Anything else breaks the stream.

Events that the server makes up for one stream (its first ROTATE and FORMAT_DESCRIPTION,
heartbeats) take no space in any file. START_ENCRYPTION takes space, but the server sends a
made-up copy of it.
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
# Repeated with the offset 0 if a stream begins inside a file.
_REPEATED = frozenset({B.FORMAT_DESCRIPTION_EVENT, B.MARIADB_START_ENCRYPTION_EVENT})


class LogCursor:
    """The current position of a stream of events in the log."""

    def __init__(self, *, has_gaps: bool = True) -> None:
        self.file = ""
        self.file_number = 0
        self.offset = 0
        self._has_gaps = has_gaps
        self._unsent = 0  # bytes of START_ENCRYPTION, of which a made-up copy was sent

    def place(self, event: Event, *, is_inside: bool = False) -> Event:
        """Return the event with its full end offset, and move the cursor there.

        `is_inside` tells that the event is inside a transaction. Raises StreamBrokenError, and
        ValueError for an impossible file.
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
        # GTIDs exclude whole transactions only.
        may_skip = (self._has_gaps and not is_inside) or ahead == self._unsent
        if ahead >= _WRAP // 2 or (ahead and not may_skip):
            raise StreamBrokenError(
                f"an event at {self.file}:{self.offset} ends at {expected}, but its header has "
                f"the end {event.end_offset}"
            )
        if not (event.end_offset or is_inside or self._has_gaps):
            raise StreamBrokenError(f"an event at {self.file}:{self.offset} has no end offset")
        self._unsent = 0
        self.offset = expected + ahead
        if self.offset == event.end_offset:
            return event
        return event._replace(end_offset=self.offset)

    def is_at(self, file: str, offset: int) -> bool:
        """Return whether the cursor is at a position; `offset` may have its low 32 bits only."""
        return file == self.file != "" and (self.offset - offset) % _WRAP == 0

    def _rotate(self, event: Event) -> None:
        name, offset = parse_rotate(event.body)
        number = file_number(name)
        if number > MAX_FILE_NUMBER or offset > _LARGEST_OFFSET:
            raise ValueError(f"no binlog can continue at {name}:{offset}")
        is_here = (number, offset) == (self.file_number, self.offset)
        is_next = (number, offset) == (self.file_number + 1, FIRST_OFFSET)
        if self.file and not (is_here or is_next):
            raise StreamBrokenError(
                f"the log continues at {name}:{offset} after {self.file}:{self.offset}"
            )
        self.file_number = number
        self.file, self.offset = name, offset


def is_made_up(event: Event) -> bool:
    """Return whether the server made an event up for this stream, so that no file has it."""
    if event.type_code in _MADE_UP or event.is_artificial:
        return True
    return event.end_offset == 0 and event.type_code in _REPEATED
