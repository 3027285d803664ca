"""The servers of one physical source: which is read, its epoch, and what was delivered.

The source decides at each connection whether its server is the one before, or another one at
which it can go on (`relay/sources/epochs.py`). This keeps what it needs for that, and chooses the
server to connect to: the one that was read last, or the next in the list when that is gone for
`switch_after_s`. A server that lacks delivered transactions may be about to get them, so it
is asked again for that time. Then, if no server is left, capture stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from secrets import token_hex

from databus.conf.addresses import without_password
from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.log_setup import about
from databus.relay.capture.capture_ring import CaptureRing
from databus.relay.capture.epoch_table import EpochTable
from databus.relay.capture.overlap.overlap_search import OverlapSearch
from databus.relay.capture.peers.asking import asker
from databus.relay.capture.peers.peers import Peers
from databus.relay.capture.standby.role import Role
from databus.relay.clock import SYSTEM_CLOCK, Clock
from databus.relay.ring.room import WaitEndedError
from databus.relay.sources.epochs import (
    Epoch,
    EpochWaitError,
    Executed,
    Lineage,
    PeersElsewhereError,
    ServerRefusedError,
    Serving,
)
from databus.relay.sources.source import Captured, Newest, Source, TablesFoundError
from databus.relay.sources.upstream.identity import merged_epochs
from databus.schemas.errors import SettingsError, SourceUnavailableError
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import binlog_position
from databus.schemas.windows import WindowBatch, WindowPiece

log = logging.getLogger(__name__)


def _take_none_in(found: TablesFoundError) -> None:
    """Fail: outside of a relay, what is captured does not change."""
    if found.tables:
        raise SettingsError(f"{found}, which nothing takes in")


def _none_known(_scn: int) -> Sequence[str] | None:
    """Return None: no ring tells which GTIDs it has."""
    return None


class Servers:
    """Used by the capture thread; `settings`, `current` and `switch` by any.

    Without a table nothing is kept, and capture stays at one server. `gtids_after` returns the
    GTIDs of the ring's windows after an SCN, None if they are not known.
    """

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        table: EpochTable | None = None,
        gtids_after: Callable[[int], Sequence[str] | None] = _none_known,
        clock: Clock = SYSTEM_CLOCK,
        overlap: OverlapSearch | None = None,
        role: Role | None = None,
    ) -> None:
        self._settings, self.role = settings, role
        # Has the tables captured that the source's patterns have found, from its next `open` on.
        self.take_in: Callable[[TablesFoundError], None] = _take_none_in
        self._overlap = overlap
        self._is_followed = table is not None
        self.table = EpochTable() if table is None else table
        self._gtids_after = gtids_after
        self._clock = clock
        newest = self.table.newest
        uri = None if newest is None else self.own_uri(without_password(newest.uri))
        self._uri = settings.uri if uri is None else uri
        self._is_known = newest is not None
        self._gone_since_s: float | None = None
        self._refused_since_s: dict[str, float] = {}
        self._tried: set[str] = set()  # and failed, since a server was last read
        self._is_whole = False  # all that was read was taken
        self.relays: tuple[str, ...] = ()  # through which the database is read
        self.peers: Peers | None = None
        if table is not None and settings.epoch_peers:
            relay_id = token_hex(8)
            ask = asker(settings, relay_id)
            self.peers = Peers(settings, table, ask, lambda: self._uri, relay_id)

    @property
    def name(self) -> str:
        """Name of the physical source."""
        return self._settings.name

    @property
    def settings(self) -> PhysicalSourceSettings:
        """The settings for the server to connect to, or for the relay that captures."""
        upstream = None if self.role is None else self.role.upstream
        return self._settings.at(self._uri) if upstream is None else upstream

    @property
    def database(self) -> PhysicalSourceSettings:
        """The settings for the server whose log is captured, with the newest epoch."""
        return self._settings.at(self._uri).model_copy(update={"epoch": self.epoch})

    @property
    def all_uris(self) -> tuple[str, ...]:
        """The list of servers."""
        return self._settings.uris

    @property
    def current(self) -> PhysicalSourceSettings:
        """The settings for what is connected to, with the newest epoch."""
        return self.settings.model_copy(update={"epoch": self.epoch})

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        newest = self.table.newest
        return max(self._settings.epoch, 0 if newest is None else newest.number)

    def own_uri(self, shown: str) -> str | None:
        """Return the one in the list that another relay shows so, without a password."""
        return next((uri for uri in self.all_uris if without_password(uri) == shown), None)

    def newer_than(self, scn: int) -> Epoch | None:
        """Return the newest epoch if an SCN is of an earlier one, so of another server's log."""
        newest = self.table.newest
        is_older = newest is not None and binlog_position(scn).epoch < newest.number
        return newest if is_older else None

    @property
    def listed(self) -> PhysicalSourceSettings:
        """The settings of the source, with all its servers."""
        return self._settings

    def tables_of(self, sources: Iterable[str]) -> list[str]:
        """Return the tables of some sources."""
        return [self._settings.names.table_of(name) for name in sources]

    def relist(self, settings: PhysicalSourceSettings) -> None:
        """Capture with other settings from the next connection on; its servers are the same."""
        self._settings = settings

    def switch(self, uri: str) -> None:
        """Connect to another server of the list from now on."""
        self._uri = uri
        self._forget()

    def choose(self, is_to_rest: Callable[[], bool]) -> PhysicalSourceSettings:
        """Return the settings to connect with now; raise as `Role.settle`."""
        if self.role is not None and self.role.settle(is_to_rest):
            newest = self.table.newest  # where the relay before has read last
            uri = None if newest is None else self.own_uri(without_password(newest.uri))
            if uri is not None:
                self.switch(uri)
        return self.settings

    def marks(self, stored: list[LogMark]) -> list[LogMark]:
        """Return the marks by which the source that is read proves to be the one before."""
        return stored if self.role is None else self.role.marks(stored)

    def begin(self, source: Source, ring: CaptureRing, saved_scn: int | None) -> int | None:
        """Tell a source what it must know of the servers; return the SCN to begin after."""
        self._is_whole, ring_scn = False, ring.max_scn
        self._is_known = self._is_known or ring_scn >= 0
        lineage = self.lineage(ring_scn)
        if self._is_followed:
            agree = None if self.peers is None else self.peers.agree
            find = None
            if self._overlap is not None and lineage.has_others:
                find = partial(self._overlap.find, self.settings)
            source.follow(lineage._replace(agree=agree, find_overlap=find))
        known = [scn for scn in (ring_scn, -1 if saved_scn is None else saved_scn) if scn >= 0]
        executed = self.table.executed
        # Otherwise those without watched rows in between would never count as executed.
        if known and executed is not None and lineage.executed is not None:
            known.append(executed.scn)
        if self.role is not None:
            known = self.role.begin_scn(known)
        begin = min(known, default=None)
        if self.role is not None and self.role.is_active and begin is not None and ring_scn < 0:
            # The relay before has saved it: nothing is missing before the first window to come.
            ring.restart_after(begin)
        return begin

    def lineage(self, ring_scn: int) -> Lineage:
        """Return what a source must know when the ring ends at an SCN."""
        newest, executed = self.table.newest, self.table.executed
        has_others = len(self._settings.uris) > 1
        unknown = Lineage(newest, has_others=has_others, epochs=self.table.epochs)
        # After a power failure, or a restart from an SCN, the ring may have less.
        if executed is None or executed.scn > ring_scn:
            return unknown
        more = () if executed.scn == ring_scn else self._gtids_after(executed.scn)
        return unknown if more is None else unknown._replace(executed=executed, more=more)

    def read(self, source: Source) -> Sequence[Captured]:
        """Read from a source; what it reads counts as delivered only once all of it was taken."""
        # It may have read transactions that an error keeps from being handed over.
        self._is_whole = False
        with self._taking_in():
            captured = source.read()
        if self.role is not None:
            self.role.check()  # it may have been long since
        self.relays = source.relays
        return captured

    def open(self, source: Source, after_scn: int | None, newest: Newest | None) -> None:
        """Open a source; raise WaitEndedError if it is to be opened again, with new tables."""
        with self._taking_in():
            source.open(after_scn, newest)

    @contextmanager
    def _taking_in(self) -> Iterator[None]:
        try:
            yield
        except TablesFoundError as found:
            self.take_in(found)
            raise WaitEndedError from found

    @contextmanager
    def taking(self, source: Source, captured: Sequence[Captured], ring_scn: int) -> Iterator[None]:
        """Store a new epoch before its first item of a `read` is taken. Raises RingError."""
        serving = source.serving
        if serving is not None and captured:
            self._enter(serving, captured[0], ring_scn)
        if source.epochs is not None and captured:
            # A batch may go from one epoch to the next.
            most = binlog_position(max(_last_scn_of(captured[-1]), 0)).epoch
            self.table.adopt(merged_epochs(self.table.epochs, source.epochs, most))
        yield
        self._is_whole = True
        if self.role is not None:
            self.role.follow(ring_scn)

    def note(self, source: Source, read_scn: int | None, ring_scn: int) -> None:
        """Note what was delivered, if all that was read was taken, and the ring has no more."""
        if not self._is_whole or read_scn is None or not 0 <= ring_scn <= read_scn:
            return
        executed = source.executed
        if executed is not None:
            self.table.note(Executed(ring_scn, executed))

    def save(self) -> None:
        """Save what was noted; raises RingError."""
        self.table.save()

    def proved(self) -> None:
        """Note that the server is read."""
        self._is_known = True
        self._forget()
        if self.role is not None:
            self.role.proved()

    def failed(self, error: Exception) -> Exception:
        """Choose the next server if this one is gone for long; return the error as capture sees it.

        A ServerRefusedError that is returned means that no server is left.
        """
        if isinstance(error, EpochWaitError):
            return error  # no other server would help
        if self.peers is not None:
            self.peers.withdraw()
        if not isinstance(error, SourceUnavailableError | ServerRefusedError):
            return error
        if isinstance(error, PeersElsewhereError):
            uri = self.own_uri(error.uri)
            if uri is not None and uri != self._uri:
                self.switch(uri)
                return error
        now_s, uri = self._clock.monotonic_s(), self.settings.uri
        if self._gone_since_s is None:
            self._gone_since_s = now_s
        since_s = self._gone_since_s
        if isinstance(error, ServerRefusedError):
            since_s = self._refused_since_s.setdefault(uri, now_s)
        # At a first start there is nothing to wait for.
        if now_s - since_s >= self._settings.switch_after_s or not self._is_known:
            # A relay that is gone for a while may have what follows.
            if isinstance(error, ServerRefusedError) or not self._settings.is_relay:
                self._tried.add(uri)
            self._next(error)
            uris = {uri} if self._stands_by else {*self._settings.uris}
            if isinstance(error, ServerRefusedError) and self._tried >= uris:
                return error
        if isinstance(error, ServerRefusedError):
            return SourceUnavailableError(str(error))
        return error

    @property
    def _stands_by(self) -> bool:
        return self.role is not None and self.role.upstream is not None

    def _next(self, error: Exception) -> None:
        uris = self._settings.uris
        if len(uris) == 1 or self._stands_by:
            return
        self._uri = uris[(uris.index(self._uri) + 1) % len(uris)]
        name = self._settings.name
        text = "%s: trying the next server, because of this one: %s"
        log.warning(text, name, error, extra=about(physical_source=name))

    def _forget(self) -> None:
        self._gone_since_s = None
        self._refused_since_s.clear()
        self._tried.clear()

    def _enter(self, serving: Serving, first: Captured, ring_scn: int) -> None:
        newest = self.table.newest
        if newest is not None and (newest.number, newest.server) == serving[:2]:
            return
        scn = _scn_of(first)
        if scn < 0:
            return
        position = binlog_position(scn)
        file = f"{serving.file.rpartition('.')[0]}.{position.file_number:06}"
        self.table.begin(
            Epoch(
                serving.number,
                serving.server,
                self._uri,
                scn,
                ring_scn,
                file,
                position.offset,
                serving.executed,
                self._clock.wall_ns() // 1_000_000_000,
            )
        )
        text, server = "%s: epoch %d begins at server %s (%s) with scn %d", serving.server
        where, known = without_password(self._uri), about(physical_source=self.name)
        log.info(text, self.name, serving.number, server, where, scn, extra=known)
        if self.peers is not None:
            self.peers.begun()


def _last_scn_of(item: Captured) -> int:
    return item.last_scn if isinstance(item, WindowBatch) else _scn_of(item)


def _scn_of(item: Captured) -> int:
    if isinstance(item, WindowBatch):
        return item.first_scn
    return item.begin_scn if isinstance(item, WindowPiece) else item.scn
