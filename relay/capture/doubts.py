"""What went wrong once, and may have been the way to the database and not its log. Pure.

Bytes change on the way, packets get lost, an answer is cut: what is read then makes no
sense, and reading it again over another connection cures it. So capture stops only for
what it has met twice: the same kind of error at the same place and, where the error says
what was read there, of the same bytes. Only then is anybody told how to pass that place.
"""

from __future__ import annotations

from typing import NamedTuple

from databus.schemas.errors import DatabusError, SourceStoppedError

_MET_ONCE = "met once, so it is tried again over another connection"


class _Sight(NamedTuple):
    """An error as it was met: `was_open` says whether the log was being read by then."""

    was_open: bool
    kind: type[BaseException]
    scn: int  # of the newest window: past it, it is another place
    place: str
    evidence: bytes


class Doubts:
    """The last thing that went wrong on one physical source. Used by one thread."""

    def __init__(self) -> None:
        self._last: _Sight | None = None
        self._is_open = False

    def connecting(self) -> None:
        """Note that another connection begins."""
        self._is_open = False

    def opened(self) -> None:
        """Note that the log was opened: what went wrong on the way there was not lasting."""
        self._is_open = True
        if self._last is not None and not self._last.was_open:
            self._last = None

    def is_confirmed(self, error: BaseException, scn: int) -> bool:
        """Say whether it was met before, and remember it; `scn` is the newest window's."""
        place, evidence = "", repr(error).encode()
        if isinstance(error, SourceStoppedError):
            place, evidence = error.position, error.evidence
        elif isinstance(error, DatabusError):
            evidence = b""
        sight = _Sight(self._is_open, type(error), scn, place, evidence)
        before, self._last = self._last, sight
        return sight == before


def as_doubt(error: BaseException) -> DatabusError:
    """Return what to say of an error that was met once: not how to pass it, for it may be harm."""
    if isinstance(error, SourceStoppedError):
        problem = f"{error.problem}; {_MET_ONCE}"
        return SourceStoppedError(error.source, error.scn, problem, error.position)
    text = str(error) if isinstance(error, DatabusError) else repr(error)
    return DatabusError(f"{text}; {_MET_ONCE}")
