"""The identity of a binlog at one position, and the proof that a log is the same. Pure.

A position does not identify a log: after RESET MASTER, on another server or in a restored
backup, other transactions have the same file, offset and GTID. So the last transaction that
was handed over is stored:

    server     its server_uuid, or server_id where it has none
    file       number, name, and the digest of its first event (FORMAT_DESCRIPTION,
               with the second in which the file was begun)
    begin, end of the transaction in the file, and the digest of its events

Reading continues at `begin`, where that transaction must be, byte for byte. A digest leaves out
what may differ between two transmissions of the same log: checksums, and of the first event its
position, its flags (IN_USE) and the server's start time. Events enter by their CRC32, which a
log with checksums has already.

If nothing was read yet (a start at `latest` or at a GTID), begin and end are equal, and only
server and file can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zlib import crc32

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import HEADER, HEADER_SIZE, Event
from databus.relay.sources.mysql.binlog.gtid import parse_mariadb_gtid, parse_mysql_gtid
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import BinlogPosition, binlog_position

_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15
# In a FORMAT_DESCRIPTION: the server's start time, which is 0 in the copy that a dump begins with.
_CREATED = slice(HEADER_SIZE + 52, HEADER_SIZE + 56)
_GTIDS: dict[int, Callable[[Event], Any]] = {
    B.MARIADB_GTID_EVENT: parse_mariadb_gtid,
    B.GTID_LOG_EVENT: parse_mysql_gtid,
}


def digest_of(digest: int, crc: int, size: int) -> int:
    """Return a digest extended by one event; `_decoder.pyx` computes the same."""
    mixed = ((digest ^ (crc | size << 32)) * _FACTOR) & _MASK
    return mixed ^ mixed >> 29


def crc_of(data: bytes, *, has_checksum: bool) -> int:
    """Return the CRC32 of an event without its checksum field.

    With a checksum this is the field's value, which `EventReader` has verified.
    """
    return int.from_bytes(data[-4:], "little") if has_checksum else crc32(data)


def first_event_crc(data: bytes) -> int:
    """Return the CRC32 of a FORMAT_DESCRIPTION without the fields that vary between dumps."""
    timestamp_s, type_code, server_id, size, *_ = HEADER.unpack_from(data)
    head = HEADER.pack(timestamp_s, type_code, server_id, size, 0, 0)
    return crc32(head + data[HEADER_SIZE : _CREATED.start] + data[_CREATED.stop : -4])


_quote = json.encoder.encode_basestring_ascii


class FileBeginning(NamedTuple):
    """A binlog file's first event: when it was written, and its digest."""

    born_s: int
    digest: int

    @classmethod
    def of(cls, data: bytes) -> FileBeginning:
        """Return the beginning that a FORMAT_DESCRIPTION describes."""
        return cls(int.from_bytes(data[:4], "little"), first_event_crc(data))


@dataclass(frozen=True, slots=True)
class Identity:
    """The log at an SCN; see the module."""

    scn: int
    server: str
    file: str
    born_s: int
    first: int
    begin: int
    digest: int
    gtid: str = ""

    @property
    def place(self) -> BinlogPosition:
        """The position after the transaction."""
        return binlog_position(self.scn)

    @property
    def is_point(self) -> bool:
        """Whether it is a position only, without a transaction to compare."""
        return self.begin == self.place.offset

    def mark(self) -> LogMark:
        """Return the identity in its stored form."""
        # Written by hand, because one is made for each transaction.
        return LogMark(
            self.scn,
            f'{{"server":{_quote(self.server)},"file":{_quote(self.file)},"born_s":{self.born_s},'
            f'"first":{self.first},"begin":{self.begin},"digest":"{self.digest:016x}",'
            f'"gtid":{_quote(self.gtid)}}}',
        )

    @classmethod
    def of(cls, mark: LogMark) -> Identity:
        """Parse the stored form; raise ValueError."""
        try:
            values = json.loads(mark.text)
            values["digest"] = int(values["digest"], 16)
            return cls(scn=mark.scn, **values)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the stored identity of the log cannot be read: {error}") from error

    def __str__(self) -> str:
        log = f"{_server_text(self.server)}, {self.file} begun {time_text(self.born_s)}"
        if self.is_point:
            return f"{log}, up to {self.begin}"
        return f"{log}, {_range_text(self.begin, self.place.offset, self.gtid, self.digest)}"


