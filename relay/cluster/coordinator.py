"""Reads what lies at a coordinator, for people: groups, leases, servers. Blocks; for one thread.

Groups, leases and servers are read each time. Partitions take two requests each, so they are read
only so often that it takes a tenth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from databus.groups.group_record import GroupRecord
from databus.groups.moves import GroupMoves, read_moves
from databus.groups.names import all_groups
from databus.groups.reading import PartitionState, date_s, read_group, read_partitions
from databus.leases.clock import StepCountingClock
from databus.leases.dependent import main_of
from databus.leases.errors import LeaseError, LeaseUnavailableError
from databus.leases.lease_record import LeaseRecord
from databus.leases.places import open_records
from databus.leases.records import Records
from databus.leases.sightings import Holding, LeaseSightings
from databus.leases.store import FOLDER
from databus.servers.directory import SILENT_S, ServerDirectory
from databus.servers.entry import ServerEntry
from databus.servers.places import open_directory

MOST_GROUPS = 200
MOST_LEASES = 5_000
MOST_PARTITIONS = 10_000  # of all groups
_SHARE = 0.1  # of the time in which partitions are read
_GONE_S = 600.0  # for which a server that is not listed any more is shown


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A lease, and whether it is renewed; `renewed_at` is in Unix seconds by its owner's clock."""

    name: str
    owner: str
    term: int
    ttl_s: float
    renewed_at: float | None
    holding: Holding


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group, or the `problem` of its record. `partitions` are None until they are read."""

    name: str
    record: GroupRecord | None = None
    moves: GroupMoves | None = None
    partitions: tuple[PartitionState, ...] | None = None
    partitions_at: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SeenServer:
    """A server; `is_renewed` = its entry was written again under our eyes, None = not known yet.

    One that is `gone` was listed until `seen_at`, in Unix seconds.
    """

    entry: ServerEntry
    is_renewed: bool | None
    is_gone: bool
    seen_at: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at one moment, `at` in Unix seconds; None = nothing yet."""

    at: float | None = None
    groups: tuple[SeenGroup, ...] = ()
    groups_left_out: int = 0
    leases: Mapping[str, SeenLease] = field(default_factory=dict)
    """Main leases, by name: those that depend on none."""
    leases_left_out: int = 0
    servers: tuple[SeenServer, ...] = ()


class Coordinator:
    """A store of leases and records, looked at."""

    def __init__(self, url: str, wall_s: Callable[[], float] = time.time) -> None:
        """Open no connection yet. Raises SettingsError."""
        self._records: Records = open_records(url)
        self._directory: ServerDirectory = open_directory(url)
        self.shown = self._records.shown
        """The URL without a password."""
        self._wall_s, self._clock, self._sightings = wall_s, StepCountingClock(), LeaseSightings()
        self._dependent: set[str] = set()  # records of leases that depend on others
        self._partitions: dict[str, tuple[float, tuple[PartitionState, ...]]] = {}
        self._read_again_s = 0.0
        self._servers: dict[str, SeenServer] = {}

    def look(self) -> Seen:
        """Return what there is now; raise LeaseError if the store cannot be used."""
        names = all_groups(self._records)
        leases, leases_left_out = self._leases()
        found = list(self._groups(names[:MOST_GROUPS]))
        self._read_partitions(found)
        groups = tuple(self._with_partitions(one) for one in found)
        left_out = max(0, len(names) - MOST_GROUPS)
        servers = self._look_at_servers()
        return Seen(self._wall_s(), groups, left_out, leases, leases_left_out, servers)

    def close(self) -> None:
        """Close the connections."""
        self._directory.close()
        self._records.close()

    def _groups(self, names: Sequence[str]) -> Iterator[SeenGroup]:
        for name in names:
            try:
                record = read_group(self._records, name)
                yield SeenGroup(name, record, read_moves(self._records, name))
            except LeaseUnavailableError:
                raise
            except LeaseError as error:
                yield SeenGroup(name, problem=str(error))

    def _leases(self) -> tuple[dict[str, SeenLease], int]:
        names = self._records.names(FOLDER)
        self._dependent.intersection_update(names)
        others = sorted(name for name in names if name not in self._dependent)
        found = {}
        for name in others[:MOST_LEASES]:
            lease = self._lease(name)
            if lease is not None:
                found[lease.name] = lease
        self._sightings.keep(set(found))
        return found, max(0, len(others) - MOST_LEASES)

    def _lease(self, name: str) -> SeenLease | None:
        stored = self._records.read(name)
        if stored is None:
            return None
        try:
            record = LeaseRecord.decode(stored.data, None, self._records.shown)
        except LeaseError:
            return SeenLease(name, "", 0, 0.0, None, Holding.UNKNOWN)
        if main_of(record.owner) is not None:
            self._dependent.add(name)
            return None
        if not record.owner and "/partitions/" in record.lease:
            return None  # one that depends on others has no owner now
        holding = self._sightings.look(record, stored.version, self._clock.read())
        renewed_at = date_s(record.renewed)
        return SeenLease(record.lease, record.owner, record.term, record.ttl_s, renewed_at, holding)

    def _read_partitions(self, groups: Sequence[SeenGroup]) -> None:
        begun_s = time.monotonic()
        if begun_s < self._read_again_s:
            return
        left, kept = MOST_PARTITIONS, {}
        for group in groups:
            record = group.record
            if record is None or record.facts.partitions > left:
                continue
            left -= record.facts.partitions
            with suppress(LeaseError):
                # Of a generation that cannot be read nothing is known; the members say why.
                kept[group.name] = self._wall_s(), tuple(read_partitions(self._records, record))
        self._partitions = kept
        now_s = time.monotonic()
        self._read_again_s = now_s + (now_s - begun_s) * (1 / _SHARE - 1)

    def _with_partitions(self, group: SeenGroup) -> SeenGroup:
        if group.record is None or group.name not in self._partitions:
            return group
        at, partitions = self._partitions[group.name]
        if len(partitions) != group.record.facts.partitions:
            return group  # it was resized meanwhile
        return SeenGroup(group.name, group.record, group.moves, partitions, at)

    def _look_at_servers(self) -> tuple[SeenServer, ...]:
        now, listed = self._wall_s(), {one.instance: one for one in self._directory.entries()}
        found = {}
        for instance, entry in listed.items():
            last = self._servers.get(instance)
            # What was renewed before a pause in looking may have gone in it.
            is_renewed = (
                last is not None
                and now - last.seen_at < SILENT_S
                and (last.is_renewed or last.entry.renewed != entry.renewed)
            )
            found[instance] = SeenServer(entry, is_renewed or None, False, now)
        for instance, last in self._servers.items():
            if instance not in listed and now - last.seen_at < _GONE_S:
                found[instance] = SeenServer(last.entry, False, True, last.seen_at)
        self._servers = found
        return tuple(sorted(found.values(), key=lambda one: (one.entry.url, one.entry.instance)))
