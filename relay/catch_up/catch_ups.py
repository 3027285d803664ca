"""The catch-ups of one physical source: which one serves whom, the queue, and their end.

A request for a place that neither ring nor log has is served from a catch-up that began at or
before it. If there is none, one begins, or waits in a queue until one of those that run has been
idle for long enough. What could not be read is not tried again at once: then the request goes to
the next rung.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from databus.relay.catch_up.catch_up import CatchUp, MainHistory
from databus.relay.catch_up.junction import bound_of, lacks
from databus.relay.catch_up.read_ahead import ReadAhead
from databus.relay.catch_up.reader import CatchUpReader
from databus.relay.catch_up.status import Catching, CatchUpState, CatchUpStatus
from databus.relay.log.archive.away import SegmentAwayError
from databus.relay.log.history import HistoryReader
from databus.relay.log.layout import UNKNOWN_SCN
from databus.relay.ring.event_selector import Position
from databus.relay.ring.reader import RingReader
from databus.relay.ring.selection import Selection
from databus.relay.span import Hole, ReadAgain
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    DamagedWindowsError,
    DatabusError,
    RelayLogError,
    RingError,
    ScnNotFoundError,
)

FOLDER_SUFFIX = ".catch-up"  # after the name of the physical source
FAILED_FOR_S = 60.0
_PASSES_IN_S = 5.0  # a full disk, for example
_MOST_QUEUED = 100
_IDLE_WITH_QUEUE_S = 30.0


@dataclass(slots=True, eq=False)
class _Running:
    """A catch-up, its reader on the loop's thread, and when it was used last."""

    catch_up: CatchUp
    reader: CatchUpReader
    makeup: int  # of its windows; see `Span`
    used_s: float
    is_ended: bool = False


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why what comes after an SCN cannot be read."""

    asked_scn: int
    problem: str
    is_passing: bool
    until_s: float


class CatchUps:
    """All catch-ups of one physical source. On the loop's thread."""

    def __init__(
        self, main: MainHistory, history: HistoryReader | RingReader, folder: Path
    ) -> None:
        """Remove what an earlier relay has left in the folder."""
        self._main, self._history, self._folder = main, history, folder
        self._running: list[_Running] = []
        self._failures: list[_Failure] = []
        self._damages: list[Hole] = []  # what cannot be read of the history
        self._opening = history.opening
        self._made = 0
        self._opened = self._failed = 0
        self._read_bytes = 0  # by those that are gone
        shutil.rmtree(folder, ignore_errors=True)

    def reader_for(self, selection: Selection) -> CatchUpReader | None:
        """Return the reader of a catch-up for a place that the relay no longer holds, or None.

        Raises ScnNotFoundError, with the reason, if the source's log does not have it either.
        """
        asked, settings = selection.checkpoint, self._main.settings
        if selection.from_latest or asked.is_flexible or not settings.catch_ups:
            return None
        scn, offset = asked.window_scn, asked.window_offset
        if not self._main.server.has(scn):
            return None
        holes = self._holes_behind((scn, offset), selection.src_ids)
        unread_until = self._main.server.unread_until(scn, self._history)
        if unread_until >= 0:
            holes.append(Hole(scn - 1, unread_until, ""))
        is_in_hole = any(hole.has((scn, offset)) for hole in holes)
        if not self._is_known or (unread_until >= 0 and not self._main.server.is_newest):
            if is_in_hole:
                raise RelayLogError(f"{settings.name}: its log is being opened; ask again later")
            return None
        if not is_in_hole and not self._lacks((scn, offset)):
            return None
        hole_until = max((hole.until_scn for hole in holes), default=UNKNOWN_SCN)
        self._update()
        failure = self._failure_at(scn)
        if failure is not None:
            raise self._refusal(failure, scn)
        # The rest of a window needs the whole window.
        scn -= offset >= 0
        found = self._find(scn, hole_until) or self._add(scn, hole_until)
        found.used_s = self._now_s()
        return found.reader

    def may_have(self, scn: int) -> bool:
        """Return whether what comes after an SCN may be read again from the source's log."""
        if not self._main.settings.catch_ups or not self._main.server.has(scn):
            return False
        return self._failure_at(scn) is None

    def note_damage(self, error: DamagedWindowsError, asked: Checkpoint) -> None:
        """Let clients get what is damaged in the ring or its log from the source's log.

        A place may be before the damage, where one response would reach into it.
        """
        before_scn = asked.window_scn - (asked.window_offset >= 0)
        found = Hole(min(error.scn, before_scn), error.until, "")
        if found not in self._damages:
            self._damages.append(found)

    def tick(self) -> None:
        """Start, drop and forget what is due; once a second."""
        self._main.server.look()
        self._update()
        for one in self._running:
            one.reader.rest()

    def statuses(self) -> tuple[CatchUpStatus, ...]:
        """Return their current status, the queued ones last."""
        return tuple(self._status(one) for one in self._running)

    def failures(self) -> tuple[str, ...]:
        """Return why places could not be read again lately."""
        return tuple(
            f"what comes after scn {one.asked_scn} cannot be read from the source's own log: "
            f"{one.problem}"
            for one in self._failures
            if one.until_s > self._now_s()
        )

    def summary(self) -> Catching:
        """Return a summary of them."""
        found = self.statuses()
        queued = sum(one.state is CatchUpState.QUEUED for one in found)
        return Catching(
            running=len(found) - queued,
            queued=queued,
            size_bytes=sum(one.size_bytes for one in found),
            scn=min((one.scn for one in found if one.scn >= 0), default=-1),
            opened=self._opened,
            failed=self._failed,
            read=self._read_bytes + sum(one.read_bytes for one in found),
        )

    def close(self, timeout_s: float) -> bool:
        """End all of them; return whether that was done in time."""
        for one in self._running:
            self._end(one, RelayLogError(f"{one.catch_up.name}: the relay is being stopped"))
        ended = [one.catch_up.join(timeout_s) for one in self._running]
        return all(ended)

    def _holes_behind(self, place: Position, src_ids: Collection[int] | None) -> list[Hole]:
        """Return the holes that follow a place: of its sources, and those of damage that it is in.

        Others of damage are found when they are read.
        """
        opening = self._history.opening
        if self._opening != opening:  # it is perhaps begun anew
            self._opening, self._damages = opening, []
        hole = self._main.spans.of(src_ids).hole
        own = [hole] if hole is not None and not hole.is_before(place) else []
        return own + [one for one in self._damages if one.has(place)]

    def _lacks(self, place: Position) -> bool:
        """Return whether the relay no longer holds, or has never read, what comes after a place."""
        extent = self._history.extent()
        if lacks(extent, place):
            return True
        if place[0] != extent.min_scn or place[1] < 0:
            return False
        try:
            self._history.find(*place)  # it may be inside the window after which capture began
        except (DamagedWindowsError, SegmentAwayError):
            return False  # found out by whoever reads it
        except ScnNotFoundError:
            return True
        return False

    def _failure_at(self, scn: int) -> _Failure | None:
        """Return why what comes after an SCN could not be read lately, if it could not."""
        return next((one for one in self._failures if scn <= one.asked_scn), None)

    @property
    def _is_known(self) -> bool:
        """Whether it is known how far the relay's own history reaches back."""
        recorder = self._main.recorder
        return recorder is None or (recorder.join is not None and recorder.is_complete)

    def _find(self, scn: int, hole_until: int) -> _Running | None:
        """Return a catch-up that has what comes after an SCN, or will have it."""
        for one in self._running:
            # Each leads to another place in the ring, and proves that one only.
            if one.is_ended or one.catch_up.hole_until != hole_until:
                continue
            after_scn = one.catch_up.asked_scn
            if one.reader.is_open:  # its oldest segments may be deleted
                after_scn = max(one.reader.prev_scn, one.catch_up.begin_scn)
            if after_scn <= scn:
                return one
        return None

    def _add(self, scn: int, hole_until: int) -> _Running:
        if len(self._running) >= _MOST_QUEUED:
            raise RelayLogError(
                f"{self._main.settings.name}: {_MOST_QUEUED} catch-ups are queued; ask again later"
            )
        self._made += 1
        name, newest = self._main.settings.name, lambda: self._history.max_scn
        makeup = self._main.spans.makeup
        spans = ReadAgain(self._main.spans, makeup)
        read_ahead = ReadAhead(self._main.settings.catch_up_bytes // 2, scn)
        reader = CatchUpReader(
            f"the catch-up of {name}",
            lambda: self._limit(catch_up),
            newest,
            read_ahead,
            self._main.clock,
            spans,
        )
        folder = self._folder / str(self._made)
        server = self._main.server.settings
        on_change = reader.notifier.notify_all
        catch_up = CatchUp(self._main, server, folder, scn, read_ahead, on_change, hole_until)
        added = _Running(catch_up, reader, makeup, self._now_s())
        self._running.append(added)
        self._update()
        return added

    def _limit(self, catch_up: CatchUp) -> int | None:
        """Return the first SCN of a catch-up that must not be read yet."""
        bound = self._bound(catch_up)
        return None if catch_up.proved_scn >= bound else bound

    def _bound(self, catch_up: CatchUp) -> int:
        """Return the SCN after which readers of a catch-up read what the relay holds."""
        return max(bound_of(self._history.extent()), catch_up.hole_until)

    def _update(self) -> None:
        """Take note of what has happened, and start what may start."""
        now_s = self._now_s()
        self._failures = [one for one in self._failures if one.until_s > now_s]
        for one in self._running:
            self._update_one(one, now_s)
        gone = [one for one in self._running if self._is_gone(one)]
        self._read_bytes += sum(one.reader.read_bytes for one in gone)
        self._running = [one for one in self._running if one not in gone]
        queued = self._queued
        free = self._main.settings.catch_ups - (len(self._running) - len(queued))
        for one in queued[: max(0, free)]:
            one.catch_up.read()
            self._opened += 1

    def _update_one(self, one: _Running, now_s: float) -> None:
        catch_up = one.catch_up
        if one.is_ended:
            return
        if one.reader.notifier.waiting:
            one.used_s = now_s
        if catch_up.problem:
            until_s = now_s + (_PASSES_IN_S if catch_up.is_passing else FAILED_FOR_S)
            scn = catch_up.asked_scn
            failure = _Failure(scn, catch_up.problem, catch_up.is_passing, until_s)
            self._failures.append(failure)
            self._failed += 1
            self._end(one, self._refusal(failure, scn))
        elif catch_up.is_outdated:
            self._end(one, RelayLogError(f"{catch_up.name}: the ring began anew; ask again"))
        elif catch_up.server != self._main.server.settings:
            text = f"{catch_up.name}: another server is read now; ask again"
            self._end(one, RelayLogError(text))
        elif one.makeup != self._main.spans.makeup:
            text = f"{catch_up.name}: what is captured has changed since; ask again"
            self._end(one, RelayLogError(text))
        elif now_s - one.used_s > self._most_idle_s:
            self._end(one, RelayLogError(f"{catch_up.name} was idle, and is dropped; ask again"))
        else:
            one.reader.note_trouble(catch_up.trouble)
            if catch_up.is_open and not one.reader.is_open:
                with suppress(RingError):  # it has just ended
                    one.reader.use(catch_up.open_reader())

    @property
    def _most_idle_s(self) -> float:
        """Time without a request after which one is dropped: less while others wait for it."""
        most_s = self._main.settings.catch_up_idle_s
        return min(_IDLE_WITH_QUEUE_S, most_s) if self._queued else most_s

    @property
    def _queued(self) -> list[_Running]:
        return [one for one in self._running if one.catch_up.is_queued and not one.is_ended]

    def _refusal(self, failure: _Failure, scn: int) -> DatabusError:
        """Return the error for a place from which the log could not be read."""
        advice = f"the source's own log cannot be read from there: {failure.problem}"
        if failure.is_passing:
            return RelayLogError(f"{self._main.settings.name}: {advice}; ask again later")
        return ScnNotFoundError(scn, self._history.min_scn, advice)

    def _end(self, one: _Running, error: Exception) -> None:
        one.is_ended = True
        one.catch_up.end()
        one.reader.close(error)

    def _is_gone(self, one: _Running) -> bool:
        return one.is_ended and one.catch_up.is_over

    def _status(self, one: _Running) -> CatchUpStatus:
        catch_up, reader = one.catch_up, one.reader
        capture = None if catch_up.capture is None else catch_up.capture.status
        recorder = catch_up.recorder
        return CatchUpStatus(
            catch_up.state,
            catch_up.asked_scn,
            catch_up.begin_scn,
            -1 if capture is None else capture.scn,
            0 if capture is None else capture.timestamp_ns,
            self._bound(catch_up),
            0 if recorder is None else recorder.status.size_bytes,
            0 if capture is None else capture.windows,
            reader.read_bytes,
            max(0.0, self._now_s() - one.used_s),
            catch_up.problem or catch_up.trouble,
        )

    def _now_s(self) -> float:
        return self._main.clock.monotonic_s()
