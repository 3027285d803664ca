"""Where consumers' checkpoints are kept.

A file is replaced whole: written under another name, fsync, rename, fsync of
the directory. So after a crash there is the old one or the new one, and a file
that cannot be read was damaged by something else: that is an error for
somebody to look at, never a reason to start somewhere.

One process, and one registration in it, holds a checkpoint file at a time: two that
write one file would each go on from the other's place.
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
_PLACE = ("windowScn", "windowOffset")  # in every checkpoint that was ever written


class Kept(NamedTuple):
    """What a checkpoint's file says: whose it is, and where that is."""

    name: str
    sources: tuple[str, ...]
    checkpoint: Checkpoint


class CheckpointStore(Protocol):
    """Keeps one checkpoint for each registration and exact source list."""

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return what was saved, or None; raises CheckpointError when it is damaged."""
        ...

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raises CheckpointError when that fails."""


def save_in(
    store: CheckpointStore, name: str, sources: Sequence[str], checkpoint: Checkpoint
) -> None:
    """Save durably; raises CheckpointError, whatever a store of somebody's own raises."""
    try:
        store.save(name, sources, checkpoint)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"the checkpoint of {name!r} cannot be written: {error!r}") from error


def hold_in(store: CheckpointStore, name: str, sources: Sequence[str]) -> Callable[[], None]:
    """Keep everybody else from a registration's checkpoint; returns how to let go.

    Of a store of somebody's own nothing is held. Raises CheckpointError.
    """
    if isinstance(store, FileCheckpoints):
        return take_lock(store.path(name, sources).with_suffix(".lock"))
    return lambda: None


class MemoryCheckpoints:
    """Keeps checkpoints as long as the process lives."""

    def __init__(self) -> None:
        self._checkpoints: dict[tuple[str, tuple[str, ...]], Checkpoint] = {}

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return what was saved, or None."""
        return self._checkpoints.get((name, tuple(sources)))

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save until the process ends."""
        self._checkpoints[name, tuple(sources)] = checkpoint


class FileCheckpoints:
    """Keeps checkpoints in a directory, one JSON file each, and a lock file beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, name: str, sources: Sequence[str]) -> Path:
        """Return the file of a registration: a readable beginning, and a digest of all of it."""
        identity = json.dumps([name, list(sources)])
        readable = _READABLE.sub("_", name)[:_READABLE_CHARS].strip(".")
        return self.directory / f"{readable}-{sha256(identity.encode()).hexdigest()}.json"

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Return what was saved, or None; raises CheckpointError when it is damaged."""
        path = self.path(name, sources)
        kept = read_file(path)
        if kept is None:
            return None
        if (kept.name, list(kept.sources)) != (name, list(sources)):
            owner = f"it is the checkpoint of {kept.name!r}, sources {list(kept.sources)!r}"
            raise _damaged(path, ValueError(owner))
        return kept.checkpoint

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save durably; raises CheckpointError when that fails."""
        kept = {
            "registration": name,
            "sources": list(sources),
            "checkpoint": json.loads(checkpoint.to_json()),
        }
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
    """Return what a checkpoint's file keeps, None without a file; raises CheckpointError."""
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
    """Raise when a file is not as it was written."""
    # A damaged name would be one more that nobody knows, and what it named be missed.
    if set(kept) - {"crc"} != set(_PARTS):
        raise ValueError(f"it has {sorted(kept)}, not {', '.join(_PARTS)} and crc")
    if "crc" in kept:
        if kept["crc"] != _checksum(kept):
            raise ValueError("its checksum is wrong")
        return
    if not all(key in kept["checkpoint"] for key in _PLACE):
        raise ValueError(f"its checkpoint lacks {' or '.join(_PLACE)}")
    log.info("checkpoint %s has no checksum yet: it gets one when it is saved next", path)


def _checksum(kept: dict[str, Any]) -> str:
    values = [kept[part] for part in _PARTS]
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return f"{crc32(text.encode()):08x}"


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} cannot be read: {error}; restore it from a copy, or remove it to "
        "start where `start` of the settings says, which may skip or repeat changes"
    )


def take_lock(path: Path) -> Callable[[], None]:
    """Lock the file, and say in it who did; returns how to let go.

    Raises CheckpointError, naming the file and the process that has it.
    """
    try:
        fd = open_locked(path)
    except FileHeldError as held:
        raise CheckpointError(
            f"{path} is locked: process {held.content or 'that did not say its id'} reads this "
            "registration; stop it, or give this one another `name` or checkpoint_dir"
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
        # A process forked meanwhile has the file open too: closing it here is not enough.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    return let_go


def _check_writable(folder: Path) -> None:
    """Raise now what saving would meet: the lock's file may be there, and open, all the same."""
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "no file can be made in it", str(folder))


def _unusable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be locked: {error}; make its folder writable for this user, or choose "
        "another checkpoint_dir"
    )
