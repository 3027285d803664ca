"""The file of positions: one record, whole after any crash."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from databus.client.sinks.serving.positions import (
    NAME,
    PositionFile,
    SinkCheckpoints,
    StoredPosition,
    hold,
    read_positions,
)
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError


def stored(scn: int, sink: str = "a", source: str = "shop") -> StoredPosition:
    return StoredPosition(sink, source, ("shop.orders",), Checkpoint.at(scn, 1000 + scn))


def scns(folder: Path) -> dict[tuple[str, str], int]:
    found = read_positions(folder / NAME)
    return {key: one.checkpoint.window_scn for key, one in found.items()}


def test_every_sink_has_its_position_in_one_private_file(tmp_path: Path) -> None:
    file = PositionFile(tmp_path / "new")
    assert file.all() == []
    for one in (stored(5), stored(7, "b"), stored(3, "a", "billing"), stored(6)):
        file.save(one)
    again = PositionFile(tmp_path / "new")
    assert again.all() == [stored(3, "a", "billing"), stored(6), stored(7, "b")]
    assert again.load("c", "shop") is None
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_position_keeps_what_proves_its_log(tmp_path: Path) -> None:
    file = PositionFile(tmp_path)
    checkpoint = Checkpoint.at(5).with_mark((4, 99))
    SinkCheckpoints(file, "a").save("shop", ["shop.orders"], checkpoint)
    found = SinkCheckpoints(PositionFile(tmp_path), "a").load("shop", ["shop.orders"])
    assert found is not None
    assert found.mark == (4, 99)


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    PositionFile(tmp_path).save(stored(5))
    whole = (tmp_path / NAME).read_bytes()
    values = json.loads(whole)
    values["positions"]["a"]["shop"]["checkpoint"]["windowScn"] = 6
    for damaged in (b"", whole[:-40], whole.replace(b'"version": 1', b'"version": 9')):
        (tmp_path / NAME).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"positions\.json cannot be read"):
            PositionFile(tmp_path)
    (tmp_path / NAME).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="checksum"):
        PositionFile(tmp_path)


def test_one_process_holds_the_positions(tmp_path: Path) -> None:
    let_go = hold(tmp_path)
    with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"):
        hold(tmp_path)
    let_go()
    hold(tmp_path)()


def test_a_source_that_was_not_read_before_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SinkCheckpoints(PositionFile(tmp_path), "a")
    store.save("shop", ["shop.orders"], Checkpoint.at(5))
    assert store.load("shop", ["shop.orders"]) == Checkpoint.at(5)
    assert caplog.text == ""
    assert store.load("shop", ["shop.new", "shop.orders"]) == Checkpoint.at(5)
    assert "shop.new is read from SCN 5 on" in caplog.text
