"""Where to start: an SCN or a setting turned into a binlog file and offset. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from databus.schemas.errors import ProtocolError, SettingsError
from databus.schemas.scn import MAX_OFFSET, BinlogPosition, binlog_position

FIRST_OFFSET = 4  # behind a binlog file's magic
_MARIADB_GTIDS = re.compile(r"\d+-\d+-\d+(,\d+-\d+-\d+)*")
_MYSQL_GTIDS = re.compile(r"[0-9a-fA-F-]{36}(:\d+(-\d+)?)+(,[0-9a-fA-F-]{36}(:\d+(-\d+)?)+)*")


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
    """Where the dump begins: a file and offset, or a GTID set."""

    file: str = ""
    offset: int = 0
    gtids: str = ""


def file_number(name: str) -> int:
    """Return the number that a binlog file's name ends with; raises ValueError."""
    _, dot, digits = name.rpartition(".")
    if not dot or not digits.isdigit():
        raise ValueError(f"{name!r} is not the name of a binlog file")
    return int(digits)


def start_at_setting(setting: str, epoch: int, files: Sequence[LogFile], is_mariadb: bool) -> Start:
    """Return where `start` of the settings points; raises SettingsError or ValueError."""
    text = setting.strip().replace(" ", "")
    if text == "latest":
        if files[-1].size_bytes > MAX_OFFSET:
            raise ValueError(
                f"{files[-1].name} is longer than 4 GiB, and no position says its end; "
                "FLUSH BINARY LOGS"
            )
        return Start(files[-1].name, files[-1].size_bytes)
    if text == "earliest":
        return Start(files[0].name, FIRST_OFFSET)
    if text.startswith("gtid:"):
        return Start(gtids=_checked_gtids(text.removeprefix("gtid:"), setting, is_mariadb))
    if text.isdigit():
        try:
            return start_at_position(binlog_position(int(text)), epoch, files)
        except ProtocolError as error:
            raise SettingsError(f"start = {setting!r}: {error}") from None
    raise SettingsError(f"start = {setting!r}: write latest, earliest, an SCN or gtid:<set>")


def start_at_position(position: BinlogPosition, epoch: int, files: Sequence[LogFile]) -> Start:
    """Return the file and offset of a position, which must be in the log; raises ValueError."""
    if position.epoch != epoch:
        raise ValueError(
            f"the position is of epoch {position.epoch} and the settings say epoch {epoch}; a "
            "position of another server means nothing here: set start to gtid:<set> of what the "
            "old server had committed, or to an SCN of this epoch"
        )
    held = {file.number: file for file in files}
    found = held.get(position.file_number)
    if found is None or not FIRST_OFFSET <= position.offset <= found.size_bytes:
        wanted = f"file number {position.file_number}, offset {position.offset}"
        raise ValueError(
            f"{wanted} is not in the server's log, which reaches from {files[0].name}:"
            f"{FIRST_OFFSET} to {files[-1].name}:{files[-1].size_bytes}; files were purged, or "
            "the log was reset: the changes between cannot be read any more"
        )
    return Start(found.name, position.offset)


def _checked_gtids(text: str, setting: str, is_mariadb: bool) -> str:
    pattern, example = (
        (_MARIADB_GTIDS, "gtid:0-1-100,1-2-7")
        if is_mariadb
        else (_MYSQL_GTIDS, "gtid:<uuid>:1-100")
    )
    if not pattern.fullmatch(text):
        kind = "MariaDB" if is_mariadb else "MySQL"
        raise SettingsError(f"start = {setting!r}: a GTID set of {kind} looks like {example}")
    return text
