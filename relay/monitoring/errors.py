"""The last errors of a relay and of those who read from it, with their positions. Pure.

The same error again is counted, not listed again. Any thread may note one.
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
    """One error; `count` says how many times in a row."""

    at: float
    physical_source: str
    client: str
    scn: int | None
    place: str
    text: str
    count: int = 1


class ProblemLog:
    """Keeps the last errors."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._noted: OrderedDict[tuple[str, str, str], Noted] = OrderedDict()

    def note(self, at: float, physical_source: str, error: BaseException, client: str = "") -> None:
        """Note an error; its position comes from it where it has one."""
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
        """Note what is wrong in words."""
        text = text[:MOST_TEXT]
        key = (physical_source, client, text)
        with self._lock:
            before = self._noted.pop(key, None)
            count = 1 if before is None else before.count + 1
            self._noted[key] = Noted(at, physical_source, client, scn, place, text, count)
            if len(self._noted) > MOST_KEPT:
                self._noted.popitem(last=False)

    def newest_first(self) -> list[Noted]:
        """Return what is kept."""
        with self._lock:
            return list(reversed(self._noted.values()))


def position_of(error: BaseException) -> tuple[int | None, str]:
    """Return an error's SCN and the place in its source's log, as far as it has them."""
    if isinstance(error, SourceStoppedError):
        return _scn(error.scn), error.position
    if isinstance(error, (TransactionTooLargeError, ScnNotFoundError)):
        return _scn(error.scn), ""
    return None, ""


def _scn(scn: int) -> int | None:
    return scn if scn >= 0 else None
