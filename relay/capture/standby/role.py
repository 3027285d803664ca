"""Whether this relay captures a physical source, or reads it from the relay that does.

Relays with the same `coordinator`, and `capture_lease_s`, contend for one lease of a source. Its
owner reads the database. The others stand by: their source is the owner, whose URL is in the lease,
so their rings have the same windows, byte for byte, and the database has one dump connection. When
the lease changes hands, capture opens its other source, after the newest window of its own ring.

The new owner reads the log from no later place than that up to which it knows everything: the
windows of its ring, the saved MaxSCN, and the definitions of tables. Windows that it has already
are dropped. What it writes in the coordinator is written under its term (`leased_state`), and the
lease is looked at before each window is appended. So one that was frozen, and wakes, writes no
MaxSCN and no epoch, and becomes a relay that stands by.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from databus.conf.addresses import without_password
from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.faults import is_transient
from databus.daemon.log_setup import about
from databus.leases.errors import LeaseLostError, StaleTermError
from databus.leases.keeper import LeaseKeeper
from databus.leases.records import Records
from databus.leases.store import LeaseStore
from databus.relay.capture.epoch_table import EPOCHS_SUFFIX
from databus.relay.capture.max_scn import MaxScnStore, RecordMaxScn
from databus.relay.capture.standby.definitions import COPIED_SUFFIX, DefinitionsCopy
from databus.relay.capture.standby.handover import Handover, HandoverRecord
from databus.relay.capture.standby.leased_state import LeasedEpochs, LeasedMaxScn
from databus.relay.capture.standby.newest_rows import newest_rows_in
from databus.relay.capture.standby.out_of_reach import OutOfReach
from databus.relay.capture.status import RESTING, TROUBLED, State
from databus.relay.ring.room import WaitEndedError
from databus.relay.sources.epochs import Epoch, EpochWaitError, Executed
from databus.relay.sources.kind import history_path
from databus.relay.sources.upstream.requests import Upstream
from databus.relay.sources.upstream.source import is_mark_of_window
from databus.schemas.errors import DatabusError
from databus.schemas.log_mark import LogMark

log = logging.getLogger(__name__)

_SETTLE_S = 2.0  # for the first look at the lease, at a start
_POLL_S = 0.01
_COPY_EVERY_S = 1.0
_RESTS = 1  # of ttl_s: another relay takes a lease that is free in much less


class RoleChangedError(WaitEndedError):
    """Another source is to be read from now on: this relay got the lease, or lost it."""


class NoOwnerError(EpochWaitError):
    """No relay captures; capture waits until one has the lease."""


class RoleStatus(NamedTuple):
    """The role of a relay at one moment.

    `owner` is the URL of the relay that has the lease, "" if none is known. `term` is None if it is
    not known. `problem` tells why the coordinator could not be asked.
    """

    is_active: bool
    owner: str
    term: int | None
    ttl_s: float
    problem: str


class Role:
    """The role for one physical source.

    `settle`, `check`, `follow` and `under_term` are for the capture thread, the rest for any.
    """

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        records: Records,
        own_max_scn: MaxScnStore,
        data_dir: Path,
    ) -> None:
        """Own `records`."""
        assert settings.capture_lease_s is not None
        name = self._name = settings.name
        self._settings, self._records = settings, records
        self._ring_path = data_dir / f"{name}.ring"
        self._ttl_s = settings.capture_lease_s
        # Every server in `uri` is tried before that.
        self._patience_s = max(settings.switch_after_s, self._ttl_s) * len(settings.uris)
        self._out_of_reach = OutOfReach(self._patience_s, _RESTS * self._ttl_s)
        self._handover = HandoverRecord(records, name)
        self.max_scn = LeasedMaxScn(RecordMaxScn(records, name), own_max_scn, self)
        self.table = LeasedEpochs(data_dir / f"{name}{EPOCHS_SUFFIX}", self, self._share)
        self._definitions = DefinitionsCopy(
            history_path(settings, data_dir), data_dir / f"{name}{COPIED_SUFFIX}"
        )
        self.ids: Mapping[str, int] = {}
        """The ids of the sources, once they are known."""
        self._url = ""
        self._keeper: LeaseKeeper | None = None
        self._term: int | None = None  # with which the source was opened; None = it is a relay
        self._upstream = ""  # the relay that is read
        self._copied_at_s = float("-inf")
        self._taken_term: int | None = None  # of which all that was left is known
        self._told = ""
        self._is_over = self._is_kept = False

    # -- for any thread ---------------------------------------------------------------------------

    def known_ids(self) -> Mapping[str, int]:
        """Return the ids of the sources as the relays before have them; raise LeaseError."""
        found = self._handover.read()
        return {} if found is None else found.ids

    def enter(self, url: str, state: Callable[[], State], on_change: Callable[[], None]) -> None:
        """Contend for the lease from now on, as the relay that others reach at `url`.

        `state` is that of capture: one that rests, or has been in trouble for long, is left to
        other relays.
        """
        self._url = url
        name = lease_name(self._name)
        store = LeaseStore(self._records)

        def may_hold() -> bool:
            return self._is_kept or self._may_capture(state())

        self._keeper = LeaseKeeper(store, name, url, self._ttl_s, may_hold, on_change)
        self._keeper.start()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the lease meanwhile, though capture rests."""
        self._is_kept = True
        try:
            yield
        finally:
            self._is_kept = False

    def leave(self, timeout_s: float, *, gives_back: bool) -> None:
        """Give the lease back, or let it run out: if this relay may still write under it.

        Idempotent.
        """
        if self._is_over:
            return
        self._is_over = True
        if self._keeper is not None:
            self._keeper.stop(timeout_s, gives_back=gives_back)
        self._records.close()

    @property
    def is_active(self) -> bool:
        """Whether this relay captures, and may."""
        keeper = self._keeper
        return self._term is not None and keeper is not None and keeper.is_held

    @property
    def status(self) -> RoleStatus:
        """The role now."""
        keeper = self._keeper
        if keeper is None:
            return RoleStatus(False, "", None, self._ttl_s, "the lease was not looked at yet")
        is_held, owner, term = keeper.holder
        is_active = is_held and self._term == term
        known = term if owner else None
        return RoleStatus(is_active, owner, known, self._ttl_s, keeper.problem)

    @property
    def upstream(self) -> PhysicalSourceSettings | None:
        """The settings to read the relay that captures; None if this one does."""
        if not self._upstream:
            return None
        update = {"uri": f"databus+{self._upstream}", "standby_uris": (), "start": "earliest"}
        return self._settings.model_copy(update=update)

    # -- for the capture thread -------------------------------------------------------------------

    def settle(self, is_to_rest: Callable[[], bool]) -> bool:
        """Decide what is read from now on; return whether this relay has just taken over.

        Raises NoOwnerError, RoleChangedError, RingError, LeaseError.
        """
        self._leave_what_is_read()
        until_s = time.monotonic() + _SETTLE_S
        while not self._is_settled():
            if is_to_rest():
                raise RoleChangedError
            if time.monotonic() > until_s:
                raise NoOwnerError(f"{self._name}: {self._who_captures()}")
            time.sleep(_POLL_S)
        before, self._taken_term = self._taken_term, self._term
        return self._term is not None and self._term != before

    def check(self) -> None:
        """Raise RoleChangedError if something else is to be read."""
        keeper = self._keeper
        assert keeper is not None
        if self._term is not None:
            try:
                is_same = keeper.term() == self._term
            except LeaseLostError as lost:
                log.warning("%s: %s; it stands by", self._name, lost, extra=self._about())
                raise RoleChangedError from lost
        else:
            owner = self._url if keeper.is_held else self._owner
            is_same = owner in ("", self._upstream)
        if not is_same:
            raise RoleChangedError

    def begin_scn(self, known: list[int]) -> list[int]:
        """Return the SCNs, after the least of which reading begins, with those of this role."""
        if self._term is None or self._definitions.scn is None or not known:
            return known
        return [*known, self._definitions.scn]

    def marks(self, stored: list[LogMark]) -> list[LogMark]:
        """Return the marks by which the source that is read now proves to be the same."""
        if self._term is not None:
            return [mark for mark in stored if not is_mark_of_window(mark)]
        newest = newest_rows_in(self._ring_path)
        return stored if newest is None else sorted({*stored, newest})

    def proved(self) -> None:
        """Note that the log was opened: this relay keeps the definitions itself from now on."""
        if self._term is not None and self._definitions.scn is not None:
            self._definitions.forget()

    def follow(self, ring_scn: int) -> None:
        """Copy now and then what a relay must have to take over. Raises SourceError, RingError."""
        now_s, upstream = time.monotonic(), self.upstream
        if upstream is None or now_s - self._copied_at_s < _COPY_EVERY_S:
            return
        self._copied_at_s = now_s
        with closing(Upstream(upstream)) as relay:
            self._definitions.take(relay)
        if self._keeper is None or self._keeper.problem:
            return  # the coordinator is away; windows come all the same
        try:
            found = self._handover.read()
            self.max_scn.stand_by()
        except DatabusError as error:
            if not is_transient(error):
                raise
            return  # the keeper tells of it
        executed = None if found is None else found.executed
        # What was delivered later than all that is here is of no use here.
        if executed is not None and executed.scn <= ring_scn:
            self.table.note(executed)
            self.table.save()

    def under_term(self, write: Callable[[int], None]) -> bool:
        """Call `write` with the term; return False if this relay stands by."""
        keeper = self._keeper
        if self._term is None or keeper is None:
            return False
        try:
            write(keeper.term())
        except LeaseLostError as lost:
            raise RoleChangedError from lost
        except StaleTermError as refused:
            log.warning("%s: %s", self._name, refused, extra=self._about())
            keeper.lose(refused.newest)
            raise RoleChangedError from refused
        return True

    # -- inside -----------------------------------------------------------------------------------

    def _may_capture(self, state: State) -> bool:
        is_in_vain = self.is_active and state in TROUBLED
        if self._out_of_reach.may_capture(time.monotonic(), is_in_vain=is_in_vain):
            return state not in RESTING
        if is_in_vain:
            text = "%s: nothing could be captured for %g s; another relay may take over"
            log.warning(text, self._name, self._patience_s, extra=self._about())
        return False

    def _leave_what_is_read(self) -> None:
        self._term, self._upstream = None, ""

    @property
    def _owner(self) -> str:
        """The URL of the other relay that has the lease; "" if none is known."""
        seen = None if self._keeper is None else self._keeper.seen
        if seen is None or seen.owner == self._url:
            return ""  # its own of before a restart, which runs out
        return seen.owner

    def _is_settled(self) -> bool:
        keeper = self._keeper
        if keeper is None:
            return False
        try:
            term = keeper.term()
        except LeaseLostError:
            owner = self._owner
            if not owner or not keeper.seen or keeper.seen.is_free:
                return False
            self._upstream = owner
            text = f"stands by, and reads from {owner}, which captures under term"
            self._tell(f"{text} {keeper.seen.term}")
            return True
        self._term = term
        if term != self._taken_term:
            try:
                self.under_term(self._take_over)
            except BaseException:
                self._term = None
                raise
        return True

    def _take_over(self, term: int) -> None:
        found = self._handover.read()
        # First: it tells whether this term has been another relay's.
        self._handover.write(replace(found or Handover(), owner=self._url), term)
        self.max_scn.begin_term(term)
        table = self.table
        if found is not None:
            executed = found.executed
            kept = table.executed
            # Of the two that are known, the one that the ring reaches: the older one.
            if executed is None or (kept is not None and kept.scn < executed.scn):
                executed = kept
            table.take_over(tuple(map(self._with_own_uri, found.epochs)), executed)
        self._share(table.epochs, table.executed, term)
        self._tell(f"captures from now on, under term {term}")

    def _tell(self, text: str) -> None:
        """Log the role when it is another one than before, not at each reconnection."""
        if text != self._told:
            # Who captures after that is what somebody who looks at the log wants to know.
            level = logging.WARNING if self._told else logging.INFO
            self._told = text
            log.log(level, "%s: %s", self._name, text, extra=self._about())

    def _with_own_uri(self, epoch: Epoch) -> Epoch:
        """Return an epoch with the URI that this relay has for its server."""
        shown = without_password(epoch.uri)
        own = [uri for uri in self._settings.uris if without_password(uri) == shown]
        return replace(epoch, uri=own[0] if own else epoch.uri)

    def _share(self, epochs: tuple[Epoch, ...], executed: Executed | None, term: int) -> None:
        shown = tuple(replace(epoch, uri=without_password(epoch.uri)) for epoch in epochs)
        self._handover.write(Handover(self._url, self.ids, shown, executed), term)

    def _who_captures(self) -> str:
        keeper = self._keeper
        if keeper is not None and keeper.problem:
            return f"nobody knows which relay captures: {keeper.problem}"
        if keeper is not None and keeper.seen is not None and keeper.seen.owner == self._url:
            return (
                f"the lease {lease_name(self._name)} is held by a relay at the URL of this one, "
                f"{self._url}: by itself before a restart, until that has run out; or by another "
                "relay, and then each needs a `public_url` of its own"
            )
        return (
            f"no relay captures: the lease {lease_name(self._name)} of the one before has not run "
            f"out yet ({self._ttl_s:g} s, see `capture_lease_s`)"
        )

    def _about(self) -> Mapping[str, object]:
        return about(physical_source=self._name)


def lease_name(source: str) -> str:
    """Return the name of the lease of a physical source."""
    return f"capture/{source}"
