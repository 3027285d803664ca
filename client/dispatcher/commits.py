"""Decides which checkpoint an iteration may write. Pure.

Windows that an application gets are numbered. What it does not get (empty windows, the begin and
the end of a bootstrap) moves the checkpoint, too, but never past a window that is not committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from databus.schemas.checkpoint import Checkpoint

Made = Callable[[], Checkpoint]


class Commits:
    """Knows what was yielded, and up to where it is committed. Not thread-safe."""

    def __init__(self, *, is_automatic: bool) -> None:
        """With `is_automatic` a window is committed by passing it."""
        self._is_automatic = is_automatic
        self._yielded: deque[tuple[int, Made]] = deque()  # and not committed, the oldest first
        self._number = 0  # of the newest window that was yielded
        self._behind: Made | None = None  # of what was passed after it

    def yielded(self, made: Made) -> int:
        """Take note of a window that the application gets; return its number.

        `made` is kept until the window is committed, so it must not hold the window's rows.
        """
        self._number += 1
        self._yielded.append((self._number, made))
        self._behind = None
        return self._number

    def passed(self, made: Made) -> Made | None:
        """Return the checkpoint to write after a window that was passed, or after what has none.

        None: a window before it is not committed.
        """
        if self._is_automatic:
            self._yielded.clear()
            return made
        if not self._yielded:
            return made
        self._behind = made
        return None

    def commit(self, number: int | None = None) -> Made | None:
        """Commit a window and all before it, None: the newest; return the checkpoint to write.

        None: it is committed already.
        """
        found = None
        wanted = self._number if number is None else number
        while self._yielded and self._yielded[0][0] <= wanted:
            found = self._yielded.popleft()[1]
        if found is not None and not self._yielded and self._behind is not None:
            found, self._behind = self._behind, None
        return found