class AnotherLogError(Exception):
    """The log is not the one that was read before; `found` describes it."""

    def __init__(self, kept: Identity | str, found: str) -> None:
        super().__init__(f"kept: {kept}; found: {found}")
        self.kept = kept
        self.found = found


class Trail:
    """The begin offset of the current transaction, and the digest of its events so far."""

    def __init__(self) -> None:
        self.begin = 0
        self.digest = 0

    def restart(self, begin: int) -> None:
        """Begin a transaction at an offset."""
        self.begin, self.digest = begin, 0

    def add(self, crc: int, size: int) -> None:
        """Add an event."""
        self.digest = digest_of(self.digest, crc, size)


class Proof:
    """Compares a stream with a stored transaction, from its begin to where reading resumes.

    Reading resumes at `goal`: the end of the stored transaction, or a later position if there
    is no watched row between.
    """

    def __init__(self, kept: Identity, goal: BinlogPosition, server: str) -> None:
        self.kept = kept
        self._goal = goal
        self._server = server
        self._file = ""
        self._beginning: FileBeginning | None = None
        self._trail = Trail()
        self._gtid = ""
        self._is_proved = False
        self.is_over = False

    def describe(self) -> str:
        """Describe the log as far as it was read."""
        born = time_text(self._beginning.born_s) if self._beginning is not None else "unknown"
        return f"{_server_text(self._server)}, {self._file or 'no file'} begun {born}"

    def take(self, event: Event, data: bytes, place: tuple[str, int, int], *, stands: bool) -> None:
        """Compare an event; `place` is (file, its number, offset) after it.

        `stands` tells that the event is in the file and was not made up for this stream.
        Raises AnotherLogError.
        """
        self._file, number, offset = place
        kept, is_there = self.kept, place[1] == self.kept.place.file_number
        # It only names the next file, and a dump begins with a made-up one.
        if event.type_code == B.ROTATE_EVENT:
            return
        if event.type_code == B.FORMAT_DESCRIPTION_EVENT and is_there:
            self._check_beginning(FileBeginning.of(data))
        if stands and not self._is_proved:
            self._add(event, data)
        # At or after the end of the stored transaction: its events must have been these.
        if not self._is_proved and is_there and offset >= kept.place.offset:
            self._check_end(offset)
        if number > kept.place.file_number and not self._is_proved:
            raise self._another(f"where {self._file} begins, no transaction ended at {kept.place}")
        self._check_goal(number, offset)

    def _check_beginning(self, found: FileBeginning) -> None:
        self._beginning = found
        if self._server != self.kept.server or found != (self.kept.born_s, self.kept.first):
            raise self._another()

    def _add(self, event: Event, data: bytes) -> None:
        if event.type_code == B.FORMAT_DESCRIPTION_EVENT:
            self._trail.add(first_event_crc(data), len(data))
            return
        # `EventReader` has removed the checksum from the body.
        has_checksum = len(event.body) + HEADER_SIZE < len(data)
        self._trail.add(crc_of(data, has_checksum=has_checksum), len(data))
        if not self._gtid and event.type_code in _GTIDS:
            self._gtid = _GTIDS[event.type_code](event).text or ""

    def _check_end(self, offset: int) -> None:
        kept = self.kept
        if offset == kept.place.offset and (kept.is_point or self._trail.digest == kept.digest):
            self._is_proved = True
            return
        raise self._another(_range_text(kept.begin, offset, self._gtid, self._trail.digest))

    def _check_goal(self, number: int, offset: int) -> None:
        if (number, offset) == (self._goal.file_number, self._goal.offset):
            self.is_over = True
        elif (number, offset) > (self._goal.file_number, self._goal.offset):
            raise self._another(f"no event ends at offset {self._goal.offset}, but at {offset}")

    def _another(self, more: str = "") -> AnotherLogError:
        found = self.describe()
        return AnotherLogError(self.kept, f"{found}, {more}" if more else found)


def _server_text(server: str) -> str:
    return f"server_id {server}" if server.isdigit() else f"server_uuid {server}"


def _range_text(begin: int, end: int, gtid: str, digest: int) -> str:
    named = f" of GTID {gtid}" if gtid else ""
    return f"the transaction{named} at {begin} to {end} with digest {digest:016x}"


def time_text(seconds: int) -> str:
    """Return a time in ISO 8601, for messages."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
