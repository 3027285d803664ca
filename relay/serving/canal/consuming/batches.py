"""The batches of one consumer: what it was sent, and what it has acknowledged. Pure.

Each batch ends at a place of each physical source. Acknowledging the oldest batch moves the
acknowledged places there. A rollback forgets batches, and reading begins again at the acknowledged
places. What is kept beyond the process are whole transactions only (`Place.settled`): a relay that
has restarted sends an unfinished transaction again, from its beginning, as Canal does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.serving.canal.protocol.errors import BAD_REQUEST, CanalError

MOST_OUTSTANDING = 10_000
ALL_BATCHES = 0


class Inside(NamedTuple):
    """How far a window was sent: `nth` entries that end at event `offset`, and all before."""

    scn: int
    offset: int
    nth: int


NOT_INSIDE = Inside(-1, 0, 0)


class Place(NamedTuple):
    """How far the changes of one physical source have come.

    Everything up to `settled` was sent, and of the window after it what `inside` says.
    `rows_scn` is the last whole window with rows, or -1.
    """

    settled: Position
    inside: Inside = NOT_INSIDE
    rows_scn: int = -1

    def has(self, entry: Inside) -> bool:
        """Return whether an entry was sent."""
        return entry.scn == self.inside.scn and entry <= self.inside

    def after_window(self, scn: int, *, has_rows: bool = False) -> Place:
        """Return the place after a whole window."""
        return Place((scn, WINDOW_DONE), NOT_INSIDE, scn if has_rows else self.rows_scn)


Places = Mapping[str, Place]  # by physical source


class Batches:
    """The outstanding batches of a consumer, the oldest first."""

    def __init__(self, places: Places) -> None:
        """`places` is where it begins, by physical source; those not known yet are missing."""
        self.acked: Places = dict(places)
        self.sent: Places = self.acked
        """Where the last batch ends."""
        self._ends: dict[int, Places] = {}
        self._last_id = 0

    @property
    def outstanding(self) -> int:
        """Number of batches that are not acknowledged."""
        return len(self._ends)

    @property
    def oldest(self) -> int | None:
        """Id of the oldest outstanding batch."""
        return next(iter(self._ends), None)

    def check_room(self) -> None:
        """Raise CanalError for a consumer that acknowledges nothing."""
        if len(self._ends) >= MOST_OUTSTANDING:
            raise CanalError(
                BAD_REQUEST,
                f"{len(self._ends)} batches are not acknowledged, the oldest is {self.oldest}: "
                "ack them in order, or roll back",
            )

    def send(self, places: Places) -> int:
        """Add a batch that ends at some places; return its id."""
        self._last_id += 1
        self.sent = self._ends[self._last_id] = {**self.sent, **places}
        return self._last_id

    def pass_by(self, places: Places) -> bool:
        """Go on to places before which nothing else is to be sent.

        They are acknowledged with the last batch, or now without one: then it returns True.
        """
        self.sent = {**self.sent, **places}
        if self._ends:
            self._ends[self._last_id] = self.sent
            return False
        self.acked = self.sent
        return True

    def begin(self, source: str, place: Place) -> None:
        """Set the place at which a source begins, which nothing said before."""
        self.acked = {source: place, **self.acked}
        self.sent = {source: place, **self.sent}
        self._ends = {one: {source: place, **ends} for one, ends in self._ends.items()}

    def restart_windows(self) -> None:
        """Let unfinished windows be sent from their beginning: another filter selects them now."""
        self.sent = _whole(self.sent)
        self.acked = _whole(self.acked)
        self._ends = {one: _whole(ends) for one, ends in self._ends.items()}

    def acknowledge(self, batch_id: int, client_id: int) -> None:
        """Acknowledge the oldest batch; raises CanalError for any other one."""
        self._check("ack", batch_id, client_id)
        self.acked = self._ends.pop(batch_id)

    def roll_back(self, batch_id: int, client_id: int) -> None:
        """Forget the oldest batch, or ALL_BATCHES; reading begins again at what is acknowledged.

        Raises CanalError for any other batch. The batches after it are forgotten, too: what they
        have is read and sent again.
        """
        if batch_id != ALL_BATCHES:
            self._check("rollback", batch_id, client_id)
        self._ends.clear()
        self.sent = self.acked

    def _check(self, what: str, batch_id: int, client_id: int) -> None:
        oldest = self.oldest
        if batch_id not in self._ends:
            after = "there is no batch to settle" if oldest is None else f"the oldest is {oldest}"
            raise CanalError(
                BAD_REQUEST,
                f"{what} error , clientId:{client_id} batchId:{batch_id} is not exist , please "
                f"check; {after}",
            )
        if batch_id != oldest:
            raise CanalError(
                BAD_REQUEST,
                f"{what} error , clientId:{client_id} batchId:{batch_id} is not the firstly:"
                f"{oldest}",
            )


def _whole(places: Places) -> Places:
    return {source: place._replace(inside=NOT_INSIDE) for source, place in places.items()}
