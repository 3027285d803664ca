"""One stream of a process that shares rows with its group: what it delivers, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Protocol

from databus.client.dispatcher.callbacks import Dispatch, Outcome
from databus.client.dispatcher.calls import Failure
from databus.client.dispatcher.session import selected
from databus.client.group.share import Share
from databus.client.membership.owned_partitions import OwnedPartitions
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow
from databus.groups.generations import NOTHING
from databus.leases.errors import LeaseLostError
from databus.schemas.scn import MAX_SCN


class Telling(Protocol):
    """What tells the consumers, or the listener of who iterates."""

    @property
    def dispatch(self) -> Dispatch:
        """What makes the calls."""
        ...

    def log(self, outcome: Outcome) -> None:
        """Log a call that failed."""
        ...


class GroupSession:
    """A `Session`; the consuming thread calls it."""

    def __init__(
        self,
        share: Share,
        owned: OwnedPartitions,
        begins: Mapping[int, int],
        told: set[int],
        check_held: Callable[[], object],
        on_bootstrap: Callable[[], None],
        on_placed: Callable[[], None],
    ) -> None:
        """Read a share; `begins` has the SCN that each partition has consumed.

        `told` are the partitions that the consumers know of; it is kept up to date. `check_held`
        raises LeaseLostError once nothing may be delivered. `on_bootstrap` is called before the
        first page of a bootstrap, and may raise it, too; `on_placed` once it is known where these
        partitions are among the others: before each window, and at the end of a bootstrap.
        """
        self.telling: Telling | None = None
        """What tells the consumers; None if there is nobody to be told."""
        self.is_first = False
        """Whether consumption starts with it."""
        self.repeats_after: int | None = None
        """The SCN after which windows come again, because their checkpoints were left out."""
        self._share, self._owned, self._begins, self._told = share, owned, begins, told
        self._check_held, self._on_bootstrap = check_held, on_bootstrap
        self._on_placed = on_placed
        self._selects_all = bool(share.filters)
        self._newest = share.newest_consumed
        self._is_bootstrapping = False

    def begin(self) -> Failure | None:
        """Tell the consumers which partitions they have; after a failure, what is left."""
        if self.telling is None:
            return None
        dispatch = self.telling.dispatch
        failure = dispatch.start().failure if self.is_first else None
        if failure is not None:
            return failure
        self.is_first = False
        if self.repeats_after is not None:
            failure = dispatch.roll_back(self.repeats_after).failure
            if failure is not None:
                return failure
            self.repeats_after = None
        for partition in sorted(self._begins.keys() - self._told):
            failure = dispatch.add_partition(partition, self._begins[partition]).failure
            if failure is not None:
                return failure
            self._told.add(partition)
        return None

    def admit_window(self, read: ReadWindow) -> ReadWindow | None:
        """Return the window with the rows to deliver; None once a lease was lost."""
        if not self._is_held():
            return None
        self._on_placed()
        self._is_bootstrapping = False
        if not read.window.events or not (self._selects_all or self._has_consumed(read)):
            return read
        return selected(read, self._share)

    def admit_page(self, page: BootstrapPage) -> BootstrapPage | None:
        """Return the page with the rows to deliver; None once a lease was lost."""
        if not self._is_held(begins_bootstrap=not self._is_bootstrapping):
            return None
        self._is_bootstrapping = True
        share = self._share
        if share.by and page.known_scn < MAX_SCN:
            share = replace(share, known_scn=page.known_scn)
            bindings = {one: bound._replace(share=share) for one, bound in page.bindings.items()}
            page = page._replace(bindings=bindings)
        return selected(page, share) if self._selects_all else page

    def end_bootstrap(self) -> None:
        """Let the others be read, too: no window may come for long."""
        self._on_placed()

    def end(self) -> None:
        """Tell the consumers which partitions they lose, before the checkpoint is written."""
        if self.telling is not None and self._owned.has_dropped:
            finishing = self._owned.settled_dropped().finishing
            tell_dropped(self.telling, finishing, self._told)

    def _has_consumed(self, read: ReadWindow) -> bool:
        # The SCN of a batch is that of its last window, and `since` is at or before its first one.
        oldest = read.window.scn if read.transactions == 1 else read.since.scn + 1
        return oldest <= self._newest

    def _is_held(self, *, begins_bootstrap: bool = False) -> bool:
        try:
            self._check_held()
            if begins_bootstrap:
                self._on_bootstrap()
                self._share.forget_consumed()
                self._newest = NOTHING
        except LeaseLostError:
            return False
        return True


def tell_dropped(telling: Telling, partitions: Collection[int], told: set[int]) -> None:
    """Make `on_drop_partition` of each that consumers were `told` of.

    What fails is logged, for the partition goes anyway.
    """
    for partition in sorted(told.intersection(partitions)):
        telling.log(telling.dispatch.drop_partition(partition))
        told.discard(partition)
