"""What a server's log still has, compared with where reading would go on. Pure.

A server purges whole files, the oldest first, never the one that it writes:
those whose last write is longer ago than the expiry says, and, where the log's
size is bounded, as many as it takes. The last write to a file is not told to
replicas, so its age is counted from the newest transaction that was read, which
is older: the hours that are left may be more than are said, not fewer. Whether
the server looks at every rotation or only at some, or waits for a number of
connected replicas, can only make it keep the file for longer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from databus.relay.sources.log_status import Holding, LogStatus
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET, LogFile, reach_of
from databus.schemas.scn import BinlogPosition

_HOUR_S = 3600.0
_DAY_S = 86400.0
_MAY_BRING_THE_REST = (
    "what the server still sends may be the last, and reading cannot begin there again"
)
KEEPING_VARIABLES = (
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "binlog_expire_logs_auto_purge",
    "max_binlog_total_size",
    "slave_connections_needed_for_purge",
)


class Keeping(NamedTuple):
    """What a server says of purging its log; 0 = without a limit of this kind."""

    expiry_s: float = 0.0
    most_bytes: int = 0

    @property
    def text(self) -> str:
        """What it keeps, in words."""
        limits = [f"for {self.expiry_s / _HOUR_S:.4g} h"] if self.expiry_s else []
        limits += [f"up to {self.most_bytes} bytes"] if self.most_bytes else []
        return " and ".join(limits) or "until somebody purges it"


class ServerLog(NamedTuple):
    """A server's log at one moment; `now_s` is the server's own clock, in Unix seconds.

    `resets`: how many RESET statements, of whatever kind, it was given since it was started.
    """

    files: Sequence[LogFile]
    keeping: Keeping
    now_s: float
    resets: int = 0


class Place(NamedTuple):
    """Where reading would go on, and when what is before it was committed; 0 = not known."""

    position: BinlogPosition
    timestamp_s: float = 0.0


def keeping_of(variables: Mapping[str, str]) -> Keeping:
    """Return what the variables of any version of either server say of purging."""
    if variables.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
        return Keeping()
    # MySQL lets one of the two be set; on MariaDB both say the same.
    expiry_s = max(
        _number(variables, "binlog_expire_logs_seconds"),
        _number(variables, "expire_logs_days") * _DAY_S,
    )
    return Keeping(expiry_s, int(_number(variables, "max_binlog_total_size")))


def log_status_of(place: Place, log: ServerLog, warning_hours: float) -> LogStatus:
    """Say how far behind the log's end a place is, and how long it will be there."""
    found = _find(place.position, log.files)
    if found is None:
        gone = _gone_text(place.position, log.files)
        if _ends_before(place.position, log.files):
            problem = f"{gone}; it ends before that place, so it was reset or replaced"
            return LogStatus(Holding.GONE, warning=problem, doubt=problem)
        return LogStatus(Holding.GONE, warning=f"{gone}: {_MAY_BRING_THE_REST}")
    later = log.files[found + 1 :]
    size_bytes = log.files[found].size_bytes
    behind_bytes = size_bytes - place.position.offset + sum(f.size_bytes for f in later)
    behind_s = _behind_s(place, log, behind_bytes)
    if not later:
        # It is being written: its clock starts only when it is not any more.
        expiry_s = log.keeping.expiry_s
        hours_left = expiry_s / _HOUR_S if expiry_s else math.inf
        return LogStatus(Holding.HELD, behind_bytes, behind_s, hours_left)
    held_bytes = size_bytes + sum(f.size_bytes for f in later)
    left = _hours_left(log.keeping, behind_s, behind_bytes, held_bytes)
    if left is None or left >= _least_hours(log.keeping, warning_hours):
        return LogStatus(Holding.HELD, behind_bytes, behind_s, left)
    warning = (
        f"the server may purge {log.files[found].name} in {left:.1f} hours, and "
        f"capture has yet to read it: it is {behind_bytes} bytes behind the log, which the server "
        f"keeps {log.keeping.text}; let it catch up, or let the server keep its log for longer"
    )
    return LogStatus(Holding.NEAR_PURGE, behind_bytes, behind_s, left, warning)


def _find(position: BinlogPosition, files: Sequence[LogFile]) -> int | None:
    for index, file in enumerate(files):
        if file.number == position.file_number:
            is_inside = FIRST_OFFSET <= position.offset <= file.size_bytes
            return index if is_inside else None
    return None


def _gone_text(position: BinlogPosition, files: Sequence[LogFile]) -> str:
    return (
        f"file number {position.file_number}, offset {position.offset}, where capture goes on, is "
        f"not in the server's log any more, {reach_of(files)}"
    )


def _ends_before(position: BinlogPosition, files: Sequence[LogFile]) -> bool:
    """Say whether the log has yet to come to a place, which one that was read to never has.

    Then an open stream has no rest to bring: the server waits there in silence. Files that
    were purged are another thing, for the log goes on behind them.
    """
    number = position.file_number
    is_shorter = any(f.number == number and f.size_bytes < position.offset for f in files)
    return is_shorter or all(file.number < number for file in files)


def _behind_s(place: Place, log: ServerLog, behind_bytes: int) -> float | None:
    if behind_bytes == 0:
        return 0.0
    return max(0.0, log.now_s - place.timestamp_s) if place.timestamp_s else None


def _hours_left(
    keeping: Keeping, behind_s: float | None, behind_bytes: int, held_bytes: int
) -> float | None:
    """Return the time to the purge of a file that is not written any more; None = not known."""
    if not keeping.expiry_s and not keeping.most_bytes:
        return math.inf
    if behind_s is None:
        return None
    left_s = math.inf
    if keeping.expiry_s:
        left_s = keeping.expiry_s - behind_s
    if keeping.most_bytes:
        # As fast as the log has grown since.
        bytes_per_s = behind_bytes / max(behind_s, 1.0)
        left_s = min(left_s, (keeping.most_bytes - held_bytes) / max(bytes_per_s, 1e-9))
    return max(0.0, left_s) / _HOUR_S


def _least_hours(keeping: Keeping, warning_hours: float) -> float:
    """Return when to warn: a log kept for less than the setting would be a warning for ever."""
    if not keeping.expiry_s:
        return warning_hours
    return min(warning_hours, keeping.expiry_s / _HOUR_S / 2)


def _number(variables: Mapping[str, str], name: str) -> float:
    try:
        return float(variables.get(name, "0") or 0)
    except ValueError:
        return 0.0
