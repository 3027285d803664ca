"""A query's place in each physical source, and its form as an offset of Spark. Pure.

Spark compares offsets as JSON texts, and stores only the end of each micro-batch.
Until the first batch is done, it asks for the initial offset at every start. So a
named start (`latest`, `earliest`, …) is never part of an offset: the initial offset
is empty, and the first planned end of a physical source records the SCN at which
the batch begins (`from`). From then on that SCN is in Spark's own log, and does not
change between two starts.

    {"physical": {"shop": {"from": 90, "log": […], "mark": […], "scn": 120, "timeMs": …}}, …}
    {"physical": {"shop": {"snapshot": {…}}}, "sources": ["shop.orders"], "v": 1}
    {"physical": {…}, "sources": …, "stopped": {"shop": "unreachable"}, "v": 1}
    {"joining": {"shop.new": {"snapshot": {…}}}, "physical": {…}, "sources": …, "v": 2}

The offset also records the sources. One that is added later may have a place of its
own for a while, in `joining`: its rows from before are read first. An earlier version
of this package, which does not know such places, refuses the offset by its version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from databus.schemas.checkpoint import LogWindow
from databus.schemas.errors import BootstrapTooOldError, CheckpointError
from databus.schemas.scn import MAX_SCN

VERSION = 1
JOINING_VERSION = 2
# The physical source of LinkedIn's relays, which do not name theirs. Settings cannot give it.
STOCK_RELAY = "*"


class Proof(NamedTuple):
    """The windows by which the log of a place is recognised: another log has others at their SCNs.

    `mark`: SCN and timestamp (ns) of a window with rows of the query's own sources, if one is
    near. `log_window`: the newest window with rows, and one of its sources.
    """

    mark: tuple[int, int] | None = None
    log_window: LogWindow | None = None

    def then(self, later: Proof) -> Proof:
        """Return the proof of a later place, of which a relay may tell none."""
        windows = (one for one in (self.log_window, later.log_window) if one is not None)
        return Proof(later.mark or self.mark, max(windows, default=None))


NO_PROOF = Proof()


@dataclass(frozen=True, slots=True)
class AtScn:
    """Everything up to window `scn` is read.

    `from_scn`: the begin of a physical source's first batch; set only in its end.
    `scn` -1: the relay had no window yet, so all windows are still to come.
    `time_ms`: commit time of that window; 0 if not known. `proof`: that of the log which was read
    up to there.
    """

    scn: int
    time_ms: int = 0
    from_scn: int | None = None
    # Of the log, not of the place in it.
    proof: Proof = field(default=NO_PROOF, compare=False)


@dataclass(frozen=True, slots=True)
class InSnapshot:
    """The rows of a snapshot are read up to row `row` of `source`; sources are read in order.

    The snapshot is as of `at_scn`, and has the rows that changed after `since_scn` (0:
    the whole table), from the store `store` of `server`. `left`: the sources that are
    read after this one; None in an offset of an earlier version, which means those
    after it in the query's own order. `is_read`: all rows of the last source are read.
    `proof`: that of the log up to `since_scn`; another store must have the same log.
    """

    at_scn: int
    since_scn: int
    source: str
    row: int
    server: str
    store: str
    is_read: bool = False
    left: tuple[str, ...] | None = None
    proof: Proof = field(default=NO_PROOF, compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether the snapshot has every row, so that any other row is deleted."""
        return self.since_scn <= 0

    def is_same_session(self, other: Place | None) -> bool:
        """Return whether another place is in the same snapshot."""
        return isinstance(other, InSnapshot) and self._session == other._session

    @property
    def _session(self) -> tuple[int, int, str]:
        return self.at_scn, self.since_scn, self.store


Place = AtScn | InSnapshot
Places = dict[str, Place]  # by physical source


class Group(NamedTuple):
    """Sources of one physical source that are read together, from one place."""

    physical_source: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueryOffset:
    """How far a query has read.

    `sources`: those that it reads. `places`: by physical source. `joining`: the places
    of sources that were added, by source; the others are at their physical source's.
    """

    sources: tuple[str, ...]
    places: Mapping[str, Place] = field(default_factory=dict)
    joining: Mapping[str, Place] = field(default_factory=dict)


