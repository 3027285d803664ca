"""Option `columns`: which of a table's columns are read, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import StructType

from databus.schemas.errors import SettingsError


def choose_columns(rows: StructType, names: Sequence[str]) -> StructType:
    """Return the columns of these names in this order, all when there are none.

    Names are taken in any case, as Spark does. Raises SettingsError for a name that
    is no column's, and for one that comes twice.
    """
    if not names:
        return rows
    known = {field.name.lower(): field for field in rows}
    missing = [name for name in names if name.lower() not in known]
    if missing:
        raise SettingsError(
            f"option columns: there is no column {', '.join(map(repr, missing))}; the columns are "
            f"{', '.join(rows.names)}"
        )
    twice = [name for name in names if [n.lower() for n in names].count(name.lower()) > 1]
    if twice:
        raise SettingsError(f"option columns: {twice[0]} is named twice")
    return StructType([known[name.lower()] for name in names])
