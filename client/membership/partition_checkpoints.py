"""The checkpoints of a group's partitions, each under the term of its owner.

    NAME#GENERATION.PARTITION    its name: GENERATION grows with each resize

One stream reads several partitions. Its checkpoint is written for each of them that is not further.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from databus.client.checkpoints.fenced import FencedCheckpointStore
from databus.groups.names import checkpoint_name, consumed_scn
from databus.leases.errors import LeaseLostError, StaleTermError
from databus.schemas.checkpoint import Checkpoint

log = logging.getLogger(__name__)


class PartitionCheckpoints:
    """What a process's partitions have consumed; the `CheckpointStore` of the stream of them all.

    One thread uses it. A partition that was lost is written no more: another process has it.
    """

    def __init__(
        self,
        store: FencedCheckpointStore,
        group: str,
        sources: Sequence[str],
        term_of: Callable[[int], int],
    ) -> None:
        """`term_of` returns the term of a partition; it raises LeaseLostError."""
        self.newest: dict[int, Checkpoint | None] = {}
        """What each partition that has begun has consumed, whether or not it is stored yet."""
        self._stored: dict[int, Checkpoint | None] = {}
        self._store, self._group, self._sources = store, group, tuple(sources)
        self._term_of = term_of
        self._generation = 0
        self._read: frozenset[int] = frozenset()

    def begin(self, partition: int, generation: int, start: Checkpoint | None) -> None:
        """Find out where a partition goes on, and shut out its owners before.

        Without a checkpoint of its own it begins at `start`. Raises LeaseLostError,
        StaleTermError, CheckpointError.
        """
        self._generation = generation
        name = checkpoint_name(self._group, generation, partition)
        found = self._store.begin_term(name, self._sources, self._term_of(partition))
        self._stored[partition] = found
        self.newest[partition] = found or start

    def drop(self, partition: int) -> None:
        """Forget a partition."""
        self.newest.pop(partition, None)
        self._stored.pop(partition, None)

    def read(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Note which partitions the stream has from now on; return what each has consumed."""
        self._read = frozenset(partitions)
        return {partition: consumed_scn(self.newest[partition]) for partition in partitions}

    # -- the store of a stream --------------------------------------------------------------------

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:  # noqa: ARG002
        """Return None: a stream is told where it begins."""
        return None

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:  # noqa: ARG002
        """Save durably for each partition of the stream that is not further; CheckpointError."""
        read = sorted(self._read & self.newest.keys())
        for partition in read:
            if _is_after(checkpoint, self.newest[partition]):
                self.newest[partition] = checkpoint
        for partition in read:
            if _is_after(checkpoint, self._stored[partition]):
                self._save(partition, checkpoint)

    def _save(self, partition: int, checkpoint: Checkpoint) -> None:
        name = checkpoint_name(self._group, self._generation, partition)
        try:
            term = self._term_of(partition)
            self._store.save_under(name, self._sources, checkpoint, term)
        except LeaseLostError:
            log.debug("%s: partition %d is not owned any more", self._group, partition)
        except StaleTermError as error:
            log.warning("%s: partition %d: %s", self._group, partition, error)
        else:
            self._stored[partition] = checkpoint


def _is_after(checkpoint: Checkpoint, known: Checkpoint | None) -> bool:
    if checkpoint.is_bootstrap or known is None or known.is_bootstrap:
        return checkpoint != known
    return consumed_scn(checkpoint) > consumed_scn(known)
