"""Writes one registration's checkpoints, and retries when the disk is full.

A transient error is retried for ever, with back-off. Windows are delivered meanwhile: at
least once holds without a checkpoint too, only a killed process then repeats more windows.
`problem` has the error until a write succeeds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from random import Random

from databus.client.checkpoints.store import CheckpointStore, save_in
from databus.client.machines.backoff import BackOff
from databus.client.subscription import Subscription
from databus.conf.settings import BackOffSettings
from databus.daemon.faults import is_transient
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

log = logging.getLogger(__name__)


class CheckpointKeeper:
    """Used by the consuming thread; any thread may read `problem` and `kept`."""

    def __init__(
        self,
        store: CheckpointStore,
        subscription: Subscription,
        back_off: BackOffSettings,
        rng: Random,
        clock: Callable[[], float],
        kept: Checkpoint | None = None,
        on_written: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Write to `store`; `kept` is the checkpoint that is stored already.

        `on_written` is called with the seconds that each write took.
        """
        self.problem = ""
        self.kept = kept  # the last checkpoint written
        self._store = store
        self._subscription = subscription
        self._back_off = BackOff(back_off, rng)
        self._clock, self._on_written = clock, on_written
        self._waiting: Checkpoint | None = None  # not written yet
        self._next_s = -math.inf

    @property
    def due_in_s(self) -> float | None:
        """Seconds until the next retry, by a call of `save`; None = nothing to retry."""
        if not self.problem:
            return None
        return max(0.0, self._next_s - self._clock())

    def save(self, checkpoint: Checkpoint | None, *, is_last: bool = False) -> None:
        """Write a checkpoint, or the pending one; raise CheckpointError unless transient.

        `is_last`: try now, whether or not a retry is due.
        """
        # A newer checkpoint replaces one that could not be written.
        self._waiting = checkpoint or self._waiting
        if self._waiting is None or (self._clock() < self._next_s and not is_last):
            return
        try:
            self._write(self._waiting)
        except CheckpointError as error:
            if not is_transient(error):
                raise
            self._put_off(error)
        else:
            self.kept = self._waiting
            self.problem, self._waiting, self._next_s = "", None, -math.inf
            self._back_off.reset()

    def _write(self, checkpoint: Checkpoint) -> None:
        began_s = self._clock()
        save_in(self._store, self._subscription.name, self._subscription.sources, checkpoint)
        self._on_written(self._clock() - began_s)

    def _put_off(self, error: CheckpointError) -> None:
        if not self.problem:
            log.warning("%s: %s; retrying", self._subscription.name, error)
        self.problem = f"{error}; retrying; if this process is killed before it succeeds, the "
        self.problem += "windows since the last checkpoint are delivered again"
        self._next_s = self._clock() + self._back_off.next_s()


def soonest(*waits_s: float | None) -> float | None:
    """Return the shortest wait that is not None; None without one."""
    return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)
