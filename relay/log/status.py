"""The status of a relay log at one moment. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from databus.relay.log.archive.status import ArchiveStatus


@dataclass(frozen=True, slots=True)
class RelayLogStatus:
    """What a log holds, and what keeps it from going on. Missing SCNs are -1, missing times 0.

    `durable_scn` is the newest window on disk. `size_bytes` counts logs that were moved aside,
    too. `share` is how much of what the retention allows is used, by bytes or by age. Times in
    `since` are seconds since 1970.
    """

    folder: str
    min_scn: int = -1
    prev_scn: int = -1
    durable_scn: int = -1
    oldest_ns: int = 0
    newest_ns: int = 0
    segments: int = 0
    size_bytes: int = 0
    share: float = 0.0
    is_joined: bool = False  # it is certain that the ring continues it
    problem: str = ""  # retried for ever
    since: float | None = None  # when the problem began
    errors: int = 0
    gap: str = ""  # why the log began anew the last time
    waiting_s: float | None = None  # for how long capture has been waiting for it
    waited_s: float = 0.0
    held_after_scn: int | None = None  # kept for consumers; -1 = everything, None = nothing is
    read_from_archive: tuple[str, ...] = ()  # damaged segments on disk, and what to do
    unread: str = ""  # why windows were deleted that such a consumer had not read
    large_bytes: int = 0  # of a transaction larger than the ring that is on its way into the log
    read_bytes: int = 0  # of events that consumers were sent, or that were looked at for them
    archive: ArchiveStatus | None = None  # None without one
