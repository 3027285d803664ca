"""The MaxSCN of a catch-up, in memory: nothing of a catch-up outlives its relay."""

from __future__ import annotations

from databus.schemas.log_mark import LogMark


class StartMark:
    """Where a catch-up continues, and the mark that its log has to match first."""

    def __init__(self, scn: int, mark: LogMark | None) -> None:
        """Begin after `scn`; `mark` is the relay's newest one, which is of a later SCN."""
        self._scn, self._mark = scn, mark

    def load(self) -> int | None:
        """Return the SCN after which it continues."""
        return self._scn

    def mark(self) -> LogMark | None:
        """Return the mark that was saved last; first, the relay's newest."""
        return self._mark

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:  # noqa: ARG002
        """Continue after an SCN from now on; without a mark, the last one is kept."""
        self._scn = scn
        if mark is not None:
            self._mark = mark
