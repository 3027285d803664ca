"""The last errors of a relay and of its clients, with their positions. Pure.

A repeated error is counted, not listed again. Thread-safe.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from databus.schemas.errors import ScnNotFoundError, SourceStoppedError, TransactionTooLargeError

MOST_KEPT = 200
MOST_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Noted:
    """One error, and how many times it has occurred."""

    at: float
    physical_source: str
    client: str
    scn: int | None
    place: str
    text: str
    count: int = 1


class ErrorLog:
    """The last errors."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._noted: OrderedDict[tuple[str, str, str], Noted] = OrderedDict()

    def note(self, at: float, physical_source: str, error: BaseException, client: str = "") -> None:
        """Record an error, with its position if it has one."""
        scn, place = position_of(error)
        text = str(error) or repr(error)
        self.note_text(at, physical_source, text, client=client, scn=scn, place=place)

    def note_text(
        self,
        at: float,
        physical_source: str,
        text: str,
        *,
        client: str = "",
        scn: int | None = None,
        place: str = "",
    ) -> None:
        """Record a problem given as text."""
        text = text[:MOST_TEXT]
        key = (physical_source, client, text)
        with self._lock:
            # Inserted again at the end: the order is by last occurrence.
            before = self._noted.pop(key, None)
            count = 1 if before is None else before.count + 1
            self._noted[key] = Noted(at, physical_source, client, scn, place, text, count)
            if len(self._noted) > MOST_KEPT:
                self._noted.popitem(last=False)

    def newest_first(self) -> list[Noted]:
        """Return the errors, the newest first."""
        with self._lock:
            return list(reversed(self._noted.values()))


def position_of(error: BaseException) -> tuple[int | None, str]:
    """Return an error's SCN and its position in the source's log, if it has them."""
    if isinstance(error, SourceStoppedError):
        return _scn(error.scn), error.position
    if isinstance(error, (TransactionTooLargeError, ScnNotFoundError)):
        return _scn(error.scn), ""
    return None, ""


def _scn(scn: int) -> int | None:
    return scn if scn >= 0 else None
