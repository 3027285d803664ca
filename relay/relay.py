"""A relay: for each physical source a ring, its capture loop and its readers.

Builds all of it from the settings, starts and stops it, and reports its status. It serves
no requests itself; `service` does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.daemon.files import take_lock
from databus.daemon.log_setup import about
from databus.leases.places import open_records
from databus.registry.registry import SchemaRegistry
from databus.registry.store import open_store
from databus.relay.capture.standby.role import Role
from databus.relay.capture.status import State
from databus.relay.catalog import Catalog, check_tables, make_catalog
from databus.relay.changing.known_tables import with_known_tables
from databus.relay.clock import Clock
from databus.relay.control import Control
from databus.relay.monitoring.monitor import Monitor
from databus.relay.monitoring.traffic import Traffic
from databus.relay.opening import (
    OpenLogProbe,
    OpenSource,
    RereadOf,
    SourceOpener,
    max_scn_store,
    no_reread,
    reread_of_kind,
)
from databus.relay.physical_source import PhysicalSource
from databus.relay.ring.watch import RingWatch
from databus.relay.source_changes import SourceChanges
from databus.relay.source_status import Part, SourceStatus, Trouble, status_json
from databus.relay.sources.kind import (
    open_log_probe,
    open_source as open_kept_source,
    source_ids,
)
from databus.relay.sources.source import Source
from databus.relay.unlogged_rows import UnloggedCounts
from databus.schemas.errors import (
    DatabusError,
    RingError,
    UnknownSourceError,
    UnusableSourceError,
)

log = logging.getLogger(__name__)

LOCK_FILE = "relay.lock"
_MOST_NAMED = 3  # damaged ranges in one text

CLOCK = Clock()


class Relay:
    """The parts of a relay; owns its threads and files until `stop`.

    A physical source whose ring or MaxSCN cannot be used is `unusable`; the others are
    served. Raises SettingsError if another relay uses the data folder or the settings
    contradict its content, SchemaError if the registry is unusable, RingError if all
    physical sources are.
    """

    def __init__(
        self,
        settings: RelaySettings,
        open_source: OpenSource | None = None,
        clock: Clock = CLOCK,
        open_log_probe: OpenLogProbe = open_log_probe,
        reread_of: RereadOf | None = None,
    ) -> None:
        self.settings = settings
        self.traffic = Traffic()
        self.monitor = Monitor.of(p.name for p in settings.physical_sources)
        self.is_closing = False
        if reread_of is None:
            reread_of = no_reread if open_source else reread_of_kind
        self._open_source = open_source or partial(open_kept_source, data_dir=settings.data_dir)
        self._clock = clock
        # Closes everything opened so far if a later step fails.
        with contextlib.ExitStack() as opened:
            # First: nothing in the folder may be read while another relay writes it.
            opened.callback(_lock(settings.data_dir))
            self.settings = settings = with_known_tables(settings)
            self.registry = SchemaRegistry(open_store(settings.data_dir, settings.schema_dir))
            self._unlogged = UnloggedCounts(self.registry)
            self._roles = self._make_roles(opened)
            self.catalog = self._make_catalog()
            self.unusable: dict[str, UnusableSourceError] = {}
            self._opener = SourceOpener(
                settings,
                self.catalog,
                self.registry,
                clock,
                self._note_problem,
                self._open_source,
                open_log_probe,
                reread_of,
            )
            self.physical_sources = self._open_all(opened)
            self.ring_watch = self._make_ring_watch()
            self.control = Control(self.open_source, self.ring_watch.forget, settings.data_dir)
            self.changes = SourceChanges(self, self._opener)
            self._opened = opened.pop_all()

    @property
    def clock(self) -> Clock:
        """The clock of all parts of the relay."""
        return self._clock

    def physical_source(self, name: str) -> PhysicalSource:
        """Return a physical source by name; raise UnknownSourceError, UnusableSourceError."""
        if name in self.unusable:
            raise self.unusable[name]
        if name not in self.physical_sources:
            raise UnknownSourceError(name, [p.name for p in self.settings.physical_sources])
        return self.physical_sources[name]

    def open_source(self, settings: PhysicalSourceSettings) -> Source:
        """Return a new source of the same database, not connected yet."""
        return self._open_source(settings)

    def start(self) -> None:
        """Start capturing every physical source."""
        for source in self.physical_sources.values():
            source.start()
        self.ring_watch.start()

    def enter(self, url: str) -> None:
        """Contend for the leases of its sources, as the relay that others reach at `url`."""
        for name, role in self._roles.items():
            if name in self.physical_sources:
                source = self.physical_sources[name]
                reached_at = self.settings.public_url or url
                role.enter(reached_at, source.state, source.capture.try_now)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop capturing, save MaxSCN and close all files. Idempotent."""
        end = time.monotonic() + timeout_s
        captures = [source.capture for source in self.physical_sources.values()]
        for capture in captures:
            # Signal all of them first, so that they end in parallel.
            capture.stop(0)
        # A list, because `all` over a generator would stop at the first False.
        ended = [capture.stop(max(0.0, end - time.monotonic())) for capture in captures]
        for role in self._roles.values():
            role.leave(max(0.0, end - time.monotonic()), gives_back=all(ended))
        sources = self.physical_sources.values()
        ended += [source.stop_beside(max(0.0, end - time.monotonic())) for source in sources]
        self.ring_watch.stop(max(0.0, end - time.monotonic()))
        if all(ended):
            # Otherwise a thread may still write to them; the process's end closes them.
            self._opened.close()

    def own(self, files: contextlib.ExitStack) -> None:
        """Close files when the relay stops."""
        self._opened.push(files.pop_all())

    def let_go(self) -> None:
        """Answer all held requests now, and hold none from now on."""
        self.is_closing = True
        for source in self.physical_sources.values():
            source.notifier.notify_all()
            if source.name in self._roles:
                source.capture.stop(0)  # another relay goes on at once

    def status_of(self, name: str) -> SourceStatus:
        """Return the current status of a usable physical source."""
        source = self.physical_sources[name]
        found = source.status(
            self._damage_of(name),
            lambda: self.monitor.clients.readers_of(name, self._clock.monotonic_s()),
            is_draining=self.control.is_draining(name),
        )
        return replace(found, unlogged=self._unlogged.of(tuple(source.settings.source_names)))

    def statuses(self) -> list[SourceStatus]:
        """Return the status of every usable physical source."""
        return [self.status_of(name) for name in self.physical_sources]

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the status of each physical source, by name, as JSON values."""
        unusable = {
            name: {"state": State.ERROR.value, "problem": str(error)}
            for name, error in self.unusable.items()
        }
        return unusable | {status.name: status_json(status) for status in self.statuses()}

    def _damage_of(self, name: str) -> str:
        """Describe the damage to windows in a physical source's ring; "" without any."""
        reader, watched = self.physical_sources[name].reader, self.ring_watch.watched[name]
        head = reader.head
        # A dict, to drop duplicates but keep the order.
        found = {str(reader.check.error(damage)): None for damage in reader.check.damages()}
        found |= {str(error): None for damage, error in watched.damages if damage.end > head}
        more = [f"{len(found) - _MOST_NAMED} more such"] if len(found) > _MOST_NAMED else []
        return "; ".join(filter(None, [*list(found)[:_MOST_NAMED], *more, watched.problem]))

    @property
    def troubles(self) -> list[Trouble]:
        """Current troubles of all physical sources, the worst first."""
        started_at = self.traffic.started_at_s
        found = [
            Trouble(name, Part.FILES, State.ERROR, str(error), started_at)
            for name, error in self.unusable.items()
        ]
        for status in self.statuses():
            found += status.troubles()
        return sorted(found, key=lambda one: one.badness)

    @property
    def is_healthy(self) -> bool:
        """Whether every source is known to be well."""
        return not self.troubles

    @property
    def is_ready(self) -> bool:
        """Whether clients can be served: each usable source was reached or has windows."""
        return not self.is_closing and all(
            source.capture.status.was_opened or source.reader.head < source.reader.tail
            for source in self.physical_sources.values()
        )

    def _make_ring_watch(self) -> RingWatch:
        paths = {name: self.settings.data_dir / f"{name}.ring" for name in self.physical_sources}
        return RingWatch(paths, self._note_damage, self._clock)

    def _note_damage(self, name: str, error: DatabusError, until: int) -> None:
        self._note_problem(name, error)
        self.physical_sources[name].reader.check.distrust(0, until)

    def _note_problem(self, physical_source: str, error: Exception) -> None:
        self.monitor.problems.note(self._clock.wall_ns() / 1e9, physical_source, error)

    def _make_roles(self, opened: contextlib.ExitStack) -> dict[str, Role]:
        found = {}
        for source in self.settings.physical_sources:
            if source.capture_lease_s is not None:
                records, folder = open_records(self.settings.coordinator), self.settings.data_dir
                own = max_scn_store(self.settings.max_scn, folder, source.name)
                role = Role(source, records, own, folder)
                opened.callback(role.leave, 0.0, gives_back=False)
                found[source.name] = role
        return found

    def _make_catalog(self) -> Catalog:
        sources = self.settings.physical_sources
        catalog = make_catalog(sources, self.registry.sources(), self._ids_of)
        check_tables(sources, self.registry)
        self.registry.add_sources(catalog.ids)
        for name, role in self._roles.items():
            role.ids = catalog.src_ids_of(name)
        return catalog

    def _ids_of(self, settings: PhysicalSourceSettings) -> Mapping[str, int]:
        role = self._roles.get(settings.name)
        return source_ids(settings) if role is None else role.known_ids()

    def _open_all(self, opened: contextlib.ExitStack) -> dict[str, PhysicalSource]:
        found: dict[str, PhysicalSource] = {}
        problems: dict[str, RingError] = {}
        for settings in self.settings.physical_sources:
            with contextlib.ExitStack() as files:
                try:
                    role = self._roles.get(settings.name)
                    found[settings.name] = self._opener.open(settings, role, files)
                except RingError as error:
                    problems[settings.name] = error
                else:
                    opened.push(files.pop_all())
        # A relay that can serve none of its sources must not start.
        if not found:
            raise RingError("; ".join(map(str, problems.values())))
        for name, problem in problems.items():
            self.unusable[name] = UnusableSourceError(name, problem)
            self._note_problem(name, problem)
            log.error("%s", self.unusable[name], extra=about(physical_source=name))
        return found


def _lock(folder: Path) -> Callable[[], None]:
    """Lock the data folder for this process; return a function that releases it."""
    in_use = f"data_dir {folder} is in use by another relay: stop that one, or use another data_dir"
    return take_lock(folder / LOCK_FILE, in_use)
