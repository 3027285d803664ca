"""The commit log of a Delta table: app transactions, and which of them its rows have.

An entry is an app transaction (`databus:<name>`, number). delta-rs returns one only by
its name, so the table property `databus.names` lists the names.

RESTORE sets rows and properties back, and leaves app transactions as they are. But it is
in the Delta log. So each commit with entries has a mark, and the Delta log is read from its
end back to the last mark. If there is a RESTORE since then, the rows have the entries of
the version that it went back to. The next commit with entries writes all of them anew.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

_NAMES = "databus.names"
_PREFIX = "databus:"
_MARK = "databus.log"
# App transactions cannot be removed: the number of an entry that the rows do not have.
_GONE = -(2**62)
# Earlier versions wrote no marks: so many commits are searched, which takes 30 s where one
# takes 30 ms.
_MOST_COMMITS = 1000
NAMES_OF_NEW = {_NAMES: "[]"}
# Of a commit without entries. delta-rs must not retry by itself: what is committed was computed
# from the version that was read, and a RESTORE in between must be noticed.
ONCE = CommitProperties(max_commit_retries=0)


@dataclass(frozen=True, slots=True)
class DeltaEntries:
    """The entries of one version of a table.

    `held`: those that its rows have; None if that is not known any more. `written`: its app
    transactions. `is_set_back`: it was restored, and nothing was recorded since.
    """

    held: Mapping[str, int] | None
    written: Mapping[str, int]
    is_set_back: bool = False

    def every(self) -> dict[str, int]:
        """Return the entries that were written, whatever rows there are."""
        return {name: number for name, number in self.written.items() if number != _GONE}

    def then(self, after: Mapping[str, int]) -> DeltaEntries:
        """Return what there is after a commit of `recording(after)`."""
        return DeltaEntries(after, {**self.written, **self._changed(after)})

    def recording(self, after: Mapping[str, int]) -> CommitProperties:
        """Return the properties of a commit after which the rows have these entries."""
        changed = self._changed(after).items()
        return CommitProperties(
            max_commit_retries=0,
            custom_metadata={_MARK: "recorded"},
            app_transactions=[Transaction(f"{_PREFIX}{name}", number) for name, number in changed],
        )

    def _changed(self, after: Mapping[str, int]) -> dict[str, int]:
        wanted = {**dict.fromkeys(self.written, _GONE), **after}
        return {name: one for name, one in wanted.items() if self.written.get(name) != one}


def entries_of(
    table: DeltaTable,
    path: str,
    storage: dict[str, str] | None,
    before: tuple[int, DeltaEntries] | None = None,
) -> DeltaEntries:
    """Return a table's entries at its version.

    `path` and `storage` open it at another one. `before`: an earlier version, and its entries.
    """
    names = names_of(table)
    # What came before that is known not to have been set back.
    least = -1 if before is None or before[1].is_set_back else before[0]
    restored = _last_restore(table, least)
    if restored is None:
        found = DeltaEntries({}, _written(table, names))
        return replace(found, held=found.every())
    version, parameters = restored
    # Properties were set back, too: names that came later are in the version before.
    if (last := _at(path, storage, version - 1)) is not None:
        names = list(dict.fromkeys([*names, *names_of(last)]))
    at = _at(path, storage, _back_to(path, storage, parameters))
    held = None if at is None else entries_of(at, path, storage).held
    return DeltaEntries(held, _written(table, names), is_set_back=True)


def add_names(table: DeltaTable, names: Iterable[str]) -> None:
    """Add names of new entries to the table's list, before their first number is written."""
    known = names_of(table)
    listed = list(dict.fromkeys([*known, *names]))
    if len(listed) > len(known):
        set_names(table, _NAMES, listed)


def names_of(table: DeltaTable, key: str = _NAMES) -> list[str]:
    """Return the names that a table property lists."""
    configuration: dict[str, Any] = table.metadata().configuration
    names: list[str] = json.loads(configuration.get(key) or "[]")
    return names


def set_names(table: DeltaTable, key: str, names: Sequence[str]) -> None:
    """Have a table property list names."""
    told = {key: json.dumps(list(names))}
    table.alter.set_table_properties(told, raise_if_not_exists=False, commit_properties=ONCE)


def _written(table: DeltaTable, names: Iterable[str]) -> dict[str, int]:
    numbers = {name: table.transaction_version(f"{_PREFIX}{name}") for name in names}
    return {name: number for name, number in numbers.items() if number is not None}


def _last_restore(table: DeltaTable, least: int) -> tuple[int, Mapping[str, Any]] | None:
    """Return version and parameters of the last RESTORE after `least`; None if a mark follows it.

    Also if the commit's file is not there any more.
    """
    files = pa.fs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
    newest = table.version()
    # Not `history`: of an older version it numbers commits wrongly.
    for version in range(newest, max(least, newest - _MOST_COMMITS), -1):
        try:
            with files.open_input_stream(f"_delta_log/{version:020}.json") as file:
                told = list(_infos(file.read()))
        except FileNotFoundError:
            return None
        if any(_MARK in info for info in told):
            return None
        for info in told:
            if info.get("operation") == "RESTORE":
                return version, info.get("operationParameters") or {}
    return None


def _infos(commit: bytes) -> Iterator[dict[str, Any]]:
    for line in commit.splitlines():
        # Most lines are of files, and may be many.
        if b'"commitInfo"' in line and (info := json.loads(line).get("commitInfo")):
            yield info


def _back_to(path: str, storage: dict[str, str] | None, parameters: Mapping[str, Any]) -> int:
    """Return the version that a RESTORE went back to, -1 if it does not say so.

    Spark tells a time only as its session spells it.
    """
    version, time_ms = (str(parameters.get(name)) for name in ("version", "datetime"))
    if version.isdecimal():
        return int(version)
    if not time_ms.isdecimal():
        return -1
    table = DeltaTable(path, storage_options=storage)
    try:
        table.load_as_version(dt.datetime.fromtimestamp(int(time_ms) / 1000, dt.UTC))
    except DeltaError:
        return -1
    return table.version()


def _at(path: str, storage: dict[str, str] | None, version: int) -> DeltaTable | None:
    """Return the table at a version; None if it is not there any more."""
    if version < 0:
        return None
    try:
        return DeltaTable(path, version=version, storage_options=storage)
    except (DeltaError, TableNotFoundError):
        return None
