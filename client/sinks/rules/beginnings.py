"""Where a sink begins: at the stored position, or at the one that its target keeps. Pure.

The target is believed: its position was written with the rows. But the stored one may be newer
where nothing came that the target is to have; and it may be older on purpose, where the sink goes
back for the first changes of another source. So it is stored with the position that the target had
at that time: if the target still has that one, the stored one counts.

What a sink that goes back has of the other sources is in its checkpoint, up to which SCN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from databus.client.sinks.contract import OWN_KEY, Change, Position
from databus.schemas.checkpoint import Checkpoint

# Extra key of a checkpoint.
_KNOWN = "sink_known"  # {"scn": SCN, "sources": [names]}
_DIGITS = 16


def beginning(stored: Position | None, own: Position | None) -> Position | None:
    """Return the position to begin at; `own` is the target's, None if it keeps none."""
    if own is None or stored is None:
        return own or stored
    if stored.checkpoint.extra.get(OWN_KEY) != _digest(own):
        return own  # the target has come further, or was put back
    # The target may be on a way back itself: on this one, or on an earlier one.
    is_other_way = stored.checkpoint.extra.get(_KNOWN) != own.checkpoint.extra.get(_KNOWN)
    goes_back = known_scn(stored.checkpoint) >= own.scn and is_other_way
    return stored if goes_back or stored.scn >= own.scn else own


def with_own(checkpoint: Checkpoint, own: Position | None) -> Checkpoint:
    """Return a checkpoint to store, with what identifies the target's position at this time."""
    return checkpoint if own is None else checkpoint.with_extra(**{OWN_KEY: _digest(own)})


def with_known(checkpoint: Checkpoint, scn: int, sources: Sequence[str]) -> Checkpoint:
    """Return a checkpoint that says that changes of these sources up to an SCN are known."""
    known: dict[str, Any] = {"scn": scn, "sources": list(sources)}
    return checkpoint.with_extra(**{_KNOWN: known})


def known_scn(checkpoint: Checkpoint) -> int:
    """Return the SCN up to which changes of some sources are known; -1 without any."""
    told = checkpoint.extra.get(_KNOWN)
    return int(told["scn"]) if isinstance(told, dict) else -1


def is_new(position: Position | None) -> Callable[[Change], bool]:
    """Return what says whether a change, read from a position on, is not known."""
    told = None if position is None else position.checkpoint.extra.get(_KNOWN)
    if not isinstance(told, dict):
        return lambda _change: True
    scn, sources = int(told["scn"]), frozenset(told["sources"])
    return lambda change: change.scn > scn or change.source not in sources


def _digest(position: Position) -> str:
    return sha256(position.to_json().encode()).hexdigest()[:_DIGITS]
