"""Which of a process's partitions are read together, in one stream. Pure.

All of them, as a rule: the stream begins at the oldest of their checkpoints. Partitions that are in
a bootstrap are read by themselves until its end, and so are partitions without a checkpoint until
their first window: until then nobody knows where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from databus.schemas.checkpoint import Checkpoint


class Stream(NamedTuple):
    """The partitions of one stream; `is_partial` if others wait for it."""

    partitions: frozenset[int]
    is_partial: bool = False


def next_stream(newest: Mapping[int, Checkpoint | None]) -> Stream:
    """Return the stream to read next, by the checkpoints of all partitions; at least one."""
    in_bootstrap = [one for one in sorted(newest) if _is_bootstrap(newest[one])]
    fresh = [one for one in newest if newest[one] is None]
    if in_bootstrap:
        first = newest[in_bootstrap[0]]
        chosen = frozenset(one for one in in_bootstrap if newest[one] == first)
    else:
        chosen = frozenset(fresh or newest)
    return Stream(chosen, len(chosen) < len(newest))


def _is_bootstrap(checkpoint: Checkpoint | None) -> bool:
    return checkpoint is not None and checkpoint.is_bootstrap
