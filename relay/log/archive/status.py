"""The status of an archive at one moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """What an archive holds of one log, and what keeps it from going on.

    `segments`, `size_bytes` and the SCNs are those of the log's segments; missing SCNs are -1,
    missing times 0. `waiting` counts sealed segments that are not there yet, `since` is in seconds
    since 1970. Until `is_known` the archive was not listed: it may hold more.
    """

    uri: str
    is_known: bool = False
    segments: int = 0
    size_bytes: int = 0
    min_scn: int = -1
    max_scn: int = -1
    oldest_ns: int = 0
    waiting: int = 0
    problem: str = ""  # retried for ever
    since: float | None = None
    errors: int = 0
    written_bytes: int = 0
    fetched_bytes: int = 0

    @property
    def warning(self) -> str:
        """The problem as a warning; "" without one."""
        if not self.problem:
            return ""
        return (
            f"{self.waiting} segments of the relay log wait for the archive, and are kept: "
            f"{self.problem}"
        )
