"""Records in files of one folder, for processes of one machine.

No lock is held while a lease is: a lock never runs out when its process is stopped. The lock that
a replacement takes is explained in `databus/daemon/guarded_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from databus.daemon.faults import is_transient
from databus.daemon.guarded_files import content_of, remove_leftovers, replace_guarded
from databus.leases.errors import LeaseError, LeaseUnavailableError
from databus.leases.records import Stored


class FileRecords:
    """Records in a folder, one file each; the version of a record is its content."""

    poll_s = 0.1

    def __init__(self, folder: Path, suffix: str = ".json") -> None:
        """Keep records below `folder`, which is created with the first one."""
        self.shown = f"file:{folder}"
        self._folder, self._suffix = folder, suffix
        self._has_tidied: set[Path] = set()
        self._has_served = False

    def path(self, name: str) -> Path:
        """Return the file of a record."""
        return self._folder / f"{name}{self._suffix}"

    def read(self, name: str, on_change: Callable[..., None] | None = None) -> Stored | None:  # noqa: ARG002
        """Return a record, None if there is none; `on_change` is not called."""
        try:
            data = content_of(self.path(name))
        except OSError as error:
            raise self._error(error) from error
        self._has_served = True
        return None if data is None else Stored(data, data)

    def replace(self, name: str, data: bytes, before: Stored | None) -> bool:
        """Write a record durably if it still is what was read; return whether it was written."""
        path, expected = self.path(name), before and before.data
        self._tidy(path.parent)
        try:
            return replace_guarded(path, data, lambda content: content == expected)
        except OSError as error:
            raise self._error(error) from error

    def names(self, folder: str) -> list[str]:
        """Return the names of the records that lie in a folder."""
        try:
            found = [path.name for path in (self._folder / folder).iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error(error) from error
        suffix = self._suffix
        return [f"{folder}/{name.removesuffix(suffix)}" for name in found if name.endswith(suffix)]

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def _error(self, error: OSError) -> LeaseError:
        # What served before, and does not now, is being worked on.
        if self._has_served or is_transient(error):
            return LeaseUnavailableError(self.shown, error)
        return LeaseError(f"{self.shown} cannot be used: {error}; give a folder of this user's own")

    def _tidy(self, folder: Path) -> None:
        if folder not in self._has_tidied:
            self._has_tidied.add(folder)
            remove_leftovers(folder)
