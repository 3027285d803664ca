"""When a query that failed is started again: the rules, by the class of the error. Pure.

Of an error in one of Spark's processes only the traceback's text arrives, so the class is
read from the line that names it, never guessed from the message. A schema change
that the next start takes in is followed by that start at once. After servers
that are away, or that have forgotten what a batch was to read (the next start
reads a snapshot instead), and whatever went wrong within Spark itself (a worker that was
lost, a disk for a moment full), the query is started a while later. Without a
batch in between that ends after so many times. What this package says of
anything else is final, and so is what a target's database says of a value.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from databus.client.machines.backoff import BackOff
from databus.schemas import errors
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    ConsumerError,
    DatabusError,
    NoAnswerError,
    ReadAgainError,
    RestartNeededError,
)

# The last line of a Python traceback, of an error that no start cures unless its class says so.
_RAISED = re.compile(r"(databus\.[\w.]+\.\w+Error|ImportError|sqlalchemy\.exc\.DataError): (.+)")
_PASSING = (BootstrapTooOldError, BootstrapTooYoungError, NoAnswerError, ReadAgainError)


class Failure(NamedTuple):
    """Why a query ended: the class of the error where it is the project's own, and its text.

    `is_final` says that the error is of a kind that another start does not cure.
    """

    kind: type[DatabusError] | None
    problem: str
    is_final: bool

    def is_a(self, kind: type[DatabusError]) -> bool:
        """Say whether the error is of a class, or of one derived from it."""
        return self.kind is not None and issubclass(self.kind, kind)


def read_failure(text: str) -> Failure:
    """Return what ended a query, given all that Spark says of it.

    An error that was raised from another stands behind it: the last one counts.
    """
    raised = _RAISED.findall(text)
    if not raised:
        line = next((line.strip() for line in text.splitlines() if line.strip()), "no text")
        return Failure(None, line, is_final=False)
    name, problem = raised[-1]
    kind = getattr(errors, name.rpartition(".")[2], None) if name.startswith("databus.") else None
    is_passing = kind is not None and issubclass(kind, (RestartNeededError, *_PASSING))
    return Failure(kind, problem.strip(), is_final=not is_passing)


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

        `text` is all that Spark says of the failure. `scn` is where the job was: it is
        said in the error.
        """
        failure = read_failure(text)
        self._failures += 1
        if failure.is_final:
            raise ConsumerError(scn, f"{source}: {failure.problem}")
        if self._failures > self._most:
            raise ConsumerError(
                scn, f"{source}, {self._failures} times in a row: {failure.problem}"
            )
        return 0.0 if failure.is_a(RestartNeededError) else self._back_off.next_s()
