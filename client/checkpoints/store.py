"""Storage of consumers' checkpoints.

A file is replaced as a whole: written under another name, fsync, rename, fsync of the
directory. So a crash leaves the old file or the new one. A file that cannot be read was
damaged by something else: that is an error for a person, never a reason to start from
another position.

A checkpoint file is locked by one registration of one process. Two that wrote the same file
would continue from each other's position. Members of a group write under leases instead, see
`fenced`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from databus.client.checkpoints.fenced import FencedCheckpointStore, RecordCheckpoints
from databus.daemon.files import FileHeldError, make_folder, open_locked, replace_file
from databus.daemon.guarded_files import content_of
from databus.groups.kept_checkpoint import (
    Kept,
    check_no_term,
    check_owner,
    decode_kept,
    encode_kept,
    kept_name,
)
from databus.leases.errors import StaleTermError
from databus.leases.file_records import FileRecords
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError


class CheckpointStore(Protocol):
    """Stores one checkpoint per registration name and exact source list."""

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return the saved checkpoint, or None; raise CheckpointError if it is damaged."""
        ...

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raise CheckpointError if that fails."""


def save_in(
    store: CheckpointStore,
    name: str,
    sources: Sequence[str],
    checkpoint: Checkpoint,
    term: int | None = None,
) -> None:
    """Save durably, under a term if one is given.

    Raises CheckpointError, whatever an application's store raises; and StaleTermError.
    """
    try:
        if term is None:
            store.save(name, sources, checkpoint)
        elif isinstance(store, FencedCheckpointStore):
            store.save_under(name, sources, checkpoint, term)
        else:
            text = f"{type(store).__name__} has no `save_under`, so no lease can protect it"
            raise CheckpointError(text)
    except (CheckpointError, StaleTermError):
        raise
    except Exception as error:
        raise CheckpointError(f"the checkpoint of {name!r} cannot be written: {error!r}") from error


def hold_in(store: CheckpointStore, name: str, sources: Sequence[str]) -> Callable[[], None]:
    """Lock a registration's checkpoint and return a function that releases it.

    An application's own store is not locked. Raises CheckpointError.
    """
    if isinstance(store, FileCheckpoints):
        return take_lock(store.path(name, sources).with_suffix(".lock"))
    return lambda: None


class MemoryCheckpoints:
    """Stores checkpoints in memory."""

    def __init__(self) -> None:
        self._checkpoints: dict[tuple[str, tuple[str, ...]], Checkpoint] = {}

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return the saved checkpoint, or None."""
        return self._checkpoints.get((name, tuple(sources)))

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save until the process ends."""
        self._checkpoints[name, tuple(sources)] = checkpoint


class FileCheckpoints:
    """Stores checkpoints in a directory: one JSON file each, with a lock file beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fenced = RecordCheckpoints(FileRecords(directory), folder="")

    def path(self, name: str, sources: Sequence[str]) -> Path:
        """Return the file of a registration: a readable prefix and a digest of its identity."""
        return self.directory / f"{kept_name(name, sources)}.json"

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return the saved checkpoint, or None; raise CheckpointError if it is damaged."""
        path = self.path(name, sources)
        kept = read_file(path)
        if kept is None:
            return None
        # A file copied under another name must not move another registration.
        check_owner(kept, name, sources, str(path))
        return kept.checkpoint

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raise CheckpointError, also if it is written under leases."""
        path = self.path(name, sources)
        try:
            make_folder(self.directory)
            _refuse_over_a_term(path)
            replace_file(path, encode_kept(Kept(name, tuple(sources), checkpoint)))
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be written: {error}; see checkpoint_dir"
            ) from error

    def begin_term(self, name: str, sources: Sequence[str], term: int) -> Checkpoint | None:
        """Return the saved checkpoint, and refuse smaller terms; see FencedCheckpointStore."""
        return self._fenced.begin_term(name, sources, term)

    def save_under(
        self, name: str, sources: Sequence[str], checkpoint: Checkpoint, term: int
    ) -> None:
        """Save durably; raise StaleTermError if a greater term has begun, CheckpointError."""
        self._fenced.save_under(name, sources, checkpoint, term)

    def term(self, name: str, sources: Sequence[str]) -> int:
        """Return the greatest term that has begun, 0 without one; raise CheckpointError."""
        return self._fenced.term(name, sources)


def read_file(path: Path) -> Kept | None:
    """Return a checkpoint file's content; None without a file; raise CheckpointError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read: {error}; see checkpoint_dir"
        ) from error
    return decode_kept(data, str(path))


def _refuse_over_a_term(path: Path) -> None:
    """Raise CheckpointError if the file is written under leases; OSError.

    What was damaged since it was read at the start is replaced.
    """
    data = content_of(path)
    if data is None or b'"term"' not in data:
        return
    try:
        kept = decode_kept(data, str(path))
    except CheckpointError:
        return
    check_no_term(kept, str(path))


def take_lock(path: Path) -> Callable[[], None]:
    """Lock the file, write our process id into it, and return a function that releases it.

    Raises CheckpointError, which names the file and the process that holds it.
    """
    try:
        fd = open_locked(path)
    except FileHeldError as held:
        raise CheckpointError(
            f"{path} is locked: process {held.content or 'of unknown id'} reads this "
            "registration; stop it, or use another `name` or checkpoint_dir"
        ) from None
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        _check_writable(path.parent)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except OSError as error:
        os.close(fd)
        raise _unusable(path, error) from error

    def let_go() -> None:
        # A process forked since has the file open too, so closing it does not unlock it.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    return let_go


def _check_writable(folder: Path) -> None:
    """Raise PermissionError if saving would fail: an existing lock file can be locked anyway."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "cannot create files in it", str(folder))


def _unusable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be locked: {error}; make its folder writable for this user, or choose "
        "another checkpoint_dir"
    )
