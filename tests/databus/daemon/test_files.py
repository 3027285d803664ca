"""A file is replaced whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.daemon.files import replace_file


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    replace_file(path, b"one")
    replace_file(path, b"two\n")
    assert path.read_bytes() == b"two\n"
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_synced_does_not_take_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    replace_file(path, b"one")

    def full(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
