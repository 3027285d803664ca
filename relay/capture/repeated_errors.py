"""Distinguishes damage in transit from damage in the database's log. Pure.

Bytes may change in transit, packets may get lost, an answer may be cut. Reading the same
position again over another connection then succeeds. So capture stops only for an error
that it has met twice: the same kind of error at the same position and, if the error
contains the bytes read there, with the same bytes. Only such an error tells how to skip
that position.
"""

from __future__ import annotations

from typing import NamedTuple

from databus.schemas.errors import DatabusError, SourceStoppedError

_SEEN_ONCE = "seen once, so it is retried over another connection"


class _Occurrence(NamedTuple):
    """One occurrence of an error; `was_open`: the log had been opened by then."""

    was_open: bool
    kind: type[BaseException]
    scn: int  # of the newest window: a newer one means another position
    place: str
    evidence: bytes


class RepeatedErrors:
    """The last error of one physical source. Used by one thread."""

    def __init__(self) -> None:
        self._last: _Occurrence | None = None
        self._is_open = False

    def connecting(self) -> None:
        """Start a new connection."""
        self._is_open = False

    def opened(self) -> None:
        """Record that the log was opened: an earlier error in opening it was temporary."""
        self._is_open = True
        if self._last is not None and not self._last.was_open:
            self._last = None

    def is_repeated(self, error: BaseException, scn: int) -> bool:
        """Remember an error; return whether the last one was the same. `scn`: newest window."""
        place, evidence = "", repr(error).encode()
        if isinstance(error, SourceStoppedError):
            place, evidence = error.position, error.evidence
        elif isinstance(error, DatabusError):
            evidence = b""
        occurrence = _Occurrence(self._is_open, type(error), scn, place, evidence)
        before, self._last = self._last, occurrence
        return occurrence == before


def as_first_occurrence(error: BaseException) -> DatabusError:
    """Return the error to report at the first occurrence, without advice to skip its position."""
    if isinstance(error, SourceStoppedError):
        problem = f"{error.problem}; {_SEEN_ONCE}"
        return SourceStoppedError(error.source, error.scn, problem, error.position)
    text = str(error) if isinstance(error, DatabusError) else repr(error)
    return DatabusError(f"{text}; {_SEEN_ONCE}")
