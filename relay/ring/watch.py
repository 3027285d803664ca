"""Check every ring file in the background, slowly and continuously.

Bytes that were at rest are checked before they are served (`check`). This watch finds damage
before a consumer does, also in bytes written since the start. One thread checks all rings
and uses a fiftieth of its time. It opens readers of its own, so a ring may be emptied or
closed meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from databus.daemon.faults import is_transient
from databus.daemon.log_setup import about
from databus.relay.clock import Clock
from databus.relay.ring.check import Damage
from databus.relay.ring.reader import RingReader
from databus.schemas.errors import DamagedWindowsError, DatabusError, RingCorruptError

log = logging.getLogger(__name__)

SHARE = 0.02  # of the time
REST_S = 600.0  # between two rounds
RETRY_S = 2.0  # between two rounds while a problem is transient
_AT_A_TIME_S = 0.005


Found = tuple[Damage, DamagedWindowsError]


@dataclass(slots=True)
class Watched:
    """The results for one ring. `round_at_s` is when the last full round ended."""

    checked_bytes: int = 0
    round_at_s: float | None = None
    damages: tuple[Found, ...] = ()
    problem: str = ""  # why the ring could not be checked
    is_passing: bool = False  # whether the problem is transient, such as no free descriptor
    reported: set[str] = field(default_factory=set)

    def note(self, found: Sequence[Found], reached: int) -> list[DatabusError]:
        """Replace the damage known before `reached` by `found`; return the errors that are new."""
        behind = [one for one in self.damages if one[0].begin >= reached]
        self.damages = (*found, *behind)
        new = [error for _, error in found if str(error) not in self.reported]
        self.reported.update(map(str, new))
        return list(new)


class RingWatch:
    """Checks rings until it is stopped.

    `on_problem` is called on the watch's thread with the ring's name, the new error, and the
    position up to which the ring must be checked again before it is served.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        on_problem: Callable[[str, DatabusError, int], None],
        clock: Clock,
        share: float = SHARE,
    ) -> None:
        self._paths = dict(paths)
        self._on_problem = on_problem
        self._clock = clock
        self._share = share
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.watched = {name: Watched() for name in paths}

    def start(self) -> None:
        """Start the thread, unless it is running."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ring-watch", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; return whether it ended in time."""
        self._stopped.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def look_at(self, name: str) -> None:
        """Check the whole of one ring."""
        watched = self.watched[name]
        try:
            reader = RingReader.open(self._paths[name])
        except KeyError:
            return  # its source was removed meanwhile
        except DatabusError as error:
            self._note_problem(name, error)
            return
        try:
            is_whole = self._look(name, watched, reader)
        except RingCorruptError as error:
            if not reader.is_replaced:
                self._note_problem(name, error)
        else:
            if is_whole:
                watched.problem, watched.round_at_s = "", self._clock.monotonic_s()
        finally:
            reader.close()

    def add(self, name: str, path: Path) -> None:
        """Check one more ring, in the next round."""
        self.watched[name], self._paths[name] = Watched(), path

    def remove(self, name: str) -> None:
        """Check a ring no longer; what was found stays known, for who shows it now."""
        self._paths.pop(name, None)

    def forget(self, name: str) -> None:
        """Forget the damage and the problem of a ring that was emptied."""
        watched = self.watched[name]
        watched.problem, watched.damages = "", ()

    def _look(self, name: str, watched: Watched, reader: RingReader) -> bool:
        """Check each block; return False if stopped, or if another file replaced the ring."""
        extent, check = reader.extent(), reader.check
        reached, spent_s = extent.head, 0.0
        for number in range(extent.first, extent.end):
            began_s = self._clock.monotonic_s()
            length = check.check_block(number)
            spent_s += self._clock.monotonic_s() - began_s
            watched.checked_bytes += length
            reached += length
            if reader.is_replaced:
                watched.damages = ()
                return False
            if spent_s >= _AT_A_TIME_S:
                self._take_note(name, watched, reader, reached)
                if self._stopped.wait(spent_s / self._share):
                    return False
                spent_s = 0.0
        self._take_note(name, watched, reader, extent.tail)
        return True

    def _take_note(self, name: str, watched: Watched, reader: RingReader, reached: int) -> None:
        found = [(damage, reader.check.error(damage)) for damage in reader.check.damages()]
        for error in watched.note(found, reached):
            self._tell(name, error, max(damage.end for damage, _ in found))

    def _note_problem(self, name: str, error: DatabusError) -> None:
        watched = self.watched[name]
        watched.is_passing = is_transient(error)
        if str(error) != watched.problem:
            watched.problem = str(error)
            self._tell(name, error, 0)

    def _tell(self, name: str, error: DatabusError, until: int) -> None:
        if not self._stopped.is_set():
            log.error("%s", error, extra=about(physical_source=name))
            self._on_problem(name, error, until)

    def _run(self) -> None:
        while not self._stopped.is_set():
            for name in tuple(self._paths):
                if not self._stopped.is_set() and name in self._paths:
                    self._look_or_say_why_not(name)
            passing = any(one.problem and one.is_passing for one in tuple(self.watched.values()))
            self._stopped.wait(RETRY_S if passing else REST_S)

    def _look_or_say_why_not(self, name: str) -> None:
        try:
            self.look_at(name)
        except Exception as error:  # one ring must not stop the checks of the others
            log.exception("looking at the ring failed", extra=about(physical_source=name))
            self.watched[name].problem = f"internal error: {error!r}; see the log"
