"""The catalog of a relay: its sources' names, ids and physical sources.

An id is part of every event and of every client's checkpoint directory, so it must never
change. An id that was assigned before (`known`, from the registry) is kept, an explicit one
is used as it is, and the remaining sources get the lowest free ids, in the order of the
settings over all physical sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from databus.conf.settings import PhysicalSourceSettings, SourceSettings
from databus.registry.registry import SchemaRegistry
from databus.schemas.avro_rows import captured_table
from databus.schemas.errors import SettingsError, UnknownSourceError

SRC_ID_MAX = 32767
_ID = re.compile(r"-?[0-9]{1,10}")


class CatalogContent(NamedTuple):
    """The content of a catalog; see `Catalog`."""

    ids: Mapping[str, int]
    members: Mapping[str, tuple[str, ...]]
    former_ids: frozenset[int] = frozenset()
    new: frozenset[str] = frozenset()
    growing: frozenset[str] = frozenset()


class Catalog:
    """The sources of a relay, by name and by id; `adopt` changes them while it runs.

    `ids` is in the order of the settings; `members` has the source names of each physical
    source. `former_ids` are those of sources that are no longer listed, whose events may still
    be in a ring. `new` has the names of sources that never were listed before. Physical sources
    that are `growing` have patterns, which may find more.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        members: Mapping[str, tuple[str, ...]],
        former_ids: frozenset[int] = frozenset(),
        new: frozenset[str] = frozenset(),
        growing: frozenset[str] = frozenset(),
    ) -> None:
        # One value, so that another thread never sees half a change.
        self._content = CatalogContent(ids, members, former_ids, new, growing)

    def adopt(self, other: Catalog) -> None:
        """Take the content of another catalog."""
        self._content = other._content

    def copy(self) -> Catalog:
        """Return a catalog with the content of now."""
        return Catalog(*self._content)

    @property
    def ids(self) -> Mapping[str, int]:
        """The id of each source."""
        return self._content.ids

    @property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """The sources of each physical source."""
        return self._content.members

    @property
    def former_ids(self) -> frozenset[int]:
        """The ids of sources that are no longer listed."""
        return self._content.former_ids

    @property
    def new(self) -> frozenset[str]:
        """The sources that never were listed before."""
        return self._content.new

    @property
    def growing(self) -> frozenset[str]:
        """The physical sources whose patterns may find more sources."""
        return self._content.growing

    def src_ids_of(self, physical_source: str) -> dict[str, int]:
        """Return name → id of the sources of one physical source."""
        content = self._content
        return {name: content.ids[name] for name in content.members[physical_source]}

    def name_of(self, src_id: int) -> str:
        """Return the name of a source; raise UnknownSourceError."""
        for name, known in self.ids.items():
            if known == src_id:
                return name
        raise UnknownSourceError(src_id, self._shown())

    def resolve(self, text: str) -> int:
        """Return the id for an id or a name given as text; raise UnknownSourceError."""
        text = text.strip()
        if text in self.ids:
            return self.ids[text]
        if not _ID.fullmatch(text):
            raise UnknownSourceError(text, self._shown())
        self.name_of(int(text))
        return int(text)

    def physical_source_of(self, src_id: int) -> str:
        """Return the name of a source's physical source; raise UnknownSourceError."""
        name = self.name_of(src_id)
        return next(physical for physical, names in self.members.items() if name in names)

    def _shown(self) -> list[str]:
        return [f"{src_id} ({name})" for name, src_id in self.ids.items()]


def make_catalog(
    physical_sources: Sequence[PhysicalSourceSettings],
    known: Mapping[str, int],
    ids_of: Callable[[PhysicalSourceSettings], Mapping[str, int]] | None = None,
) -> Catalog:
    """Return the catalog of the settings; raise SettingsError on a conflict.

    `ids_of` returns the ids that the sources have at other relays, of which those that are not
    known yet are taken over.
    """
    _refuse_doubles([p.name for p in physical_sources], "physical source")
    listed = [source for p in physical_sources for source in _listed(p)]
    _refuse_doubles([source.name for source in listed], "source")
    given = {} if ids_of is None else _given_ids(physical_sources, known, ids_of)
    fixed = dict(_fixed_ids(listed, {**given, **known}))
    _refuse_doubles([str(src_id) for src_id in fixed.values()], "source id")
    # Ids of sources that are no longer listed are not reused: their events may still be
    # in a ring or in a client's store.
    taken = {*fixed.values(), *known.values()}
    free = (src_id for src_id in range(1, SRC_ID_MAX + 1) if src_id not in taken)
    ids = {s.name: fixed[s.name] if s.name in fixed else next(free) for s in listed}
    members = {p.name: tuple(s.name for s in _listed(p)) for p in physical_sources}
    former_ids = frozenset(known.values()) - frozenset(ids.values())
    growing = frozenset(p.name for p in physical_sources if p.patterns)
    return Catalog(ids, members, former_ids, frozenset(ids) - frozenset(known), growing)


def check_tables(
    physical_sources: Sequence[PhysicalSourceSettings], registry: SchemaRegistry
) -> None:
    """Raise SettingsError for a source whose table is another than it was captured from.

    Rows of two tables would come under one name and one id, and nothing would tell consumers.
    """
    known = registry.sources()
    captured = [p for p in physical_sources if not p.is_relay]
    for name, table, _ in (one for p in captured for one in p.named_tables):
        versions = registry.versions(name) if name in known else ()
        before = captured_table(versions[-1].text) if versions else None
        if before not in (None, table):
            raise SettingsError(
                f"source {name} was captured from table {before}, and is now to be captured from "
                f"{table}: a source never changes its table, because its consumers have rows of "
                f"the first; give the source of {table} another name, or write {before} again"
            )


def _listed(physical_source: PhysicalSourceSettings) -> list[SourceSettings]:
    given = {s.name: s.id for s in physical_source.sources if isinstance(s, SourceSettings)}
    return [
        SourceSettings(name=source.name, table=source.table, id=given.get(source.name))
        for source in physical_source.named_tables
    ]


def _given_ids(
    physical_sources: Sequence[PhysicalSourceSettings],
    known: Mapping[str, int],
    ids_of: Callable[[PhysicalSourceSettings], Mapping[str, int]],
) -> Mapping[str, int]:
    """Return the ids that new sources of other relays have there."""
    found: dict[str, int] = {}
    for source in physical_sources:
        new = [one.name for one in _listed(source) if one.id is None and one.name not in known]
        if new and (source.is_relay or source.capture_lease_s is not None):
            given = ids_of(source)
            found |= {name: given[name] for name in new if name in given}
    return found


def _fixed_ids(listed: list[SourceSettings], known: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for source in listed:
        before = known.get(source.name)
        if source.id is not None and before not in (None, source.id):
            raise SettingsError(
                f"source {source.name} has id {before} in the registry and {source.id} in the "
                "settings: an id never changes; set the old one, or use a new data_dir"
            )
        if source.id is not None or before is not None:
            yield source.name, source.id or before or 0


def _refuse_doubles(names: list[str], what: str) -> None:
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise SettingsError(f"{what} {', '.join(doubles)} is listed more than once")
