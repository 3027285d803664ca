"""Places in the history of a source, as people name them. One text form, one parser. Pure.

earliest, latest, beginning              the oldest window held; after the newest; the whole
                                         table first, then its changes
8589936646, scn:8589936646               after that window
binlog:mysql-bin.000012:4567             after the transaction that ends there; the beginning of
                                         the one that it lies in
gtid:0-1-17, gtid:UUID:17                after that transaction
gtid-set:UUID:1-100:105                  exactly the transactions that are not in the set; only
                                         where a relay begins to read its server's log
time:2026-11-21T10:00:00Z                before the first transaction committed at or after it;
                                         without `time:` too, and UTC without a zone
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from databus.schemas.errors import SettingsError
from databus.schemas.scn import MAX_FILE_NUMBER, MAX_OFFSET, MAX_SCN

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BINLOG = re.compile(r"([^:/]{1,200}\.(\d{1,10})):(\d{1,10})")
_MARIADB_GTID = re.compile(r"\d{1,10}-\d{1,10}-\d{1,20}")
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_MYSQL_GTID = re.compile(_UUID + r"(?::[a-z_][a-z0-9_]{0,31})?:\d{1,19}")
FORMS = (
    "earliest, latest, beginning, an SCN, time:2026-11-21T10:00:00Z, gtid:0-1-17 or "
    "binlog:mysql-bin.000012:4567"
)


class Word(StrEnum):
    """The places that have a name of their own."""

    BEGINNING = "beginning"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class ScnPlace:
    """After window `scn`."""

    scn: int

    def __str__(self) -> str:
        return str(self.scn)


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """After the transaction that ends at `offset` bytes of the binlog file."""

    file: str
    offset: int

    @property
    def file_number(self) -> int:
        """The number that the file's name ends with."""
        return int(self.file.rpartition(".")[2])

    def __str__(self) -> str:
        return f"binlog:{self.file}:{self.offset}"


@dataclass(frozen=True, slots=True)
class GtidPlace:
    """After the transaction with this GTID, of MariaDB or MySQL."""

    gtid: str

    def __str__(self) -> str:
        return f"gtid:{self.gtid}"


@dataclass(frozen=True, slots=True)
class TimePlace:
    """Before the first transaction in the log's order that was committed at `time_ns` or later.

    Nanoseconds since 1970. Commit times need not increase from one transaction to the next.
    """

    time_ns: int

    def __str__(self) -> str:
        seconds, ns = divmod(self.time_ns, 1_000_000_000)
        text = f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"
        fraction = f".{ns:09}".rstrip("0") if ns else ""
        return f"time:{text}{fraction}Z"


@dataclass(frozen=True, slots=True)
class GtidSetPlace:
    """The transactions that are not in a set of MySQL, or not before a position of MariaDB."""

    gtids: str

    def __str__(self) -> str:
        return f"gtid-set:{self.gtids}"


NamedPlace = Word | ScnPlace | BinlogPlace | GtidPlace | GtidSetPlace | TimePlace


def parse_place(value: str | int | datetime) -> NamedPlace:
    """Return the place that a text, an SCN or a time names to a consumer; raise SettingsError."""
    place = _named(value)
    if isinstance(place, GtidSetPlace):
        raise SettingsError(
            f"{str(place)!r} may leave out transactions here and there, and a stream begins at one "
            "place: name the last transaction (gtid:…); a set is for `start` of a physical source"
        )
    return place


def parse_source_start(value: str | int | datetime) -> NamedPlace:
    """Return the place at which a relay is to begin with its source; raise SettingsError."""
    place = _named(value)
    if place is Word.BEGINNING:
        raise SettingsError(
            "'beginning' is a table's rows, which a bootstrap server reads: write earliest or "
            "latest"
        )
    return place


def parse_restart(value: str | int) -> NamedPlace:
    """Return the place after which a relay is to read its source's log again.

    Raises SettingsError. That is a place as consumers name it, but none of tables.
    """
    parse_source_start(value)
    return parse_place(value)


def _named(value: str | int | datetime) -> NamedPlace:
    text = str(value).strip()
    try:
        return _time(value) if isinstance(value, datetime) else _parse(text)
    except ValueError as error:
        raise SettingsError(f"{text!r} names no place: {error}") from None


def _parse(text: str) -> NamedPlace:
    if text in set(Word):
        return Word(text)
    if _is_number(text):
        return _scn_place(text)
    form, colon, rest = text.partition(":")
    match form if colon else "":
        case "scn":
            return _scn_place(rest)
        case "binlog":
            return _binlog_place(rest)
        case "gtid":
            return _gtid_place(rest)
        case "gtid-set":
            return GtidSetPlace("".join(rest.split()))
        case "time":
            return _time_place(rest)
        case _ if re.match(r"\d{4}-\d\d-\d\d", text):
            return _time_place(text)
    raise ValueError(f"write {FORMS}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _scn_place(text: str) -> ScnPlace:
    if not _is_number(text) or len(text) > 19 or int(text) > MAX_SCN:
        raise ValueError(f"an SCN is a number from 0 to {MAX_SCN}")
    return ScnPlace(int(text))


def _binlog_place(text: str) -> BinlogPlace:
    match = _BINLOG.fullmatch(text)
    if match is None or int(match[2]) > MAX_FILE_NUMBER or int(match[3]) > MAX_OFFSET:
        raise ValueError("write binlog:FILE:OFFSET, for example binlog:mysql-bin.000012:4567")
    return BinlogPlace(match[1], int(match[3]))


def _gtid_place(text: str) -> GtidPlace:
    gtid = text.lower()
    if _MARIADB_GTID.fullmatch(gtid) is None and _MYSQL_GTID.fullmatch(gtid) is None:
        raise ValueError(
            "write the GTID of one transaction, for example gtid:0-1-17 (MariaDB) or "
            "gtid:3e11fa47-71ca-11e1-9e33-c80aa9429562:17 (MySQL); a set is gtid-set:…"
        )
    return GtidPlace(gtid)


def _time_place(text: str) -> TimePlace:
    try:
        if re.search(r"[.,]\d{7}", text):
            raise ValueError("more digits than Python's times have")
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "write a time like time:2026-11-21T10:00:00Z, to the microsecond at most"
        ) from None
    return _time(time if time.tzinfo else time.replace(tzinfo=UTC))


def _time(time: datetime) -> TimePlace:
    if time.tzinfo is None:
        # Python means its machine's time zone by that, and a text here means UTC.
        raise ValueError("the time has no zone; give it one, as datetime.now(UTC) has")
    since = time - _EPOCH
    time_ns = since // _MICROSECOND * 1000
    if not 0 <= time_ns <= MAX_SCN:
        raise ValueError("a time lies between 1970 and 2262")
    return TimePlace(time_ns)
