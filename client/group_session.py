"""One stream of a process that shares rows with its group: what it delivers, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from databus.client.dispatcher.calls import Failure
from databus.client.dispatcher.dispatcher import Dispatcher
from databus.client.dispatcher.session import selected
from databus.client.group.generations import NOTHING
from databus.client.group.share import Share
from databus.client.membership.owned_partitions import OwnedPartitions
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow
from databus.leases.errors import LeaseLostError


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
        on_window: Callable[[], None],
    ) -> None:
        """Read a share; `begins` has the SCN that each partition has consumed.

        `told` are the partitions that the consumers know of; it is kept up to date. `check_held`
        raises LeaseLostError once nothing may be delivered. `on_bootstrap` is called before the
        first page of a bootstrap, and may raise it, too; `on_window` before each window.
        """
        self.dispatcher: Dispatcher | None = None
        """What tells the consumers; None for an iterator."""
        self.is_first = False
        """Whether consumption starts with it."""
        self.repeats_after: int | None = None
        """The SCN after which windows come again, because their checkpoints were left out."""
        self._share, self._owned, self._begins, self._told = share, owned, begins, told
        self._check_held, self._on_bootstrap = check_held, on_bootstrap
        self._on_window = on_window
        self._selects_all = bool(share.filters)
        self._newest = share.newest_consumed
        self._is_bootstrapping = False

    def begin(self) -> Failure | None:
        """Tell the consumers which partitions they have; after a failure, what is left."""
        if self.dispatcher is None:
            return None
        dispatch = self.dispatcher.dispatch
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
        self._on_window()
        self._is_bootstrapping = False
        if not read.window.events or not (self._selects_all or self._has_consumed(read)):
            return read
        return selected(read, self._share)

    def admit_page(self, page: BootstrapPage) -> BootstrapPage | None:
        """Return the page with the rows to deliver; None once a lease was lost."""
        if not self._is_held(begins_bootstrap=not self._is_bootstrapping):
            return None
        self._is_bootstrapping = True
        return selected(page, self._share) if self._selects_all else page

    def end(self) -> None:
        """Tell the consumers which partitions they lose, before the checkpoint is written."""
        if self.dispatcher is not None and self._owned.has_dropped:
            finishing = self._owned.settled_dropped().finishing
            tell_dropped(self.dispatcher, finishing, self._told)

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


def tell_dropped(dispatcher: Dispatcher, partitions: Collection[int], told: set[int]) -> None:
    """Make `on_drop_partition` of each that consumers were `told` of.

    What fails is logged, for the partition goes anyway.
    """
    for partition in sorted(told.intersection(partitions)):
        dispatcher.log(dispatcher.dispatch.drop_partition(partition))
        told.discard(partition)
