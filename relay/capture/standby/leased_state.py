"""MaxSCN and the table of epochs of a relay that captures under a lease.

They are saved in the coordinator, under the term of the lease, so that the next owner goes on
there, and one that was frozen writes nothing. Each relay has its own files of them besides, as
without a lease: for a start before anything is at the coordinator, and if the lease is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from databus.relay.capture.epoch_table import EpochTable
from databus.relay.capture.max_scn import MaxScnStore, RecordMaxScn
from databus.relay.sources.epochs import Epoch, Executed
from databus.schemas.log_mark import LogMark


class Owner(Protocol):
    """Writes in the coordinator for the owner of the lease."""

    def under_term(self, write: Callable[[int], None]) -> bool:
        """Call `write` with the term; return False if this relay does not capture.

        Raises RoleChangedError if it has lost the lease, and what `write` raises.
        """
        ...


class LeasedMaxScn:
    """MaxSCN in the coordinator, as it was when this relay began to capture, or saved last.

    `own` is that of this relay alone, which also has what it took over while it stood by.
    """

    def __init__(self, record: RecordMaxScn, own: MaxScnStore, owner: Owner) -> None:
        self._record, self._own, self._owner = record, own, owner
        self._scn: int | None = None
        self._mark: LogMark | None = None

    def load(self) -> int | None:
        """Return the SCN saved last, None without one; raise RingError."""
        return self._own.load() if self._scn is None else self._scn

    def mark(self) -> LogMark | None:
        """Return the mark of the database's log that is known, None without one; raise RingError.

        A relay that stands by saves none of its own.
        """
        return self._own.mark() if self._mark is None else self._mark

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Save durably; raise RingError, RoleChangedError."""
        if self._owner.under_term(
            lambda term: self._record.save_under(scn, timestamp_ns, term, mark)
        ):
            self._scn, self._mark = scn, mark
        else:
            mark = self._mark
        self._own.save(scn, timestamp_ns, mark)

    def begin_term(self, term: int) -> None:
        """Refuse smaller terms, and take what was saved; raise StaleTermError, RingError."""
        self._scn = self._record.begin_term(term)
        self._mark = self._record.mark()

    def stand_by(self) -> None:
        """Take the mark that the relay that captures has saved; raise RingError."""
        self._scn, self._mark = None, self._record.mark()


class LeasedEpochs(EpochTable):
    """A table of epochs that the owner of the lease keeps in the coordinator, too."""

    def __init__(
        self,
        path: Path,
        owner: Owner,
        share: Callable[[tuple[Epoch, ...], Executed | None, int], None],
    ) -> None:
        """`share` writes epochs, and what was delivered, under a term."""
        super().__init__(path)
        self._owner, self._share = owner, share
        self._shared: tuple[tuple[Epoch, ...], Executed | None] | None = None

    def take_over(self, epochs: tuple[Epoch, ...], executed: Executed | None) -> None:
        """Go on with what the owner before has left. Raises RingError."""
        self._executed = executed
        self._shared = None
        if epochs != self._epochs:
            super()._change(epochs)
        super().save()

    def save(self) -> None:
        """Save what was noted, durably. Raises RingError, LeaseError, RoleChangedError."""
        self._share_now(self._epochs)
        super().save()

    def _change(self, epochs: tuple[Epoch, ...]) -> None:
        # First: a window of an epoch is captured only after the next owner knows of the epoch.
        self._share_now(epochs)
        super()._change(epochs)

    def _share_now(self, epochs: tuple[Epoch, ...]) -> None:
        wanted = epochs, self._executed
        if wanted != self._shared and self._owner.under_term(lambda t: self._share(*wanted, t)):
            self._shared = wanted
