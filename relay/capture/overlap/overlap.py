"""Where another server's log has the last window that was delivered. Pure.

Without GTIDs, nothing in two servers' logs names the same transaction. Its rows are the same: so
the last windows that were delivered are looked for in the other log by their digests.

    delivered    … A B C D E F          the *run* is the last of them, here D E F
    its log      … B C D E F G H        it occurs once, so G was not delivered yet

A run that may occur at two places proves nothing: not if it is too short, if it repeats itself, or
if it was delivered twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from databus.relay.capture.overlap.window_digests import WindowDigest
from databus.relay.sources.epochs import NoOverlapError

COMPARED_WINDOWS = 64
LEAST_WINDOWS = 16


def overlap_end(delivered: Sequence[bytes], log: Sequence[WindowDigest]) -> int:
    """Return the SCN in another log of the last window that was delivered.

    Both are in order; windows without rows are left out. Raises NoOverlapError.
    """
    run = list(delivered[-COMPARED_WINDOWS:])
    if len(run) < LEAST_WINDOWS:
        raise NoOverlapError(
            f"the relay holds {len(run)} windows with rows, and at least {LEAST_WINDOWS} are "
            "compared"
        )
    what = f"the last {len(run)} windows that were delivered"
    if _repeats_itself(run) or len(_places_of(run, delivered)) > 1:
        raise NoOverlapError(f"{what} have the same changes more than once")
    found = _places_of(run, [window.digest for window in log])
    if not found:
        raise NoOverlapError(f"its log does not have {what}, with the same rows and in that order")
    if len(found) > 1:
        raise NoOverlapError(f"its log has {what} more than once")
    return log[found[0] + len(run) - 1].scn


def _places_of(run: Sequence[bytes], digests: Sequence[bytes]) -> list[int]:
    size = len(run)
    ends = len(digests) - size + 1
    return [
        at for at in range(ends) if digests[at] == run[0] and list(digests[at : at + size]) == run
    ]


def _repeats_itself(run: Sequence[bytes]) -> bool:
    """Return whether so much of a run, as would be sufficient alone, is in it at another place."""
    return any(run[:-shift] == run[shift:] for shift in range(1, len(run) - LEAST_WINDOWS + 1))
