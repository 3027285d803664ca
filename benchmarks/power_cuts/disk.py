"""A disk whose power is cut: what it must have then, and what it may have.

It must have the content of a file as of its last fsync or fdatasync, and the names of a folder as
of its last fsync. Of what came after that it may have anything: of a file any sectors, of a folder
any of the following steps, in their order, as a journal keeps them.

The layer is under the functions that write files (`watched`). At a step chosen before, it raises
`PowerCut`; of a write it lets a part through. `fall_back` then makes the folder what it may be.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

SECTOR_BYTES = 512

# The files of a folder and of those in it: number of the file by its name.
Tree = dict[str, int]


class PowerCut(BaseException):
    """The power is gone."""


class Disk:
    """The files of one folder, on a disk that has all that is there at first."""

    def __init__(self, folder: Path, rand: random.Random, steps: int) -> None:
        """The power is cut at the last of so many steps."""
        self._folder, self._rand, self._left = folder, rand, steps
        self._held: dict[int, int] = {}  # descriptors of all files, so that no number comes again
        self._synced: dict[int, bytes] = {}
        self.steps = 0
        self._trees = [self._look()]  # what the disk has, and what it may have after that
        for number in self._held:
            self._synced[number] = self._content(number)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Put the layer under the functions that write files."""
        functions: list[tuple[Any, str, Callable[..., Any]]] = [
            (os, "pwrite", self._write(os.pwrite)),
            (os, "fdatasync", self._sync(os.fdatasync)),
            (os, "fsync", self._sync(os.fsync)),
            (os, "ftruncate", self._change(os.ftruncate)),
            (os, "open", self._change(os.open)),
            (Path, "rename", self._change(Path.rename)),
            (Path, "unlink", self._change(Path.unlink)),
            (Path, "mkdir", self._change(Path.mkdir)),
        ]
        patches = [patch.object(*one) for one in functions]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()

    def fall_back(self) -> None:
        """Make the folder what the disk may have after a cut."""
        tree = self._rand.choice(self._trees)
        way = self._rand.choice(("synced", "all", "mixed"))
        contents = {name: self._left_of(number, way) for name, number in tree.items()}
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name, content in contents.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def _left_of(self, number: int, way: str) -> bytes:
        synced, written = self._synced.get(number, b""), self._content(number)
        if way != "mixed":
            return synced if way == "synced" else written
        size = self._rand.choice((len(synced), len(written)))
        found = bytearray(size)
        for at in range(0, size, SECTOR_BYTES):
            sector = self._rand.choice((synced, written))[at : at + SECTOR_BYTES]
            found[at : at + min(len(sector), size - at)] = sector[: size - at]
        return bytes(found)

    def _content(self, number: int) -> bytes:
        return _content(self._held[number])

    def _look(self) -> Tree:
        """Return the files that there are now."""
        tree = {}
        for path in self._folder.rglob("*"):
            if path.is_file():
                tree[str(path.relative_to(self._folder))] = number = path.stat().st_ino
                if number not in self._held:
                    self._held[number] = _open(path, os.O_RDONLY)
        return tree

    def _take_step(self) -> bool:
        """Count a step; return whether it is the last one. Raises PowerCut after that one."""
        if self.steps >= self._left:
            raise PowerCut
        self.steps += 1
        return self.steps >= self._left

    def _write(self, write: Callable[..., int]) -> Callable[..., int]:
        def written(descriptor: int, data: Any, offset: int) -> int:
            if self._take_step():
                write(descriptor, memoryview(data)[: self._rand.randrange(len(data) + 1)], offset)
                raise PowerCut
            return write(descriptor, data, offset)

        return written

    def _sync(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            if self._take_step() and self._rand.random() < 0.5:
                raise PowerCut
            found = os.fstat(descriptor)
            # Before the sync: what is written meanwhile, it need not have.
            content = b"" if stat.S_ISDIR(found.st_mode) else _content(descriptor)
            sync(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self._trees = [self._look()]
            else:
                if found.st_ino not in self._held:
                    self._held[found.st_ino] = os.dup(descriptor)
                self._synced[found.st_ino] = content
            if self.steps >= self._left:
                raise PowerCut  # before anybody hears of it

        return synced

    def _change(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            if self.steps >= self._left:
                raise PowerCut
            done = change(*arguments, **options)
            tree = self._look()
            if tree != self._trees[-1]:
                self._trees.append(tree)
                if self._take_step():
                    if isinstance(done, int):
                        os.close(done)
                    raise PowerCut
            return done

        return changed


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


_open = os.open
