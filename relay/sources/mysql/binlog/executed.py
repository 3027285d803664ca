"""The GTIDs of all transactions before a place in one server's log, kept while it is read. Pure.

    MySQL     every transaction by name: a GTID set, holes too
    MariaDB   the last transaction of each domain: a GTID position

They are unknown until the log itself says what was before (the event at the beginning of each
file, or a saved text), and again after a transaction without a GTID.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from uuid import UUID

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import Event
from databus.relay.sources.mysql.binlog.gtid_set import (
    MysqlGtidSet,
    decode_gtid_set,
    parse_mariadb_position,
)

# A run of the compiled decoder: key, first and last number; the first is ANONYMOUS for
# transactions without a GTID.
_RUN = struct.Struct("<16sqq")
_PAIR = struct.Struct("<II")
_ANONYMOUS = -1
_OF_LIST = struct.Struct("<IIQ")


class ExecutedGtids:
    """What was executed, for one stream. Used by one thread."""

    def __init__(self, *, is_mariadb: bool, text: str | None = None) -> None:
        self._is_mariadb = is_mariadb
        self._domains: dict[int, tuple[int, int]] = {}
        # Intervals (first, behind the last) in order, none touching the next.
        self._sets: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self._waiting: list[str] = []
        self.is_known = False
        if text is not None:
            self.begin(text)

    def begin(self, text: str) -> None:
        """Set what was executed before the next transaction; raises ValueError."""
        if self._is_mariadb:
            self._domains = parse_mariadb_position(text)
        else:
            intervals = MysqlGtidSet.parse(text).intervals
            self._sets = {key: list(found) for key, found in intervals.items()}
        self.is_known = True

    def follow(self, event: Event) -> None:
        """Take an event that tells something other than that a transaction ended."""
        code = event.type_code
        if code == B.ROTATE_EVENT:
            # Transactions beyond 4 GiB are handed over at the beginning of the next file.
            self.release()
        elif code == B.ANONYMOUS_GTID_LOG_EVENT:
            self.lose()
        elif not self.is_known and code in (
            B.PREVIOUS_GTIDS_LOG_EVENT,
            B.MARIADB_GTID_GTID_LIST_EVENT,
        ):
            self.begin(text_of_preceding(event))

    def lose(self) -> None:
        """Forget everything: a transaction had no GTID."""
        self.is_known = False

    def add(self, gtid: str) -> None:
        """Add a transaction that has ended."""
        if not self.is_known:
            return
        if self._is_mariadb:
            domain, server, number = (int(part) for part in gtid.split("-"))
            self._domains[domain] = server, number
            return
        uuid, *tag, number_text = gtid.split(":")
        self._add_run((uuid, tag[0] if tag else ""), int(number_text), int(number_text))

    def add_runs(self, runs: bytes) -> None:
        """Add what the compiled decoder has ended."""
        for key, first, last in _RUN.iter_unpack(runs):
            if first == _ANONYMOUS:
                self.lose()
            if not self.is_known:
                return
            if self._is_mariadb:
                domain, server = _PAIR.unpack_from(key)
                self._domains[domain] = server, last
            else:
                self._add_run((str(UUID(bytes=key)), ""), first, last)

    def hold(self, gtid: str) -> None:
        """Add a transaction with the next `release`: it is not handed over before."""
        self._waiting.append(gtid)

    def release(self) -> None:
        """Add the transactions that were held."""
        for gtid in self._waiting:
            self.add(gtid)
        self._waiting.clear()

    @property
    def text(self) -> str | None:
        """The set or position as servers write it; None while it is unknown."""
        if not self.is_known:
            return None
        if self._is_mariadb:
            return ",".join(
                f"{domain}-{server}-{number}"
                for domain, (server, number) in sorted(self._domains.items())
            )
        return str(MysqlGtidSet({key: tuple(found) for key, found in self._sets.items()}))

    def _add_run(self, key: tuple[str, str], first: int, last: int) -> None:
        found = self._sets.setdefault(key, [])
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], last + 1
            return
        # Those that touch or overlap the new one become one with it.
        begin = bisect_left(found, first, key=lambda interval: interval[1])
        end, behind = begin, last + 1
        while end < len(found) and found[end][0] <= last + 1:
            first, behind = min(first, found[end][0]), max(behind, found[end][1])
            end += 1
        found[begin:end] = [(first, behind)]


def text_of_preceding(event: Event) -> str:
    """Return what was executed before a file, as its second or third event says."""
    if event.type_code == B.PREVIOUS_GTIDS_LOG_EVENT:
        return str(decode_gtid_set(event.body))
    count = int.from_bytes(event.body[:4], "little") & 0x0FFFFFFF  # flags are above
    entries = event.body[4 : 4 + count * _OF_LIST.size]
    # The newest transaction of each domain is the last one listed of it.
    newest = {domain: (server, number) for domain, server, number in _OF_LIST.iter_unpack(entries)}
    return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in newest.items())
