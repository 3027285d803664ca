"""Compares a server's log with the position where reading resumes. Pure.

A server purges whole files, the oldest first, and never the one that it writes: files
whose last write is older than the expiry time, and, where the log's size is bounded, as
many as necessary. Replicas are not told the time of the last write to a file, so the age
is counted from the newest transaction read, which is older. The real number of hours left
may be larger than reported, never smaller: also if the server checks only at some
rotations, or waits for connected replicas, it keeps the file for longer.
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
    """A server's rules for purging its log; 0 = no limit of this kind."""

    expiry_s: float = 0.0
    most_bytes: int = 0

    @property
    def text(self) -> str:
        """The rules as text."""
        limits = [f"for {self.expiry_s / _HOUR_S:.4g} h"] if self.expiry_s else []
        limits += [f"up to {self.most_bytes} bytes"] if self.most_bytes else []
        return " and ".join(limits) or "until somebody purges it"


class ServerLog(NamedTuple):
    """A server's log at one moment; `now_s` is the server's own clock, in Unix seconds.

    `resets` is the number of RESET statements of any kind since the server started.
    """

    files: Sequence[LogFile]
    keeping: Keeping
    now_s: float
    resets: int = 0


class Place(NamedTuple):
    """The position where reading resumes, and the commit time before it; 0 = not known."""

    position: BinlogPosition
    timestamp_s: float = 0.0


def keeping_of(variables: Mapping[str, str]) -> Keeping:
    """Return the purge rules from the variables of any version of either server."""
    if variables.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
        return Keeping()
    # MySQL accepts one of the two; in MariaDB both have the same value in different units.
    expiry_s = max(
        _number(variables, "binlog_expire_logs_seconds"),
        _number(variables, "expire_logs_days") * _DAY_S,
    )
    return Keeping(expiry_s, int(_number(variables, "max_binlog_total_size")))


def log_status_of(place: Place, log: ServerLog, warning_hours: float) -> LogStatus:
    """Return how far a position is behind the log's end, and when it may be purged."""
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
        # The file is being written: its expiry time starts when the next one begins.
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
        f"file number {position.file_number}, offset {position.offset}, where capture continues, "
        f"is not in the server's log any more, {reach_of(files)}"
    )


def _ends_before(position: BinlogPosition, files: Sequence[LogFile]) -> bool:
    """Return whether the log ends before a position that was read, so it was replaced.

    Then an open stream delivers nothing more: the server waits silently. A purge does not end
    a stream in this way, because the log continues after the purged files.
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
    """Return the hours until a finished file may be purged; None = not known."""
    if not keeping.expiry_s and not keeping.most_bytes:
        return math.inf
    if behind_s is None:
        return None
    left_s = math.inf
    if keeping.expiry_s:
        left_s = keeping.expiry_s - behind_s
    if keeping.most_bytes:
        # At the rate at which the log has grown since.
        bytes_per_s = behind_bytes / max(behind_s, 1.0)
        left_s = min(left_s, (keeping.most_bytes - held_bytes) / max(bytes_per_s, 1e-9))
    return max(0.0, left_s) / _HOUR_S


def _least_hours(keeping: Keeping, warning_hours: float) -> float:
    """Return when to warn; a log kept for less than the setting would always warn."""
    if not keeping.expiry_s:
        return warning_hours
    return min(warning_hours, keeping.expiry_s / _HOUR_S / 2)


def _number(variables: Mapping[str, str], name: str) -> float:
    try:
        return float(variables.get(name, "0") or 0)
    except ValueError:
        return 0.0
