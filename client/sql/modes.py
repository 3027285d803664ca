"""What a target's table holds: one set of names for sinks and for Spark."""

from __future__ import annotations

from enum import StrEnum


class WriteMode(StrEnum):
    """How changes become rows."""

    MIRROR = "mirror"  # the rows of the source
    SOFT_DELETE = "soft_delete"  # a deleted row stays, and is marked
    LOG_UPDATE = "log_update"  # one row of each key, with its last change
    APPEND_HISTORY = "append_history"  # a row of each change

    @property
    def has_keys(self) -> bool:
        """Whether a table has one row of each key."""
        return self is not WriteMode.APPEND_HISTORY
