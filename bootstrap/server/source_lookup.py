"""Finds the store of a request's sources among the stores of the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.schemas.errors import (
    BootstrapTooOldError,
    DatabusError,
    InvalidParameterError,
    UnknownSourceError,
)
from databus.schemas.protocol import Parameter

Listed = Mapping[str, Sequence[str]]  # physical source → names of its sources in the settings


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a server, by physical source; a store that does not exist yet is in neither.

    `problems` has the errors of those that cannot be opened.
    """

    open: Mapping[str, Store]
    problems: Mapping[str, DatabusError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceLookup:
    """The sources of one request, all in one store, in the requested order."""

    store: Store
    sources: tuple[SourceState, ...]

    @property
    def src_ids(self) -> list[int]:
        """Their ids."""
        return [source.src_id for source in self.sources]


def choose_sources(texts: Sequence[str], stores: Stores, listed: Listed) -> SourceLookup:
    """Return the sources with these names or ids.

    Raises UnknownSourceError, BootstrapTooOldError for a source whose producer
    has not begun yet, BootstrapError for one whose store cannot be opened,
    InvalidParameterError when they are not in one store.
    """
    held = {name: store.sources() for name, store in stores.open.items()}
    found = {text: _places_of(text, held) for text in texts}
    for text, places in found.items():
        if not places:
            raise _missing(text, held, listed, stores.problems)
    common = set.intersection(*(set(places) for places in found.values()))
    # An id may belong to a source in each of several stores; a name does not.
    if len(common) != 1:
        raise InvalidParameterError(Parameter.SOURCES, ",".join(texts), _explain(found, common))
    (name,) = common
    return SourceLookup(stores.open[name], tuple(places[name] for places in found.values()))


def all_sources(stores: Stores) -> list[tuple[Store, SourceState]]:
    """Return every source that is served now or will be."""
    return [
        (store, source)
        for store in stores.open.values()
        for source in store.sources()
        if source.status is not SourceStatus.INACTIVE
    ]


def _places_of(text: str, held: Mapping[str, Iterable[SourceState]]) -> dict[str, SourceState]:
    return {
        name: source
        for name, sources in held.items()
        for source in sources
        if text in (source.name, str(source.src_id))
    }


def _missing(
    text: str,
    held: Mapping[str, Iterable[SourceState]],
    listed: Listed,
    problems: Mapping[str, DatabusError],
) -> DatabusError:
    for name, sources in listed.items():
        if text in sources and name in problems:
            return problems[name]
        if text in sources:
            return BootstrapTooOldError(
                f"source {text}: its producer has not read from a relay yet; ask again later"
            )
    if problems:  # one of them may have it
        return next(iter(problems.values()))
    known = [f"{s.src_id} ({s.name})" for sources in held.values() for s in sources]
    return UnknownSourceError(text, known)


def _explain(found: Mapping[str, Mapping[str, SourceState]], common: Iterable[str]) -> str:
    if common:
        return f"these ids are in several physical sources ({', '.join(sorted(common))}): use names"
    names = sorted({name for places in found.values() for name in places})
    return f"they belong to several physical sources ({', '.join(names)}): ask for one at a time"
