"""A segment is in the archive as a whole or not at all, whatever becomes of its upload."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from databus.relay.log.archive.manifest import ArchiveError
from databus.relay.log.archive.reading import ArchiveReader
from databus.relay.log.archive.store import ArchiveStore
from tests.relay.log.logs import append, open_writer
from tests.relay.ring.model import make_window
from tools.repository import ROOT

pytest_plugins = ["tests.relay.log.archive.archives"]

KILLS = 5


def write_log(folder: Path) -> int:
    """Write a log of some sealed segments and one that is not; return how many are sealed."""
    writer = open_writer(folder, segment_bytes=4000, is_compressed=False)
    for begin in range(1, 60, 3):
        append(writer, [make_window(scn, [200, 100]) for scn in range(begin, begin + 3)])
        writer.sync()
    sealed = sum(one.is_sealed for one in writer.segments)
    writer.close()
    return sealed


def check_archive(folder: Path, uri: str, log: Path) -> int:
    """Fetch every segment of the archive; return how many there are."""
    reader = ArchiveReader(uri, folder, 1 << 30)
    try:
        found = [one for kept in reader.logs("shop") for one in (*kept.log, *kept.others)]
        for manifest in found:
            path = folder / "fetched"
            folder.mkdir(exist_ok=True)
            reader.store.fetch(manifest, path)  # compares its length and digest
            assert path.read_bytes() == (log / manifest.header.name).read_bytes()
        return len(found)
    finally:
        reader.close()


def test_a_relay_that_is_killed_in_the_middle_of_an_upload_leaves_whole_segments_only(
    tmp_path: Path, uri: str
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw, log = random.Random(seed), tmp_path / "log"
    sealed = write_log(log)
    command = [sys.executable, "-m", "tests.relay.log.archive.child", str(log), uri]
    held = 0
    for number in range(KILLS + 1):
        said: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
            assert child.stdout is not None
            most = draw.randrange(1, 25) if number < KILLS else 1 << 30
            while len(said) < most and (line := child.stdout.readline()):
                said.append(line.strip())
                if line == "all\n":
                    break
            if number < KILLS:
                child.kill()
        assert not [line for line in said if line.startswith("failed")]
        before, held = held, check_archive(tmp_path / "read", uri, log)
        assert before <= held <= sealed
    assert said[-1] == "all"
    assert held == sealed > 3


class CutFiles:
    """A file system that forgets the last chunk of each object, and says nothing."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open_output_stream(self, path: str) -> Any:
        return _Cut(self._files.open_output_stream(path))


class _Cut:
    def __init__(self, file: Any) -> None:
        self._file, self._last = file, b""

    def __enter__(self) -> _Cut:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def write(self, chunk: bytes) -> None:
        self._file.write(self._last)
        self._last = chunk


def test_an_object_that_is_shorter_than_what_was_written_is_an_error(uri: str) -> None:
    store = ArchiveStore(uri)
    store.check()
    assert store._opened is not None
    files, base = store._opened
    store._opened = CutFiles(files), base
    with pytest.raises(ArchiveError, match="has 3 bytes instead of the 7 written"):
        store.write("shop/one", [b"abc", b"defg"])
    store.close()
