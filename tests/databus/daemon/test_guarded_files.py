"""Files that several processes replace: each only if it is still what was decided upon."""

from __future__ import annotations

import fcntl
import os
import threading
from functools import partial
from operator import eq
from pathlib import Path

import pytest

from databus.daemon.faults import is_transient
from databus.daemon.guarded_files import content_of, remove_leftovers, replace_guarded


def test_a_file_is_replaced_if_its_content_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    assert content_of(path) is None
    assert replace_guarded(path, b"1", lambda content: content is None)
    assert not replace_guarded(path, b"2", lambda content: content is None)
    assert replace_guarded(path, b"3", lambda content: content == b"1")
    assert content_of(path) == b"3"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in path.parent.iterdir()) == ["file", "file.guard"]


def test_what_the_check_raises_changes_nothing_and_unlocks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ZeroDivisionError):
        replace_guarded(path, b"1", lambda _: bool(1 / 0))
    assert content_of(path) is None
    assert replace_guarded(path, b"2", lambda _: True, patience_s=0)


def test_no_replacement_of_many_at_once_is_lost(tmp_path: Path) -> None:
    path, each = tmp_path / "count", 25

    def count() -> None:
        for _ in range(each):
            while True:
                before = content_of(path)
                after = str(int(before or b"0") + 1).encode()
                if replace_guarded(path, after, partial(eq, before)):
                    break

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content_of(path) == str(4 * each).encode()


def test_a_process_that_was_stopped_with_the_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert replace_guarded(path, b"1", lambda _: True)
    fd = os.open(tmp_path / "file.guard", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match=f"process {os.getpid()} has kept it") as caught:
        replace_guarded(path, b"2", lambda _: True, patience_s=0.01)
    assert is_transient(caught.value)
    os.close(fd)
    assert content_of(path) == b"1"
    assert replace_guarded(path, b"2", lambda _: True)


def test_only_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    names = ["a.new.4194305.1", f"b.new.{os.getpid()}.1", "c.new.x", "d.new", "e.json"]
    for name in names:
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == names[1:]
    remove_leftovers(tmp_path / "missing")
