"""Generated columns that may show protected ones: their expressions are the database's to know."""

from __future__ import annotations

from collections.abc import Iterable


def shown_text(columns: Iterable[str], source: str) -> str:
    """Return why a table is not captured that has generated columns which no entry names."""
    return (
        f"generated columns of {source} may show what `columns` leaves out or masks: "
        f"{', '.join(sorted(columns))}. Name them there, in `exclude` or `mask`, or list in "
        "`include` what is to be captured; then restart the relay"
    )
