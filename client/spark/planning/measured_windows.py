"""The windows of this project's relays, for planning: the relays measure them (`/measure`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import quote

from databus.client.responses import read_position
from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.capture_states import CaptureStates, Stopped
from databus.client.spark.planning.offsets import AtScn, Group
from databus.client.spark.planning.requests import (
    LogMeasure,
    filters_text,
    log_measure,
    measure_parameters,
    online_at,
    proved,
)
from databus.client.spark.planning.server_pool import ServerPool
from databus.client.subscription import chosen_sources
from databus.conf.named_places import (
    NamedPlace,
    ScnPlace,
    Word,
)
from databus.conf.patterns import is_pattern
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SchemaNotFoundError, ScnNotFoundError, ServerError
from databus.schemas.protocol import Parameter
from databus.schemas.table_change import change_of

Homes = Mapping[str, tuple[str, int]]  # by source: its physical source, and its id


class MeasuredWindows:
    """The windows of the relays of one query."""

    idle_s = 0.03
    tells_evicted = True
    gone_advice = "give the option bootstrapServers, or start with another checkpoint folder"

    def __init__(self, options: SourceOptions, relays: ServerPool, homes: Homes) -> None:
        """Raise UnknownSourceError for a source that the relays do not have."""
        self._options = options
        self._relays = relays
        self._states = CaptureStates(relays)
        self.src_ids: Mapping[str, int] = {}
        self.by_physical: Mapping[str, tuple[str, ...]] = {}
        self._take(homes)

    def _take(self, homes: Homes) -> None:
        found: dict[str, list[str]] = {}
        sources = chosen_sources(self._options.sources, homes)
        for source in sources:
            found.setdefault(homes[source][0], []).append(source)
        self.src_ids = {source: homes[source][1] for source in sources}
        self.by_physical = {name: tuple(found[name]) for name in sorted(found)}

    def look_again(self) -> None:
        """Ask again for the sources that the relays have, if the query chooses by patterns."""
        if any(map(is_pattern, self._options.sources)):
            self._take(find_homes(self._relays))

    def stopped(self, at_once: bool) -> Mapping[str, Stopped]:
        """Return the physical sources that the relays do not capture."""
        return self._states.look(self.by_physical, at_once=at_once)

    def resolved(self, group: Group, start: NamedPlace) -> NamedPlace:
        """Return the start, with an SCN instead of a time, a GTID or a place in a binlog."""
        if isinstance(start, Word | ScnPlace):
            return start  # what a ring lacks, a bootstrap server may have
        first, *others = (str(self.src_ids[source]) for source in group.sources)
        parameters = {"at": str(start), "others": ",".join(others)}
        answer = self._relays.get(f"/api/v1/sources/{first}/position", parameters)
        return ScnPlace(read_position(answer.server, bytes(answer.body)))

    def after(self, group: Group, place: AtScn, rows: int | None, target: int | None) -> LogMeasure:
        """Measure a ring after a window, or else from the next SCN on.

        The next SCN may be the first of a ring that has nothing older. This is not tried
        after 0, which is no window: it asks for rows that no log has. Raises
        ScnNotFoundError; OtherLogError if the place is of another log.
        """
        scn = place.scn
        try:
            return self._measure(group, proved(online_at(scn), place.proof), {}, rows, target)
        except ScnNotFoundError:
            if scn > 0:
                next_one = proved(online_at(scn + 1, 0), place.proof)
                with suppress(ScnNotFoundError):
                    return self._measure(group, next_one, {}, rows, target)
            raise

    def from_start(
        self, group: Group, start: NamedPlace, rows: int | None, target: int | None
    ) -> LogMeasure:
        """Measure a ring from the place that the option `start` names."""
        words: dict[str, str] = {}
        if start is Word.LATEST:
            words[Parameter.FROM_LATEST] = "true"
        return self._measure(group, Checkpoint.flexible(), words, rows, target)

    def made_at(self, source: str) -> int | None:
        """Return the SCN of a table's CREATE, or None; raises SchemaNotFoundError."""
        versions = self._relays.register([source])[source]
        first = min(versions, key=lambda one: one.version, default=None)
        if first is None:
            raise SchemaNotFoundError(f"the relay has no schema of source {source} yet")
        change = change_of(first.text)
        return change.scn if change is not None and change.is_emptied else None

    def oldest(self, name: str) -> int:
        """Return the SCN of the oldest window in the ring."""
        answer = self._relays.get(f"/bufferInfo/inbound/{quote(name)}/0", {})
        return int(answer.json()["minScn"])

    def _measure(
        self,
        group: Group,
        checkpoint: Checkpoint,
        words: Mapping[str, str],
        rows: int | None,
        target: int | None,
    ) -> LogMeasure:
        options, sources = self._options, group.sources
        parameters = measure_parameters(sources, checkpoint, rows, options.max_bytes_per_trigger)
        parameters |= {Parameter.MARK: "true"} | dict(words)
        if target is not None:
            parameters[Parameter.UNTIL_SCN] = str(target)
        wanted = {source: one for source, one in options.filters.items() if source in sources}
        filters = filters_text(wanted, self.src_ids)
        if filters is not None:
            parameters[Parameter.FILTERS] = filters
        answer = self._relays.get("/measure", parameters, checkpoint.window_scn)
        return log_measure(answer.server, answer.json())


def find_homes(relays: ServerPool) -> Homes:
    """Return where each source of the relays is; raises ServerError for relays of others."""
    answer = relays.get("/physicalSources", {})
    listed = answer.json()
    try:
        return {s["name"]: (p["name"], int(s["id"])) for p in listed for s in p["sources"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(
            answer.server, f"the answer to /physicalSources is malformed: {error!r}"
        ) from error
