"""The commit log of a target: applied batches and positions, as one flat map.

Each target stores the map in the same commit as the rows: a Delta table as app
transactions, an Iceberg table as a property, a database in a table of its own. The
entries map names to integers:

    batch:<app>             the last applied batch of this app
    position:<physical>     every change of the log up to this SCN is applied
    owner:<physical>        hash of the app that wrote that position
    source:<source>         the rows are this source's; the greatest number counts
    mode:<mode>             what the table holds; none: the rows of the source
    reached:<source>        the newest SCN up to which a table of versions has followed
    mark:<physical>         the SCN of a window with rows that this log of the source had
    marked:<physical>       the timestamp of that window, in ns; 0: none is known
    part:<source>           1: a load brought only some rows or columns of this source

An app is one checkpoint of one query. Targets of an earlier version have no
`source:` entries; there the apps `shape:<source>` and `reload:<source>` name it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from databus.client.sql.modes import WriteMode

_SOURCE = "source:"
_MODE = "mode:"
REACHED = "reached:"
PART = "part:"
_MARK, _MARKED = "mark:", "marked:"
RELOAD = "reload:"  # the app id prefix of a reload of all rows
# The app id prefixes of what was done to a table's columns alone; the numbers are SCNs.
SHAPE, COLUMNS = "shape:", "columns:"
_LASTING = (_SOURCE, _MODE, PART)
_BATCH = "batch:"
_BEFORE = (f"{_BATCH}{SHAPE}", f"{_BATCH}{RELOAD}")


@dataclass(frozen=True, slots=True)
class CommitLog:
    """The entries of a commit log, and the rules by which they change."""

    entries: Mapping[str, int] = field(default_factory=dict)

    def applied(self, app_id: str) -> int | None:
        """Return the number of an app's last applied batch, or None."""
        return self.entries.get(f"{_BATCH}{app_id}")

    def has(self, app_id: str, batch_id: int) -> bool:
        """Return whether a batch is applied; an app's batches come in order."""
        last = self.applied(app_id)
        return last is not None and last >= batch_id

    def has_all(self, app_id: str, batch_id: int, positions: Mapping[str, int]) -> bool:
        """Return whether a batch is applied: its number, and the newest SCNs that are in it.

        A checkpoint that was set back, or restored, gives the number to other changes. Those
        are applied, like rows of a snapshot alone, of which nothing tells whether they were:
        what a table has already changes nothing.
        """
        if not positions or not self.has(app_id, batch_id):
            return False
        known = self.positions()
        return all(known.get(name, -1) >= scn for name, scn in positions.items())

    def positions(self) -> dict[str, int]:
        """Return the SCN per physical source up to which everything is applied."""
        return self._under("position:")

    def mark(self, physical_source: str) -> tuple[int, int] | None:
        """Return a window (SCN, timestamp in ns) of the log whose changes are applied."""
        entries = self.entries
        timestamp_ns = entries.get(f"{_MARKED}{physical_source}", 0)
        return (entries[f"{_MARK}{physical_source}"], timestamp_ns) if timestamp_ns else None

    def sources(self) -> list[str]:
        """Return the source of the rows; several if the log does not say which of them."""
        numbers = self._under(_SOURCE)
        if numbers:
            return [max(numbers, key=lambda name: numbers[name])]
        return sorted({name for kind in _BEFORE for name in self._under(kind)})

    def mode(self) -> WriteMode:
        """Return what the table holds."""
        return WriteMode(next(iter(self._under(_MODE)), WriteMode.MIRROR))

    def reached(self) -> dict[str, int]:
        """Return per source the newest SCN up to which a table of versions has followed."""
        return self._under(REACHED)

    def is_part(self, source: str) -> bool:
        """Return whether a load brought only some rows or columns of a source."""
        return bool(self.entries.get(f"{PART}{source}"))

    def takes_new(self, physical_source: str, scn: int) -> bool:
        """Return whether a row of an SCN may be inserted if the target does not have it.

        It may not if the target is past that SCN: the row may have been deleted since.
        """
        return self.positions().get(physical_source, scn) <= scn

    def after(
        self,
        app_id: str,
        batch_id: int,
        positions: Mapping[str, int],
        source: str | None = None,
        notes: Mapping[str, int] | None = None,
    ) -> CommitLog:
        """Return the commit log after a batch.

        An app's number never goes back.
        `positions`: newest SCN per physical source of the batch. An app's own
        position never goes back. Another app's position replaces it, even by an
        older SCN, as that app may have started further back. `source`: the source of
        the rows, if the target holds only one. `notes`: entries of other kinds.
        A reload brings another table, which may be older: its number, its position and
        the SCNs of its columns are those that it has.
        """
        read_again = app_id.removeprefix(RELOAD) if app_id.startswith(RELOAD) else None
        number = max(batch_id, self.entries.get(f"{_BATCH}{app_id}", batch_id))
        entries = {**self.entries, f"{_BATCH}{app_id}": number, **(notes or {})}
        if read_again is not None:
            of_columns = (f"{_BATCH}{kind}{read_again}" for kind in (SHAPE, COLUMNS))
            names = [f"{_BATCH}{app_id}", *(name for name in of_columns if name in entries)]
            entries |= dict.fromkeys(names, batch_id)
        owner = _hash_of(app_id)
        for physical, scn in positions.items():
            is_own = entries.get(f"owner:{physical}") == owner and read_again is None
            known = entries.get(f"position:{physical}", scn)
            entries[f"position:{physical}"] = max(known, scn) if is_own else scn
            entries[f"owner:{physical}"] = owner
        numbers = self._under(_SOURCE)
        if read_again is not None and self.is_part(read_again):
            entries[f"{PART}{read_again}"] = 0
        if source is not None and (not numbers or self.sources() != [source]):
            entries[f"{_SOURCE}{source}"] = max(numbers.values(), default=0) + 1
        return CommitLog(entries)

    def apps(self, begin: str) -> list[str]:
        """Return the app ids that begin with some text."""
        return [app for app in self._under(_BATCH) if app.startswith(begin)]

    @staticmethod
    def noted(numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the entries that set the numbers of apps, back too."""
        return {f"{_BATCH}{app}": number for app, number in numbers.items()}

    def not_past(self, source: str, scn: int) -> dict[str, int]:
        """Return what the SCNs become that are noted for a source, if its rows are as of `scn` now.

        A greater one may be of a log that the source had before: its columns are followed from
        that SCN on.
        """
        noted = self._under(_BATCH).items()
        apps = [app for app, number in noted if app.endswith(f":{source}") and number > scn]
        return self.noted(dict.fromkeys(apps, scn))

    def without_batches(self) -> CommitLog:
        """Return the log of a table with the rows of then, if it is not known what they have."""
        kept = {name: one for name, one in self.entries.items() if name.startswith(_LASTING)}
        return CommitLog(kept)

    def _under(self, kind: str) -> dict[str, int]:
        return {
            name.removeprefix(kind): number
            for name, number in self.entries.items()
            if name.startswith(kind)
        }

    def changed_since(self, before: CommitLog) -> dict[str, int]:
        """Return the entries that are new or different compared with `before`."""
        return {
            name: number
            for name, number in self.entries.items()
            if before.entries.get(name) != number
        }


def mode_note(mode: WriteMode) -> dict[str, int]:
    """Return the entry that tells what the table holds."""
    return {} if mode is WriteMode.MIRROR else {f"{_MODE}{mode}": 1}


def mark_notes(marks: Mapping[str, tuple[int, int] | None]) -> dict[str, int]:
    """Return the entries for a window of each physical source's log; None for no window."""
    found: dict[str, int] = {}
    for name, mark in marks.items():
        found[f"{_MARK}{name}"], found[f"{_MARKED}{name}"] = mark or (0, 0)
    return found


def _hash_of(app_id: str) -> int:
    """Return a 62-bit hash of an app's name; it is only compared for equality."""
    digest = hashlib.blake2b(app_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
