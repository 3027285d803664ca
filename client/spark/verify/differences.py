"""Compare rows value by value, or with the user's functions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, cast

from databus.client.spark.verify.table_shape import Key, Row
from databus.schemas.errors import SettingsError

# Takes the source's row and the target's; returns whether they are the same.
IsSame = Callable[[Row, Row], bool]


class Kind(StrEnum):
    """The kinds of differences."""

    MISSING = "missing"  # in the target
    EXTRA = "extra"  # in the target
    CHANGED = "changed"
    DUPLICATE = "duplicate"  # several rows have the key, in the target


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that differs after all changes up to `until_scn` are applied on both sides.

    `source_scn`: visible when the source's row was read. `target_scn`: the target's
    `_databus_scn` of the row, or None. A missing row is None. `source_rows` and `target_rows`:
    how many rows have the key; of several, the one with the newest SCN is given.
    """

    key: Key
    kind: Kind
    columns: tuple[str, ...]
    in_source: Row | None
    in_target: Row | None
    source_scn: int
    target_scn: int | None
    until_scn: int
    source_rows: int = 1
    target_rows: int = 1


@dataclass(frozen=True, slots=True)
class Comparer:
    """Compares rows by the user's functions, or value by value."""

    names: tuple[str, ...]
    of_row: IsSame | None = None
    of_column: Mapping[str, IsSame] = field(default_factory=dict)

    def differing(self, source: Row, target: Row) -> tuple[str, ...]:
        """Return the columns in which two rows differ."""
        if self.of_row is not None:
            # The function does not tell the columns: report those that are not equal.
            same = self.of_row(source, target)
            return () if same else (self._unequal(source, target) or self.names)
        return tuple(
            name
            for name in self.names
            if not (
                self.of_column[name](source, target)
                if name in self.of_column
                else source[name] == target[name]
            )
        )

    def kind(self, source: Row | None, target: Row | None) -> tuple[Kind, tuple[str, ...]] | None:
        """Return the kind of difference and its columns; None if the rows are the same."""
        if source is None or target is None:
            # Neither side has the row.
            if source is target:
                return None
            return (Kind.EXTRA if source is None else Kind.MISSING), self.names
        columns = self.differing(source, target)
        return (Kind.CHANGED, columns) if columns else None

    def _unequal(self, source: Row, target: Row) -> tuple[str, ...]:
        return tuple(name for name in self.names if source[name] != target[name])


def comparer_of(names: Sequence[str], compare: Sequence[str] = ()) -> Comparer:
    """Return the comparer for these columns.

    `compare`: texts `module:function` for whole rows, or `column=module:function`. The
    function takes the source's row and the target's as maps, and returns whether they
    (or the column) are the same. Raises SettingsError.
    """
    of_row: IsSame | None = None
    of_column: dict[str, IsSame] = {}
    for text in compare:
        column, is_of_column, place = text.partition("=")
        if not is_of_column:
            of_row = _function(text, text)
        elif column in names:
            of_column[column] = _function(text, place)
        else:
            raise SettingsError(f"--compare {text}: the columns are {', '.join(names)}")
    if of_row is not None and of_column:
        raise SettingsError("--compare: give one function for rows, or functions for columns")
    return Comparer(tuple(names), of_row, of_column)


def _function(text: str, place: str) -> IsSame:
    module, _, name = place.partition(":")
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"--compare {text}: write [column=]module:function, of a module that can be "
            f"imported: {error}"
        ) from error
    if not callable(found):
        raise SettingsError(f"--compare {text}: {place} is not a function")
    return cast("IsSame", found)
