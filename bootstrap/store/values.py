"""What a bootstrap store holds and gives back, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

NOTHING_YET = -1  # an SCN that is not known


class SourceStatus(StrEnum):
    """How far a source has come; consumers are served an ACTIVE one only."""

    NEW = "new"  # to be seeded
    SEEDING = "seeding"  # its rows are being read from the database
    SEEDING_CATCH_UP = "seeding_catch_up"  # all read; the log has to come as far as the reading
    ACTIVE = "active"
    INACTIVE = "inactive"  # not among the settings' sources any more
    FELL_OFF_RELAY = "fell_off_relay"  # no relay holds what comes next; to be seeded anew


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source of a store. SCNs are -1 as long as they are not known.

    `log_floor_scn`: the log has everything after it. `tombstone_floor_scn`: it
    is known of every row deleted after it, but for rows that both came and went
    between `hole_begin_scn` and `hole_end_scn`, while the store was off the
    relay. `seed_scn`: as of when rows are seeded. `seed_until_scn`: how far the
    log must come before the seeded rows hold together; while SEEDING it says
    that every row was read and
    `end_seeding` is to be called (again) with it. `partial_scn`: the last window
    with an event whose row lacked columns that nobody knew yet.
    """

    name: str
    src_id: int
    status: SourceStatus = SourceStatus.NEW
    floor_scn: int = NOTHING_YET  # start SCNs below it are refused
    log_floor_scn: int = NOTHING_YET
    tombstone_floor_scn: int = NOTHING_YET
    hole_begin_scn: int = NOTHING_YET
    hole_end_scn: int = NOTHING_YET
    seed_scn: int = NOTHING_YET
    seed_resume: str | None = None
    seed_rows: int = 0
    seed_estimate: int = 0
    seed_until_scn: int = NOTHING_YET
    problem: str = ""
    partial_scn: int = NOTHING_YET


class Position(NamedTuple):
    """The last window that the producer applied; SCN -1 = none yet."""

    scn: int
    timestamp_ns: int  # of its commit


# Named tuples where they may be: one is made per row on the way in or out.


class StoredEvent(NamedTuple):
    """A row's event as it is stored: version 2 bytes, and what they are found by.

    `is_truncate`: it is about all rows of the source, which are gone. `is_partial`:
    its row, or the row before, lacks columns (see `partial_rows`).
    """

    scn: int
    key: int | bytes
    is_deleted: bool
    event: bytes
    is_truncate: bool = False
    is_partial: bool = False


class StoreRow(NamedTuple):
    """A row of a snapshot table; deleted: it is known that the row is no more."""

    id: int
    scn: int
    key: int | bytes
    is_deleted: bool
    event: bytes


class LogRow(NamedTuple):
    """A row of a log table; `row_index` counts the events of its window from 0."""

    scn: int
    row_index: int
    src_id: int
    key: int | bytes
    event: bytes


LogPlace = tuple[int, int]  # SCN, index of the last row consumed; WHOLE_WINDOW = all of it
WHOLE_WINDOW = -1


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """Rows in the order of their ids; `last_id` is where the next page goes on."""

    rows: list[StoreRow]
    last_id: int
    is_last: bool


class SnapshotMeasure(NamedTuple):
    """How far so many rows of a snapshot reach: up to id `last_id`, with no rows where it began.

    `size_bytes` are of their events; `is_last`: there are no more.
    """

    last_id: int
    rows: int
    size_bytes: int
    is_last: bool


class SnapshotBody(NamedTuple):
    """The events of rows in the order of their ids, in parts of several, and which those are."""

    parts: list[bytes]
    measure: SnapshotMeasure


class LogBody(NamedTuple):
    """The events of whole windows in the order of commits, up to and with window `scn`."""

    data: bytes
    rows: int
    scn: int


class LogMeasure(NamedTuple):
    """How far so many rows of the log reach: up to and with window `scn`.

    `timestamp_ns` is when it was committed, 0 when none of its rows was looked at.
    """

    scn: int
    rows: int
    size_bytes: int
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class LogPage:
    """Log rows in the order of (SCN, index); `last` is where the next page goes on.

    Its index is WHOLE_WINDOW when nothing more of that window is wanted, and
    after the last page it is (target SCN, WHOLE_WINDOW).
    """

    rows: list[LogRow]
    last: LogPlace
    is_last: bool


@dataclass(frozen=True, slots=True)
class SourceSizes:
    """How much a store holds of one source."""

    rows: int
    tombstones: int
    log_rows: int
    log_bytes: int  # of the events


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """How much a store holds: the whole file, and each source by name."""

    file_bytes: int
    free_bytes: int  # of the file: room for what comes
    sources: dict[str, SourceSizes]
