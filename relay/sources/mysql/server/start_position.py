"""Resolves an SCN or the `start` setting to a binlog file and offset, or a GTID set. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from databus.conf.named_places import (
    BinlogPlace,
    GtidPlace,
    GtidSetPlace,
    ScnPlace,
    TimePlace,
    Word,
    parse_source_start,
)
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet, parse_mariadb_position
from databus.schemas.errors import ProtocolError, SettingsError
from databus.schemas.scn import MAX_OFFSET, BinlogPosition, binlog_position

FIRST_OFFSET = 4  # behind a binlog file's magic
SearchedPlace = BinlogPlace | GtidPlace | TimePlace


@dataclass(frozen=True, slots=True)
class LogFile:
    """A binlog file that the server has."""

    name: str
    size_bytes: int

    @property
    def number(self) -> int:
        """The number its name ends with."""
        return file_number(self.name)


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a dump: a file and offset, or a GTID set."""

    file: str = ""
    offset: int = 0
    gtids: str = ""

    def __str__(self) -> str:
        return f"gtid-set:{self.gtids}" if self.gtids else f"{self.file}:{self.offset}"


def file_number(name: str) -> int:
    """Return the number that a binlog file's name ends with; raises ValueError."""
    _, dot, digits = name.rpartition(".")
    if not dot or not digits.isdigit():
        raise ValueError(f"{name!r} is not the name of a binlog file")
    return int(digits)


def reach_of(files: Sequence[LogFile]) -> str:
    """Describe the first and the last position of a log."""
    if not files:
        return "which is empty"
    first, last = files[0], files[-1]
    return f"which reaches from {first.name}:{FIRST_OFFSET} to {last.name}:{last.size_bytes}"


def end_scn(files: Sequence[LogFile], epoch: int) -> int:
    """Return the SCN of the end of a log that has files."""
    last = files[-1]
    return BinlogPosition(epoch, last.number, min(last.size_bytes, MAX_OFFSET)).to_scn()


def start_at_setting(
    setting: str,
    epoch: int,
    files: Sequence[LogFile],
    search: Callable[[SearchedPlace], Start],
    *,
    is_mariadb: bool,
) -> Start:
    """Return the position of the `start` setting; raises SettingsError or ValueError.

    `search` finds what only the log itself can tell, and raises what it raises.
    """
    match parse_source_start(setting):
        case Word.LATEST:
            if files[-1].size_bytes > MAX_OFFSET:
                raise ValueError(
                    f"{files[-1].name} is longer than 4 GiB, and no position says its end; "
                    "FLUSH BINARY LOGS"
                )
            return Start(files[-1].name, files[-1].size_bytes)
        case ScnPlace(scn):
            try:
                start = start_at_position(binlog_position(scn), epoch, files)
            except ProtocolError as error:
                raise SettingsError(f"start = {setting!r}: {error}") from None
            return search(BinlogPlace(start.file, start.offset))  # it may lie in a transaction
        case GtidSetPlace(gtids):
            return Start(gtids=_checked_gtids(gtids, setting, is_mariadb))
        case BinlogPlace() | GtidPlace() | TimePlace() as place:
            return search(place)
        case _:
            return Start(files[0].name, FIRST_OFFSET)


def start_at_position(position: BinlogPosition, epoch: int, files: Sequence[LogFile]) -> Start:
    """Return the file and offset of a position, which must be in the log; raises ValueError."""
    if position.epoch != epoch:
        raise ValueError(
            f"the position is of epoch {position.epoch} and the settings say epoch {epoch}; a "
            "position of another server means nothing here: set start to gtid-set:… of what the "
            "old server had committed, or to an SCN of this epoch"
        )
    held = {file.number: file for file in files}
    found = held.get(position.file_number)
    if found is None or not FIRST_OFFSET <= position.offset <= found.size_bytes:
        wanted = f"file number {position.file_number}, offset {position.offset}"
        raise ValueError(
            f"{wanted} is not in the server's log, {reach_of(files)}; files were purged, or "
            "the log was reset: the changes between cannot be read any more"
        )
    return Start(found.name, position.offset)


def _checked_gtids(text: str, setting: str, is_mariadb: bool) -> str:
    kind, example = (
        ("MariaDB", "gtid-set:0-1-100,1-2-7") if is_mariadb else ("MySQL", "gtid-set:<uuid>:1-100")
    )
    parse = parse_mariadb_position if is_mariadb else MysqlGtidSet.parse
    try:
        if not text:
            raise ValueError("there is none")
        parse(text)
    except ValueError as error:
        raise SettingsError(
            f"start = {setting!r}: {error}; a GTID set of {kind} looks like {example}"
        ) from None
    return text
