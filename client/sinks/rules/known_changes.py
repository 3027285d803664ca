"""Changes that a sink has, although its position is before them. Pure.

A sink that reads another source from its first change on goes back to that place. What it has of
the other sources is in the checkpoint: up to which SCN. So it lasts over restarts. A target that
keeps its own position has the newer one until the next flush: that is in the checkpoint, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from databus.client.sinks.contract import Change, Position
from databus.schemas.checkpoint import Checkpoint

_KEY = "sink_known"  # of a checkpoint: {"scn": SCN, "sources": [names], "own": SCN}


def known_up_to(scn: int, sources: Sequence[str], own: Position | None) -> dict[str, Any]:
    """Return the extra keys of a checkpoint: changes of these sources up to an SCN are known.

    `own` is the position that the target has at that time, if it keeps one.
    """
    own_scn = -1 if own is None else own.scn
    return {_KEY: {"scn": scn, "sources": list(sources), "own": own_scn}}


def goes_back(stored: Position | None, own: Position) -> bool:
    """Whether the stored position is before the target's own one because the sink goes back."""
    told = None if stored is None else stored.checkpoint.extra.get(_KEY)
    if not isinstance(told, dict) or own.checkpoint.extra.get(_KEY) == told:
        return False
    return bool(told["own"] == own.scn)


def known_scn(checkpoint: Checkpoint) -> int:
    """Return the SCN up to which changes of some sources are known; -1 without any."""
    told = checkpoint.extra.get(_KEY)
    return int(told["scn"]) if isinstance(told, dict) else -1


def is_new(checkpoint: Checkpoint | None) -> Callable[[Change], bool]:
    """Return what says whether a change, read from a checkpoint on, is not known."""
    told = None if checkpoint is None else checkpoint.extra.get(_KEY)
    if not isinstance(told, dict):
        return lambda _change: True
    scn, sources = int(told["scn"]), frozenset(told["sources"])
    return lambda change: change.scn > scn or change.source not in sources