def to_offset(offset: QueryOffset, stopped: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return Spark's offset, with sorted keys: equal places give equal texts.

    `stopped`: the states of physical sources that are not captured. A changed state
    causes a batch without rows, so that it appears in the query's progress.
    """
    found: dict[str, Any] = {}
    if offset.joining:
        found["joining"] = _places_to_json(offset.joining)
    found["physical"] = _places_to_json(offset.places)
    found["sources"] = sorted(offset.sources)
    if stopped:
        found["stopped"] = {name: stopped[name] for name in sorted(stopped)}
    # `v` is last in the order of the keys, too.
    return found | {"v": JOINING_VERSION if offset.joining else VERSION}


def from_offset(offset: Mapping[str, Any]) -> QueryOffset:
    """Return how far a query has read by its offset; raises CheckpointError."""
    try:
        joining = offset.get("joining", {})
        if offset["v"] != (JOINING_VERSION if joining else VERSION):
            raise ValueError(f"version {offset['v']}, not {VERSION} or {JOINING_VERSION}")
        return QueryOffset(
            tuple(sorted(map(str, offset["sources"]))),
            _places_from_json(offset["physical"]),
            _places_from_json(joining),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the query's checkpoint has a malformed offset: {offset!r}: {error!r}; "
            "start the query with another checkpoint folder"
        ) from error


def check_physical(places: Mapping[str, Place], known: Iterable[str]) -> None:
    """Raise CheckpointError if an offset has a physical source that the relays do not have."""
    known = list(known)
    strange = sorted(set(places) - set(known))
    if not strange:
        return
    of_stock = "a LinkedIn relay, whose SCNs are not those of a relay of this project"
    if STOCK_RELAY in strange:
        problem = f"is of {of_stock}: start the query"
    elif STOCK_RELAY in known:
        problem = f"has physical source {', '.join(strange)}, but reads {of_stock}: start the query"
    else:
        problem = (
            f"has physical source {', '.join(strange)}, but the relay has its sources in "
            f"{', '.join(known)}: was it renamed? Start the query"
        )
    raise CheckpointError(f"the query's checkpoint {problem} with another checkpoint folder")


def check_not_behind(physical_source: str, begun: InSnapshot, at_scn: int) -> None:
    """Raise BootstrapTooOldError if a new snapshot is older than `at_scn`, that of the one before.

    Rows of both are in the target then, and the end of the one would not remove rows of the other,
    or remove too many.
    """
    if begun.at_scn < at_scn:
        raise BootstrapTooOldError.answered(
            begun.server,
            f"{physical_source} has a snapshot as of scn {begun.at_scn} only, and this query has "
            f"rows as of scn {at_scn}: either the store still reads what it had, or its source is "
            "another database; then use a new target and a new checkpoint",
        )


def start_of(end: AtScn, start: Place | None) -> int:
    """Return the SCN after which the windows of a batch begin; raises CheckpointError."""
    if end.from_scn is not None:
        scn = end.from_scn
    elif isinstance(start, AtScn):
        scn = start.scn
    elif isinstance(start, InSnapshot):
        scn = start.at_scn
    else:
        raise CheckpointError(
            f"the query's checkpoint has no begin for the batch that ends at scn {end.scn}"
        )
    if scn > end.scn:
        raise CheckpointError(f"the query's checkpoint goes back from scn {scn} to {end.scn}")
    return scn


def after_rows(place: InSnapshot, row: int, is_read: bool = False) -> InSnapshot:
    """Return the place after more rows of the same source."""
    return replace(place, row=row, is_read=is_read)


def unmarked(place: Place) -> Place:
    """Return the place for fewer sources: its mark may be a window of one that is left out."""
    return replace(place, proof=place.proof._replace(mark=None))


def _places_to_json(places: Mapping[str, Place]) -> dict[str, Any]:
    return {name: _to_json(places[name]) for name in sorted(places)}


def _places_from_json(values: Mapping[str, Any]) -> Places:
    return {str(name): _from_json(value) for name, value in values.items()}


def _to_json(place: Place) -> dict[str, Any]:
    if isinstance(place, AtScn):
        values: dict[str, Any] = {} if place.from_scn is None else {"from": place.from_scn}
        return values | _of_proof(place.proof) | {"scn": place.scn, "timeMs": place.time_ms}
    snapshot: dict[str, Any] = {
        "atScn": place.at_scn,
        "isRead": place.is_read,
        "row": place.row,
        "server": place.server,
        "sinceScn": place.since_scn,
        "source": place.source,
        "store": place.store,
    }
    if place.left is not None:
        snapshot["left"] = list(place.left)
    return {"snapshot": snapshot | _of_proof(place.proof)}


def _of_proof(proof: Proof) -> dict[str, Any]:
    named = {"log": proof.log_window, "mark": proof.mark}
    return {name: list(window) for name, window in named.items() if window is not None}


def _from_json(value: Mapping[str, Any]) -> Place:
    if "snapshot" not in value:
        from_scn = value.get("from")
        return AtScn(
            _number(value["scn"]),
            _number(value["timeMs"]),
            None if from_scn is None else _number(from_scn),
            read_proof(value.get("mark"), value.get("log")),
        )
    found = value["snapshot"]
    left = found.get("left")
    return InSnapshot(
        at_scn=_number(found["atScn"]),
        since_scn=_number(found["sinceScn"]),
        source=str(found["source"]),
        row=_number(found["row"]),
        server=str(found["server"]),
        store=str(found["store"]),
        is_read=bool(found["isRead"]),
        left=None if left is None else tuple(map(str, left)),
        proof=read_proof(found.get("mark"), found.get("log")),
    )


def read_proof(mark: Any, log_window: Any) -> Proof:
    """Return a proof of its JSON form: a pair and a triple, or nulls.

    Raises TypeError, ValueError.
    """
    return Proof(
        None if mark is None else _pair(*mark),
        None if log_window is None else (*_pair(*log_window[:2]), str(log_window[2])),
    )


def _pair(scn: Any, timestamp_ns: Any) -> tuple[int, int]:
    return _number(scn), _number(timestamp_ns)


def _number(value: Any) -> int:
    # Not isinstance, as a bool is an int, too.
    if type(value) is not int or not -1 <= value <= MAX_SCN:
        raise ValueError(f"{value!r} is not an integer from -1 on")
    return value
