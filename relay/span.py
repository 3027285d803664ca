"""Which windows are complete for some sources, and which places inside windows are valid.

A place inside a window counts its events, so it is of no use where that window has other events:
after capture was begun again, perhaps with the rows of a table that was stopped, or without them;
or where a catch-up reads a window of before a change of what is captured, now with the rows of
other sources. What a response says of a place inside such a window has a number in its high bits:
that of the *makeup*, which changes with each such event. A place with another number than that of
the reader that is to serve it is refused. No window is skipped in part: a client reads it from its
beginning.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol, Self

from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.sources.epochs import Unread
from databus.schemas.errors import RequestError, ScnNotFoundError, TableStoppedError
from databus.schemas.scn import MAX_SCN

_PLACE_BITS = 40  # of an offset in a window; above them is a number
_REREAD = 1 << 22  # in a number: of a catch-up's windows, not of the ring's
MOST_MAKEUPS = _REREAD

ALWAYS = 0  # captured since the ring began, or since a time that is not known


class FirstScn(NamedTuple):
    """After which SCN all changes of a source are captured; ALWAYS if the ring tells by itself."""

    scn: int = ALWAYS
    source: str = ""
    since: str = "it was listed"

    def check(self, asked: Position, min_scn: int) -> None:
        """Raise ScnNotFoundError for a position with changes after it that are not captured.

        `min_scn` is the SCN of the ring's oldest window.
        """
        # A position inside window `scn` needs the rest of that window, too.
        if self.scn > ALWAYS and asked != (self.scn, WINDOW_DONE) and asked[0] <= self.scn:
            advice = f"source {self.source} is captured only since {self.since}, after {self.scn}"
            raise ScnNotFoundError(asked[0], max(min_scn, self.scn + 1), advice)


class TableStop(NamedTuple):
    """Where a source was stopped alone: no window after `scn` has its rows.

    `since` is in seconds since 1970; `problem` says what cannot be understood, and where.
    """

    scn: int
    source: str
    problem: str
    since: float

    def error(self) -> TableStoppedError:
        """Return the error for consumers that have read everything up to there."""
        error = TableStoppedError(
            f"source {self.source} is stopped after scn {self.scn}, and the windows after it are "
            f"captured without its rows; all other sources go on. {self.problem}"
        )
        error.source = self.source
        return error


class Hole(NamedTuple):
    """The ring's windows after `after_scn`, up to `until_scn`, are without rows of a source.

    It was stopped alone, and taken in again later.
    """

    after_scn: int
    until_scn: int
    source: str

    def is_after(self, place: Position) -> bool:
        """Return whether a place is before the hole, or inside its last complete window."""
        scn, offset = place
        return scn < self.after_scn or (scn == self.after_scn and offset != WINDOW_DONE)

    def is_before(self, place: Position) -> bool:
        """Return whether nothing of the hole follows a place."""
        scn, offset = place
        return scn > self.until_scn or (scn == self.until_scn and offset == WINDOW_DONE)

    def has(self, place: Position) -> bool:
        """Return whether what follows a place is in the hole."""
        return not self.is_after(place) and not self.is_before(place)


class Span(NamedTuple):
    """The windows that are complete for some sources: after `first`, up to `stop` if it is set.

    Windows up to `rewritten_until` may have been captured a second time, with other events.
    `makeup` is the number of what is captured now, and by which rewrite. `read_by` is the makeup
    that a catch-up reads with, whose windows up to `unlike_until` may have other events than the
    ring's; None for the ring. Only the ring's have the `hole`; `end` is where it begins, for who
    reads from before it. `unread` are places in the logs of later servers, `passed` ranges of SCNs
    that another relay alone has delivered (`epoch_spans`).
    """

    first: FirstScn = FirstScn()
    stop: TableStop | None = None
    rewritten_until: int = ALWAYS
    makeup: int = 0
    unlike_until: int = ALWAYS
    read_by: int | None = None
    hole: Hole | None = None
    end: int = MAX_SCN
    unread: tuple[Unread, ...] = ()
    passed: tuple[tuple[int, int], ...] = ()

    def is_captured_at(self, scn: int) -> bool:
        """Whether the ring has the rows of these sources that a window at an SCN has."""
        stop, hole = self.stop, self.hole
        is_stopped = stop is not None and scn > stop.scn
        is_in_hole = hole is not None and hole.after_scn < scn <= hole.until_scn
        return self.first.scn < scn and not is_stopped and not is_in_hole

    def has_passed(self, scn: int) -> bool:
        """Return whether another relay alone has delivered a window, and its rows come again."""
        return any(first <= scn <= last for first, last in self.passed)

    def seen_from(self, asked: Position | None, prev_scn: int) -> Self:
        """Return the span on one side of its hole: for who asks for what comes after a place.

        Without a place, for the oldest windows, those after `prev_scn`.
        """
        hole = self.hole
        if hole is None or self.read_by is not None:
            return self
        if hole.is_after((prev_scn, WINDOW_DONE) if asked is None else asked):
            return self._replace(end=hole.after_scn)
        begin = FirstScn(hole.until_scn, hole.source, "it was repaired")
        return self._replace(first=max(self.first, begin))

    def place(self, told: Position) -> Position:
        """Return the place that a response told; raise RequestError if it is not valid any more.

        Raises ScnNotFoundError if what follows it was delivered with the SCNs of another server.
        """
        scn, offset = told
        for one in self.unread:
            if one.first <= scn <= one.last:
                raise ScnNotFoundError(
                    scn,
                    one.last + 1,
                    f"epoch {one.epoch} begins after that here: windows that follow it there have "
                    "SCNs of the server before",
                )
        if offset <= 0:
            return told
        number, offset = divmod(offset, 1 << _PLACE_BITS)
        if number != self._number_of(scn):
            raise RequestError(
                f"window {scn} was captured again, perhaps with other events: this place inside it "
                "is not valid any more; read it from its beginning"
            )
        return scn, offset

    def told(self, place: Position) -> Position:
        """Return what a response says of a place."""
        scn, offset = place
        return place if offset <= 0 else (scn, offset + (self._number_of(scn) << _PLACE_BITS))

    def _number_of(self, scn: int) -> int:
        read_by = self.read_by
        if read_by is not None and (scn <= self.unlike_until or read_by != self.makeup):
            return read_by | _REREAD
        return self.makeup if scn <= self.rewritten_until else 0


class Spans(Protocol):
    """The spans of one ring's sources."""

    @property
    def revision(self) -> int:
        """Changes with each of them."""
        ...

    def of(self, src_ids: Collection[int] | None) -> Span:
        """Return the span of some sources; None for all of them."""
        ...


class NoLimits:
    """Spans without a first SCN or a stop."""

    revision = 0

    def of(self, src_ids: Collection[int] | None) -> Span:  # noqa: ARG002
        """Return a span without limits."""
        return Span()


NO_LIMITS = NoLimits()


class ReadAgain:
    """The spans of a ring's sources, as they are for a catch-up of one makeup."""

    def __init__(self, spans: Spans, makeup: int) -> None:
        self._spans, self._makeup = spans, makeup

    @property
    def revision(self) -> int:
        """Changes with each of them."""
        return self._spans.revision

    def of(self, src_ids: Collection[int] | None) -> Span:
        """Return the span of some sources; None for all of them."""
        return self._spans.of(src_ids)._replace(read_by=self._makeup)
