"""The values that a bootstrap store takes and returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

NOTHING_YET = -1  # an unknown SCN


class SourceStatus(StrEnum):
    """The status of a source. Only ACTIVE sources are served."""

    NEW = "new"  # to be seeded
    SEEDING = "seeding"  # its rows are being read from the database
    # All rows are read; the log has to catch up with the reading.
    SEEDING_CATCH_UP = "seeding_catch_up"
    ACTIVE = "active"
    INACTIVE = "inactive"  # not among the settings' sources any more, or stopped by the relay
    FELL_OFF_RELAY = "fell_off_relay"  # no relay holds what comes next; to be seeded again


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source of a store. SCNs are -1 while they are unknown.

    `log_floor_scn`: the log holds every window after it. `tombstone_floor_scn`: every
    deletion after it is known, except of rows that were both inserted and deleted between
    `hole_begin_scn` and `hole_end_scn`, while the producer had lagged out. `seed_scn`: the
    SCN as of which rows are seeded. `seed_until_scn`: the SCN that the log must reach
    before the seeded rows are consistent; while SEEDING it means that every row was read
    and `end_seeding` must be called (again) with it. `partial_scn`: the last window with
    an event whose row lacked columns that were not known yet.
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


# Named tuples, because one is made for each row that is read or written.


class StoredEvent(NamedTuple):
    """A row's event as it is stored: version 2 bytes, and the columns to find them by.

    `is_truncate`: the event deletes all rows of the source. `is_partial`: its row, or the
    row before, lacks columns (see `partial_rows`).
    """

    scn: int
    key: int | bytes
    is_deleted: bool
    event: bytes
    is_truncate: bool = False
    is_partial: bool = False


class StoreRow(NamedTuple):
    """A row of a snapshot table. A deleted row is a tombstone."""

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
    """Rows in the order of their ids; the next page starts after `last_id`."""

    rows: list[StoreRow]
    last_id: int
    is_last: bool


class SnapshotMeasure(NamedTuple):
    """How far a number of rows of a snapshot reaches: up to id `last_id`.

    Without rows `last_id` is the start. `size_bytes` counts their events; `is_last`: there
    are no more rows.
    """

    last_id: int
    rows: int
    size_bytes: int
    is_last: bool


class SnapshotBody(NamedTuple):
    """The events of rows in the order of their ids, joined in parts, and the ids."""

    parts: list[bytes]
    measure: SnapshotMeasure


class LogBody(NamedTuple):
    """The events of whole windows in commit order, up to and including window `scn`."""

    data: bytes
    rows: int
    scn: int


class LogMeasure(NamedTuple):
    """How far a number of rows of the log reaches: up to and including window `scn`.

    `timestamp_ns` is its commit time, 0 when none of its rows was read.
    """

    scn: int
    rows: int
    size_bytes: int
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class LogPage:
    """Log rows in the order of (SCN, index); the next page starts after `last`.

    Its index is WHOLE_WINDOW when the window is complete. After the last page it is
    (target SCN, WHOLE_WINDOW).
    """

    rows: list[LogRow]
    last: LogPlace
    is_last: bool


@dataclass(frozen=True, slots=True)
class SourceSizes:
    """The sizes of one source in a store."""

    rows: int
    tombstones: int
    log_rows: int
    log_bytes: int  # of the events


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """The sizes of a store: the whole file, and each source by name."""

    file_bytes: int
    free_bytes: int  # free pages in the file
    packed_bytes: int  # of rows packed as columns
    sources: dict[str, SourceSizes]
