"""The schema registry: the versions of each source's schema, by SCN.

A source's history only grows at its end: versions count from 1, and no version starts
before its predecessor. An id, version or text that was returned once never changes, so
that events that refer to it stay readable for ever. Any thread may call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import attrgetter
from threading import Lock

from databus.registry.compatibility import check_new_version, parse_record
from databus.registry.store import SchemaStore, StoredVersion
from databus.registry.version import SchemaVersion
from databus.schemas.errors import SchemaError, SchemaNotFoundError, UnknownSourceError

MAX_SRC_ID = 32767


class SchemaRegistry:
    """The schema histories of all sources, loaded from a store and saved in it.

    Raises SchemaError when the store cannot be read or holds a broken history.
    """

    def __init__(self, store: SchemaStore) -> None:
        self._store = store
        self._lock = Lock()
        self._sources = store.load_sources()
        self._stored: dict[str, list[StoredVersion]] = {}
        for version in store.load_versions():
            _check_follows(self._stored.setdefault(version.source, []), version)
            self._stored[version.source].append(version)
        self._histories = {name: self._with_id(name) for name in self._sources}
        self._by_id = {v.schema_id: v for h in self._histories.values() for v in h}

    def sources(self) -> dict[str, int]:
        """Return every source's id, by name."""
        with self._lock:
            return dict(self._sources)

    def add_source(self, name: str, src_id: int) -> None:
        """Assign an id to a source; does nothing when the source has this id already.

        Raises SchemaError when the source has another id, or another source has this id:
        events in rings and clients' files carry the id.
        """
        self.add_sources({name: src_id})

    def add_sources(self, ids: Mapping[str, int]) -> None:
        """Assign ids to sources, as `add_source` does; all or none."""
        with self._lock:
            new = {name: src_id for name, src_id in ids.items() if self._is_new(name, src_id)}
            owners = {src_id: name for name, src_id in self._sources.items()}
            for name, src_id in new.items():
                owner = owners.setdefault(src_id, name)
                if owner != name:
                    raise SchemaError(f"source {name}: id {src_id} belongs to {owner}")
            if new:
                self._store.save_sources(new)
            self._sources |= new
            for name in new:
                self._histories[name] = self._with_id(name)
                self._by_id |= {v.schema_id: v for v in self._histories[name]}

    def _is_new(self, name: str, src_id: int) -> bool:
        known = self._sources.get(name)
        if known is not None and known != src_id:
            raise SchemaError(f"source {name} has id {known}, and an id never changes")
        if not 1 <= src_id <= MAX_SRC_ID:
            raise SchemaError(f"source {name}: id {src_id} is not in 1..{MAX_SRC_ID}")
        return known is None

    def register(
        self, source: str, text: str, start_scn: int, *, check: bool = True
    ) -> SchemaVersion:
        """Return the version of a schema text that starts at `start_scn`; add it if it is new.

        Reading a part of the log again returns the same versions as before. `check=False`
        accepts a version that is incompatible with its predecessor: a table may be altered
        in any way, and its rows must be captured.

        Raises UnknownSourceError, IncompatibleSchemaError naming the field, and SchemaError
        for a text that is no record or an SCN inside the history.
        """
        with self._lock:
            history = self._history(source)
            known = _find_known(history, text, start_scn)
            if known is not None:
                return known
            parse_record(text)
            if history and check:
                check_new_version(history[-1].text, text)
            return self._append([(source, text, start_scn)])[0]

    def register_unchecked(self, wanted: Sequence[tuple[str, str, int]]) -> list[SchemaVersion]:
        """Register versions (source, text, SCN) as `register` does without a check; all or none.

        Together they cost as much as one.
        """
        with self._lock:
            return self._append(wanted)

    def versions(self, source: str) -> Sequence[SchemaVersion]:
        """Return a source's history, oldest first; raises UnknownSourceError."""
        with self._lock:
            return tuple(self._history(source))

    def latest(self, source: str) -> SchemaVersion:
        """Return the newest version; raises SchemaNotFoundError when there is none yet."""
        with self._lock:
            history = self._history(source)
        if not history:
            raise SchemaNotFoundError(f"source {source} has no schema yet")
        return history[-1]

    def at(self, source: str, scn: int) -> SchemaVersion:
        """Return the version in force at an SCN; raises SchemaNotFoundError before the first."""
        with self._lock:
            version = _in_force(self._history(source), scn)
        if version is None:
            raise SchemaNotFoundError(f"source {source} has no schema at scn {scn}")
        return version

    def by_id(self, schema_id: bytes) -> SchemaVersion:
        """Return the newest version of that id; raises SchemaNotFoundError."""
        with self._lock:
            version = self._by_id.get(schema_id)
        if version is None:
            raise SchemaNotFoundError(f"no schema has the id {schema_id.hex()}")
        return version

    def text_of(self, schema_id: bytes) -> str:
        """Return the text of that id; raises SchemaNotFoundError."""
        return self.by_id(schema_id).text

    def _history(self, source: str) -> list[SchemaVersion]:
        if source not in self._histories:
            raise UnknownSourceError(source, sorted(self._sources))
        return self._histories[source]

    def _append(self, wanted: Sequence[tuple[str, str, int]]) -> list[SchemaVersion]:
        """Return the versions of texts, saved together where they are new."""
        found: list[SchemaVersion] = []
        new: list[tuple[StoredVersion, SchemaVersion]] = []
        more: dict[str, list[SchemaVersion]] = {}
        for source, text, start_scn in wanted:
            history = self._history(source)
            if source in more:
                history = [*history, *more[source]]
            known = _find_known(history, text, start_scn)
            if known is None:
                parse_record(text)
                number = len(history) + 1
                stored = StoredVersion(source, number, text, start_scn)
                _check_follows(history[-1:], stored)
                known = SchemaVersion(source, self._sources[source], number, text, start_scn)
                new.append((stored, known))
                more.setdefault(source, []).append(known)
            found.append(known)
        if new:
            # First, so that every version that is returned is durable.
            self._store.save_versions([stored for stored, _ in new])
        for stored, version in new:
            self._stored.setdefault(stored.source, []).append(stored)
            self._histories[stored.source].append(version)
            self._by_id[version.schema_id] = version
        return found

    def _with_id(self, source: str) -> list[SchemaVersion]:
        src_id = self._sources[source]
        return [
            SchemaVersion(v.source, src_id, v.version, v.text, v.start_scn)
            for v in self._stored.get(source, [])
        ]


def _find_known(history: list[SchemaVersion], text: str, start_scn: int) -> SchemaVersion | None:
    """Return the existing version for a text, or None.

    The version in force at the SCN is preferred: when the log is read again after a crash,
    a later version may exist already.
    """
    in_force = _in_force(history, start_scn)
    if in_force is not None and in_force.text == text:
        return in_force
    if history and history[-1].text == text:
        return history[-1]
    return None


def _in_force(history: list[SchemaVersion], scn: int) -> SchemaVersion | None:
    count = bisect_right(history, scn, key=attrgetter("start_scn"))
    return history[count - 1] if count else None


def _check_follows(
    history: Sequence[SchemaVersion | StoredVersion], version: StoredVersion
) -> None:
    """Raise SchemaError for a version that does not follow the last one of a history."""
    expected = history[-1].version + 1 if history else 1
    if version.version != expected:
        raise SchemaError(f"{version.source}: version {version.version} comes where {expected} is")
    if history and version.start_scn < history[-1].start_scn:
        raise SchemaError(
            f"{version.source}: version {version.version} would start at scn {version.start_scn}, "
            f"before version {expected - 1}, which starts at {history[-1].start_scn}"
        )
