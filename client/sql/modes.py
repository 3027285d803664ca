"""What a target's table holds: one set of names for sinks and for Spark."""

from __future__ import annotations

from enum import StrEnum

# The columns that a source does not have.
DELETED, OP, SCN, TIME = "_databus_deleted", "_databus_op", "_databus_scn", "_databus_time"
SOURCE, ID = "_databus_source", "_databus_id"
FROM, TO, INDEX = "_databus_from", "_databus_to", "_databus_index"
# Of Spark's targets: the SCN up to which a version was the row, that SCN not included.
TO_SCN = "_databus_to_scn"


class WriteMode(StrEnum):
    """How changes become rows."""

    MIRROR = "mirror"  # the rows of the source
    SOFT_DELETE = "soft_delete"  # a deleted row stays, and is marked
    LOG_UPDATE = "log_update"  # one row of each key, with its last change
    APPEND_HISTORY = "append_history"  # a row of each change
    SCD2 = "scd2"  # a row of each version of a row, with the times from which and to which it was

    @property
    def has_keys(self) -> bool:
        """Whether the rows of a table have the key of the source."""
        return self is not WriteMode.APPEND_HISTORY

    @property
    def is_history(self) -> bool:
        """Whether a table has what rows were before, too: it may be pruned."""
        return self in (WriteMode.APPEND_HISTORY, WriteMode.SCD2)
