"""Decide from the class of an error whether to restart a failed query. Pure.

Only the traceback's text of an error in one of Spark's processes reaches the driver.
The class is read from the line that names it, never guessed from the message. After
a schema change that a restart takes in, the query is restarted at once. It is
restarted after a pause when servers are unavailable, when they no longer have the
rows of a batch (the next start reads a snapshot instead), and after any failure of
Spark itself (a lost worker, a full disk). The number of restarts without a batch in
between is limited. Any other error of this package is final, and so is a value that
the target's database refuses.
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

# The last line of a Python traceback; such an error is final unless its class says otherwise.
_RAISED = re.compile(r"(databus\.[\w.]+\.\w+Error|ImportError|sqlalchemy\.exc\.DataError): (.+)")
_PASSING = (BootstrapTooOldError, BootstrapTooYoungError, NoAnswerError, ReadAgainError)


class Failure(NamedTuple):
    """The reason why a query ended: the error's class, if it is this project's, and its text.

    `is_final`: a restart cannot help.
    """

    kind: type[DatabusError] | None
    problem: str
    is_final: bool

    def is_a(self, kind: type[DatabusError]) -> bool:
        """Return whether the error's class is `kind` or derived from it."""
        return self.kind is not None and issubclass(self.kind, kind)


def read_failure(text: str) -> Failure:
    """Return the failure that Spark's error text describes.

    A traceback prints an error after the one that caused it, so the last one counts.
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
    """Counts the failures of one job; allows `most` restarts in a row."""

    def __init__(self, most: int, back_off: BackOff) -> None:
        self._most = most
        self._back_off = back_off
        self._failures = 0

    def progressed(self) -> None:
        """Record that a batch was applied."""
        self._failures = 0
        self._back_off.reset()

    def wait_s(self, text: str, source: str, scn: int) -> float:
        """Return the pause before a restart; raises ConsumerError if there must be none.

        `text` is Spark's error text. `scn` is the job's position, for the error.
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
