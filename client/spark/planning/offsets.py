"""Where a query is in each physical source, and Spark's offsets that say so. Pure.

Spark compares offsets as JSON texts and keeps only the end of each micro-batch:
where the first one begins it asks again at every start until that batch is
done. So a start in words (`latest`, `earliest`, …) is never an offset of a
source: the query's first offset is empty, the first end that is planned for a
physical source has the SCN that the word turned out to be (`from`), and from
then on it is in Spark's own log. Nothing moves by itself between two starts.

    {"physical": {"shop": {"from": 90, "scn": 120, "timeMs": …}}, "sources": …}
    {"physical": {"shop": {"snapshot": {…}}}, "sources": ["shop.orders"], "v": 1}
    {"physical": {…}, "sources": …, "stopped": {"shop": "unreachable"}, "v": 1}

The sources are kept with them: one that joins later would lack what came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from databus.schemas.errors import CheckpointError
from databus.schemas.scn import MAX_SCN

VERSION = 1


@dataclass(frozen=True, slots=True)
class AtScn:
    """Everything up to window `scn` is read.

    `from_scn`: where the first batch of a physical source begins, in its end alone.
    `scn` -1: of a relay that had no window yet, so that all of them are to come.
    `time_ms`: of the commit of that window, 0 when not known.
    """

    scn: int
    time_ms: int = 0
    from_scn: int | None = None


@dataclass(frozen=True, slots=True)
class InSnapshot:
    """Rows of a snapshot are read, up to row `row` of `source`; sources go in their order.

    The snapshot is as of `at_scn` and has what changed after `since_scn` (0: the
    whole table), out of the store `store` of `server`. `is_read`: no row of the
    last source is left.
    """

    at_scn: int
    since_scn: int
    source: str
    row: int
    server: str
    store: str
    is_read: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it has every row, so that what it has not is gone."""
        return self.since_scn <= 0

    def is_same_session(self, other: Place | None) -> bool:
        """Whether the other is in the same snapshot, farther or not."""
        return isinstance(other, InSnapshot) and self._session == other._session

    @property
    def _session(self) -> tuple[int, int, str]:
        return self.at_scn, self.since_scn, self.store


Place = AtScn | InSnapshot
Places = dict[str, Place]  # by physical source


def to_offset(
    places: Mapping[str, Place], sources: Iterable[str], stopped: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return Spark's offset, with its keys in order: equal places give equal texts.

    `stopped`: the states of physical sources that are not captured. A state that
    changes makes a batch without rows, so that whoever looks at the progress sees it.
    """
    offset = {
        "physical": {name: _to_json(places[name]) for name in sorted(places)},
        "sources": sorted(sources),
    }
    if stopped:
        offset["stopped"] = {name: stopped[name] for name in sorted(stopped)}
    return offset | {"v": VERSION}


def from_offset(offset: Mapping[str, Any], sources: Iterable[str]) -> Places:
    """Read an offset of a query of these sources; raises CheckpointError."""
    try:
        if offset["v"] != VERSION:
            raise ValueError(f"version {offset['v']}, not {VERSION}")
        places = {str(name): _from_json(value) for name, value in offset["physical"].items()}
        kept = sorted(map(str, offset["sources"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the query's checkpoint has an offset that makes no sense: {offset!r}: {error!r}; "
            "start the query with another checkpoint folder"
        ) from error
    if kept != sorted(sources):
        raise CheckpointError(
            f"the query's checkpoint is one of sources {', '.join(kept)}, and now it reads "
            f"{', '.join(sorted(sources))}; start it with another checkpoint folder"
        )
    return places


def start_of(end: AtScn, start: Place | None) -> int:
    """Return the SCN after which the windows of a batch begin; raises CheckpointError."""
    if end.from_scn is not None:
        scn = end.from_scn
    elif isinstance(start, AtScn):
        scn = start.scn
    elif isinstance(start, InSnapshot):
        scn = start.at_scn
    else:
        raise CheckpointError(f"the query's checkpoint does not say where scn {end.scn} came from")
    if scn > end.scn:
        raise CheckpointError(f"the query's checkpoint goes back from scn {scn} to {end.scn}")
    return scn


def after_rows(place: InSnapshot, row: int, is_read: bool = False) -> InSnapshot:
    """Return where more rows of the same source lead."""
    return replace(place, row=row, is_read=is_read)


def _to_json(place: Place) -> dict[str, Any]:
    if isinstance(place, AtScn):
        values: dict[str, Any] = {} if place.from_scn is None else {"from": place.from_scn}
        return values | {"scn": place.scn, "timeMs": place.time_ms}
    snapshot = {
        "atScn": place.at_scn,
        "isRead": place.is_read,
        "row": place.row,
        "server": place.server,
        "sinceScn": place.since_scn,
        "source": place.source,
        "store": place.store,
    }
    return {"snapshot": snapshot}


def _from_json(value: Mapping[str, Any]) -> Place:
    if "snapshot" not in value:
        from_scn = value.get("from")
        return AtScn(
            _number(value["scn"]),
            _number(value["timeMs"]),
            None if from_scn is None else _number(from_scn),
        )
    found = value["snapshot"]
    return InSnapshot(
        at_scn=_number(found["atScn"]),
        since_scn=_number(found["sinceScn"]),
        source=str(found["source"]),
        row=_number(found["row"]),
        server=str(found["server"]),
        store=str(found["store"]),
        is_read=bool(found["isRead"]),
    )


def _number(value: Any) -> int:
    if type(value) is not int or not -1 <= value <= MAX_SCN:
        raise ValueError(f"{value!r} is no number from -1 on")
    return value
