"""The home of sqlite-utils, without pandas and numpy.

It imports both where they are installed, as for Spark, for values that nobody here has. That is
half of the time in which a relay starts, and tens of megabytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NOT_NEEDED = ("pandas", "numpy")


@contextmanager
def _as_not_installed(*names: str) -> Iterator[None]:
    """Let imports of modules that are not loaded yet fail."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] # as Python itself does it
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _as_not_installed(*_NOT_NEEDED):
    from sqlite_utils import Database

__all__ = ["Database"]
