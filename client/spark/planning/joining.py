"""Plan the batches of a query whose sources change: tables are added, and taken out.

A source that a query begins to read later is at the query's place, unless option
`newSources` says that the rows which it had before come first. Then it joins: it has a
place of its own, in a snapshot and then in the log behind it, while the other sources
go on. (A table that was made while it was captured has all its rows in the log.) When
it has reached their place it is one of them. Until then it cannot be read in the order
of the others' transactions.

A source that the query's options do not choose any more is left out. One that they
choose, but that no relay has, is an error: its changes may be missing.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.measure_client import MeasureClient
from databus.client.spark.planning.offsets import (
    AtScn,
    Group,
    InSnapshot,
    Place,
    Places,
    QueryOffset,
    check_physical,
    unmarked,
)
from databus.client.spark.planning.planner import Planner, shared
from databus.conf.named_places import Word
from databus.conf.patterns import NamePatterns, is_pattern
from databus.schemas.errors import (
    BootstrapTooOldError,
    CheckpointError,
    DatabusError,
    TableStoppedError,
    UnknownSourceError,
)

log = logging.getLogger(__name__)

# Between two tries to read a source that cannot be read yet: so long, or so many times as long as
# the first one took.
_LEAST_WAIT_S, _REST = 1.0, 10.0

Homes = Mapping[str, str]  # the physical source of each source


class Move(NamedTuple):
    """What a batch reads of one group: from a place on, up to another."""

    group: Group
    start: Place | None
    end: Place


def moves(start: QueryOffset, end: QueryOffset, homes: Homes) -> Iterator[Move]:
    """Yield what a batch reads between two offsets; raises UnknownSourceError. Pure."""
    missing = [source for source in end.sources if source not in homes]
    if missing:
        raise UnknownSourceError(missing[0], sorted(homes))
    start = _left_to(start, end.sources)
    own = [source for source in end.sources if source in {**start.joining, **end.joining}]
    for physical, place in end.places.items():
        together = tuple(s for s in end.sources if homes[s] == physical and s not in own)
        if together:
            yield Move(Group(physical, together), start.places.get(physical), place)
    for source in own:
        physical = homes[source]
        # One that has caught up is at the end of the others, which may say where *they* began.
        further = end.joining.get(source) or _without_begin(end.places[physical])
        yield Move(Group(physical, (source,)), start.joining.get(source), further)


class JoiningPlanner:
    """Plans batches by a `Planner` for each group of sources that are at one place."""

    def __init__(
        self,
        measure_client: MeasureClient,
        planner: Planner,
        options: SourceOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = measure_client
        self._planner = planner
        self._wanted = NamePatterns(options.sources)
        self._wanted_by_patterns = any(map(is_pattern, options.sources))
        self._reads_new_whole = options.reads_new_whole
        # Why sources that the relays have are not read yet, or not further.
        self.waiting: dict[str, DatabusError] = {}
        self._next_try_s: dict[str, float] = {}
        self._next_look_s = 0.0
        self._clock = clock
        self._rungs: dict[str, str] = {}

    @property
    def rungs(self) -> Mapping[str, str]:
        """Where the last planned batch is read, by physical source, but for what joins."""
        return self._rungs

    def next_offset(
        self, start: QueryOffset, rows: int | None, targets: Mapping[str, int] | None = None
    ) -> QueryOffset:
        """Return the end of a batch of at most about `rows` rows; `start` if nothing is new.

        The end does not pass `targets`, by physical source. Raises DatabusError.
        """
        self._client.look_again()
        groups = self._client.groups
        check_physical(start.places, [group.physical_source for group in groups])
        self._check_kept(start)
        start = _left_to(start, [source for group in groups for source in group.sources])
        self._rungs = {}
        share = shared(rows, len(groups) + len(start.joining))
        end = QueryOffset(())
        for group in groups:
            target = None if targets is None else targets[group.physical_source]
            further = self._advance(start, group, share, target)
            end = QueryOffset(
                (*end.sources, *further.sources),
                {**end.places, **further.places},
                {**end.joining, **further.joining},
            )
        # Before the first place there is nothing to tell.
        return replace(end, sources=tuple(sorted(end.sources))) if end.places else start

    def _check_kept(self, start: QueryOffset) -> None:
        """Raise an error if sources are missing whose changes the query wants."""
        if not start.places:
            return
        offered = {source for group in self._client.groups for source in group.sources}
        kept = [source for source in start.sources if self._wanted.match(source)]
        if not kept:
            raise CheckpointError(
                f"the query's checkpoint is for sources {', '.join(start.sources)}, but the query "
                f"now reads {', '.join(sorted(offered))}; start it with another checkpoint folder"
            )
        for source in kept:
            if source not in offered:
                raise UnknownSourceError(source, sorted(offered))

    def _advance(
        self, start: QueryOffset, group: Group, share: int | None, target: int | None
    ) -> QueryOffset:
        """Return the end for the sources of one physical source."""
        physical = group.physical_source
        place = start.places.get(physical)
        if place is None:  # nothing of it was read yet: its sources begin together
            group, begun = self._begin_together(group, share, target)
            self._note_rung(physical)
            return QueryOffset(group.sources, {} if begun is None else {physical: begun})
        added = [source for source in group.sources if source not in start.sources]
        due = [source for source in added if self._is_due(source)]
        own = [source for source in group.sources if source in start.joining]
        own += due if self._reads_new_whole else []
        together = tuple(s for s in group.sources if s not in own and (s in due or s not in added))
        end = place
        if together:
            together, further = self._go_on(Group(physical, together), place, share, target)
            end = place if further is None else further
            self._note_rung(physical)
        joining: Places = {}
        for source in own:
            known = start.joining.get(source)
            group = Group(physical, (source,))
            found = (
                self._begin(group, end, share)
                if known is None
                else self._go_on_joining(group, known, end, share)
            )
            if found is not None:
                joining[source] = found
        if not together and joining:
            end = _furthest_back(end, joining)
        joined = tuple(joining)
        # One that has just begun is not at the place where the others begin the batch.
        joining = {
            source: one for source, one in joining.items() if source in due or not _is_at(one, end)
        }
        return QueryOffset((*together, *joined), {physical: end}, joining)

    def _that_can_begin(self, group: Group) -> Group:
        """Leave out sources of patterns that the bootstrap servers do not have yet: they join."""
        if not (self._wanted_by_patterns and self._reads_new_whole):
            return group
        kept = self._client.kept()
        return group._replace(sources=tuple(s for s in group.sources if s in kept) or group.sources)

    def _begin_together(
        self, group: Group, share: int | None, target: int | None
    ) -> tuple[Group, Place | None]:
        """Return the sources that begin, and their place; None as long as they cannot begin.

        One whose rows no bootstrap server has read yet, or cannot read, does not hold the others:
        it joins later. Raises DatabusError.
        """
        if self._planner.start is not Word.BEGINNING:  # a bootstrap server may not be needed
            sources, begun = self._go_on(group, None, share, target)
            return group._replace(sources=sources), begun
        group = self._that_can_begin(group)
        begun_s = self._clock()
        begun = self._advanced(group, None, share, target)
        if begun is None and self._is_to_look():
            ready = self._client.servable(group)
            now_s = self._clock()
            self._next_look_s = now_s + max(_LEAST_WAIT_S, _REST * (now_s - begun_s))
            if ready:
                group = group._replace(sources=ready)
                begun = self._advanced(group, None, share, target)
        return group, begun

    def _is_to_look(self) -> bool:
        """Return whether some sources alone may begin; looked at from time to time."""
        may_join = self._reads_new_whole and self._client.has_bootstrap
        return may_join and self._clock() >= self._next_look_s

    def _advanced(
        self, group: Group, place: Place | None, share: int | None, target: int | None
    ) -> Place | None:
        """Return the further place of sources; the same while a bootstrap server is behind it."""
        try:
            further = self._planner.advance(group, place, share, target)
        except BootstrapTooOldError as error:
            self._wait_for(group.sources, error)
            return place
        self._are_read(group.sources)
        return further

    def _go_on(
        self, group: Group, place: Place | None, share: int | None, target: int | None
    ) -> tuple[tuple[str, ...], Place | None]:
        """Return the sources that go on, and their place.

        One that its relay has stopped, or that the bootstrap server of a snapshot has given up,
        is left out. It joins, read whole, when that is over. Raises DatabusError.
        """
        while True:
            try:
                return group.sources, self._advanced(group, place, share, target)
            except (TableStoppedError, UnknownSourceError) as error:
                gone = self._gone(group, error) if self._reads_new_whole else set()
                if not 0 < len(gone) < len(group.sources):
                    raise
                self._wait_for(sorted(gone), error, _LEAST_WAIT_S)
                group = group._replace(sources=tuple(s for s in group.sources if s not in gone))
                place = None if place is None else unmarked(place)

    def _gone(self, group: Group, error: TableStoppedError | UnknownSourceError) -> set[str]:
        """Return the sources of a group that an error is of."""
        if isinstance(error, TableStoppedError):
            return {error.source} & {*group.sources}
        # A server's answer does not say which source it does not know.
        return {*group.sources}.difference(
            self._client.kept() if self._client.has_bootstrap else ()
        )

    def _go_on_joining(
        self, group: Group, place: Place, end: Place, share: int | None
    ) -> Place | None:
        """Return the further place of a source that joins; None if it is left out again."""
        try:
            further = self._join(group, place, end, share)
        except BootstrapTooOldError as error:
            self._wait_for(group.sources, error)
            return place
        except (TableStoppedError, UnknownSourceError) as error:
            self._wait_for(group.sources, error, _LEAST_WAIT_S)
            return None
        self._are_read(group.sources)
        return further

    def _wait_for(self, sources: Sequence[str], error: DatabusError, wait_s: float = 0.0) -> None:
        """Note and log why sources are not read; try one that is new again after `wait_s`."""
        # A server that seeds a table says how many rows it has by now.
        text = _without_numbers(error)
        if new := [one for one in sources if _without_numbers(self.waiting.get(one)) != text]:
            more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
            log.warning("%s%s: not read: %s", new[0], more, error)
        self.waiting |= dict.fromkeys(sources, error)
        self._next_try_s |= dict.fromkeys(sources, self._clock() + wait_s)

    def _are_read(self, sources: Sequence[str]) -> None:
        for source in sources:
            self.waiting.pop(source, None)

    def _is_due(self, source: str) -> bool:
        """Return whether to try to read a source that is not read yet."""
        return source not in self.waiting or self._clock() >= self._next_try_s[source]

    def _note_rung(self, physical: str) -> None:
        if (rung := self._planner.rungs.get(physical)) is not None:
            self._rungs[physical] = rung

    def _begin(self, group: Group, end: Place, share: int | None) -> Place | None:
        """Return the first place of a source that joins; None as long as it cannot begin."""
        begun_s = self._clock()
        try:
            # A relay that has stopped it says so; what it has up to there would be read in vain.
            self._client.ring_from(group, Word.LATEST)
            made = self._client.made_at(group.sources[0])
            if made is None:
                further = self._planner.begin(group, Word.BEGINNING, share, None)
            else:
                # The log from its CREATE on has every row that the table ever had.
                begin = AtScn(made - 1, from_scn=made - 1)
                further = self._join(group, begin, end, share)
                if isinstance(further, AtScn):
                    further = replace(further, from_scn=made - 1)
        except DatabusError as error:
            # The others wait while servers are asked that do not answer: not too often.
            lasted_s = self._clock() - begun_s
            self._wait_for(group.sources, error, max(_LEAST_WAIT_S, _REST * lasted_s))
            return None
        if further is not None:
            self._are_read(group.sources)
        return further

    def _join(self, group: Group, place: Place, end: Place, share: int | None) -> Place:
        """Return the further place of a source that joins; it does not pass the others' end."""
        if isinstance(place, InSnapshot):
            return self._planner.advance(group, place, share, None) or place
        if not isinstance(end, AtScn):
            return place
        return self._planner.advance(group, place, share, end.scn) or place


def _without_numbers(error: DatabusError | None) -> str:
    return re.sub(r"\d+", "", str(error))


def _left_to(start: QueryOffset, sources: Iterable[str]) -> QueryOffset:
    """Return where sources begin that may be fewer than those which have got there."""
    if {*start.sources} <= {*sources}:
        return start
    return replace(start, places={name: unmarked(one) for name, one in start.places.items()})


def _is_at(place: Place, end: Place) -> bool:
    return isinstance(place, AtScn) and isinstance(end, AtScn) and place.scn == end.scn


def _furthest_back(end: Place, joining: Places) -> Place:
    """Return the place of a physical source of which every source joins: nobody is ahead."""
    found = [place for place in joining.values() if isinstance(place, AtScn)]
    if len(found) < len(joining):
        return end
    return _without_begin(min(found, key=lambda place: place.scn))


def _without_begin(place: Place) -> Place:
    return replace(place, from_scn=None) if isinstance(place, AtScn) else place
