"""When a query that failed is started again: the rules, by the error's text. Pure.

Of an error in one of Spark's processes only the text arrives. A schema change
that the next start takes in is followed by that start at once. After servers
that are away, or that have forgotten what a batch was to read (the next start
reads a snapshot instead), and whatever went wrong within Spark itself (a worker that was
lost, a disk for a moment full), the query is started a while later. Without a
batch in between that ends after so many times. What this package says of
anything else is final, and so is what a target's database says of a value.
"""

from __future__ import annotations

import re

from databus.client.machines.backoff import BackOff
from databus.schemas.errors import BootstrapTooOldError, BootstrapTooYoungError, ConsumerError

_OURS = re.compile(r"(?:databus\.[\w.]+\.\w+Error|ImportError|sqlalchemy\.exc\.DataError): (.+)")
_TAKEN_IN_BY_A_RESTART = "restart the query"
_PASSING = (
    "none has answered",
    BootstrapTooYoungError.wire_name,
    BootstrapTooOldError.wire_name,
    "begin the reading again",
)


class Restarts:
    """Counts the failures of one job; `most` in a row are followed by another start."""

    def __init__(self, most: int, back_off: BackOff) -> None:
        self._most = most
        self._back_off = back_off
        self._failures = 0

    def progressed(self) -> None:
        """Note that a batch was applied."""
        self._failures = 0
        self._back_off.reset()

    def wait_s(self, text: str, source: str, scn: int) -> float:
        """Return after which time to start again; raises ConsumerError when not to.

        `scn` is where the job was: it is said in the error.
        """
        ours = _OURS.findall(text)
        problem = problem_of(text)
        self._failures += 1
        is_schema = bool(ours) and _TAKEN_IN_BY_A_RESTART in problem
        if ours and not is_schema and not any(text in problem for text in _PASSING):
            raise ConsumerError(scn, f"{source}: {problem}")
        if self._failures > self._most:
            raise ConsumerError(scn, f"{source}, {self._failures} times in a row: {problem}")
        return 0.0 if is_schema else self._back_off.next_s()


def problem_of(text: str) -> str:
    """Return what of an error's text is ours, or else its first line."""
    found = _OURS.findall(text)
    if found:
        return str(found[-1]).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), "no text")
