"""Storage of consumers' checkpoints.

A file is replaced as a whole: written under another name, fsync, rename, fsync of the
directory. So a crash leaves the old file or the new one. A file that cannot be read was
damaged by something else: that is an error for a person, never a reason to start from
another position.

A checkpoint file is locked by one registration of one process. Two that wrote the same file
would continue from each other's position.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from databus.daemon.files import FileHeldError, make_folder, open_locked, replace_file
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

log = logging.getLogger(__name__)

_READABLE = re.compile(r"[^A-Za-z0-9_.-]+")
_READABLE_CHARS = 60
_PARTS = ("registration", "sources", "checkpoint")
_PLACE = ("windowScn", "windowOffset")  # in every checkpoint of every version


class Kept(NamedTuple):
    """The content of a checkpoint file: name, sources and checkpoint of a registration."""

    name: str
    sources: tuple[str, ...]
    checkpoint: Checkpoint


class CheckpointStore(Protocol):
    """Stores one checkpoint per registration name and exact source list."""

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return the saved checkpoint, or None; raise CheckpointError if it is damaged."""
        ...

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raise CheckpointError if that fails."""


def save_in(
    store: CheckpointStore, name: str, sources: Sequence[str], checkpoint: Checkpoint
) -> None:
    """Save durably; raise CheckpointError, whatever an application's store raises."""
    try:
        store.save(name, sources, checkpoint)
    except CheckpointError:
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

    def path(self, name: str, sources: Sequence[str]) -> Path:
        """Return the file of a registration: a readable prefix and a digest of its identity."""
        identity = json.dumps([name, list(sources)])
        # The prefix is for people; the digest alone tells registrations apart.
        readable = _READABLE.sub("_", name)[:_READABLE_CHARS].strip(".")
        return self.directory / f"{readable}-{sha256(identity.encode()).hexdigest()}.json"

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return the saved checkpoint, or None; raise CheckpointError if it is damaged."""
        path = self.path(name, sources)
        kept = read_file(path)
        if kept is None:
            return None
        # A file copied under another name must not move another registration.
        if (kept.name, list(kept.sources)) != (name, list(sources)):
            owner = f"it is the checkpoint of {kept.name!r}, sources {list(kept.sources)!r}"
            raise _damaged(path, ValueError(owner))
        return kept.checkpoint

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raise CheckpointError if that fails."""
        kept = {
            "registration": name,
            "sources": list(sources),
            "checkpoint": json.loads(checkpoint.to_json()),
        }
        # Over the parsed values, so that a file reformatted by hand stays valid.
        kept["crc"] = _checksum(kept)
        path = self.path(name, sources)
        try:
            make_folder(self.directory)
            replace_file(path, (json.dumps(kept, indent=1) + "\n").encode())
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {path} cannot be written: {error}; see checkpoint_dir"
            ) from error


def read_file(path: Path) -> Kept | None:
    """Return a checkpoint file's content; None without a file; raise CheckpointError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be read: {error}; see checkpoint_dir"
        ) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, error) from error
    try:
        kept = json.loads(text)
        _check_whole(path, kept)
        checkpoint = Checkpoint.from_json(json.dumps(kept["checkpoint"]))
        return Kept(str(kept["registration"]), tuple(map(str, kept["sources"])), checkpoint)
    except (ValueError, TypeError, KeyError, RecursionError, CheckpointError) as error:
        raise _damaged(path, error) from error


def _check_whole(path: Path, kept: dict[str, Any]) -> None:
    """Raise ValueError if the file is not as it was written."""
    # A damaged key looks like an unknown one, so unknown keys are errors.
    if set(kept) - {"crc"} != set(_PARTS):
        raise ValueError(f"it has {sorted(kept)}, not {', '.join(_PARTS)} and crc")
    if "crc" in kept:
        if kept["crc"] != _checksum(kept):
            raise ValueError("its checksum is wrong: it was damaged, or edited by hand")
        return
    if not all(key in kept["checkpoint"] for key in _PLACE):
        raise ValueError(f"its checkpoint lacks {' or '.join(_PLACE)}")
    log.info("checkpoint %s has no checksum yet: the next save adds one", path)


def _checksum(kept: dict[str, Any]) -> str:
    values = [kept[part] for part in _PARTS]
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return f"{crc32(text.encode()):08x}"


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} cannot be read: {error}; restore it from a copy, or remove it to "
        "start from the `start` setting, which may skip or repeat changes; once it is removed, "
        "`databus checkpoint set` with --name and --source writes a position"
    )


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
