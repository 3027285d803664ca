"""The table of epochs survives a restart as it was, or is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from databus.relay.capture.epoch_table import EpochTable
from databus.relay.sources.epochs import Epoch, Executed
from databus.schemas.errors import RingError

FIRST = Epoch(0, "1", "mysql://a@one", 500, -1, "bin.000001", 500, None, 1_700_000_000)
SECOND = Epoch(1, "2", "mysql://a@two", 1 << 55 | 9, 700, "bin.000003", 9, "0-1-7", 1_700_000_100)


def filled(path: Path) -> EpochTable:
    table = EpochTable(path)
    for epoch in (FIRST, SECOND):
        table.begin(epoch)
    table.note(Executed(SECOND.first_scn, "0-2-8"))
    table.save()
    return table


def test_what_was_stored_is_read_again(tmp_path: Path) -> None:
    filled(tmp_path / "shop.epochs.json")
    table = EpochTable(tmp_path / "shop.epochs.json")
    assert table.epochs == (FIRST, SECOND)
    assert table.newest == SECOND
    assert table.executed == Executed(SECOND.first_scn, "0-2-8")


def test_the_newest_epoch_that_begins_again_replaces_itself(tmp_path: Path) -> None:
    table = filled(tmp_path / "shop.epochs.json")
    again = replace(SECOND, server="3")
    table.begin(again)
    assert EpochTable(tmp_path / "shop.epochs.json").epochs == (FIRST, again)


def test_a_change_of_the_epochs_is_told_when_it_is_stored(tmp_path: Path) -> None:
    table, told = EpochTable(tmp_path / "shop.epochs.json"), []

    def tell() -> None:
        told.append((table.epochs, EpochTable(tmp_path / "shop.epochs.json").epochs))

    table.on_change = tell
    table.begin(FIRST)
    table.adopt([FIRST])  # no change
    table.adopt([FIRST, SECOND])
    assert told == [((FIRST,), (FIRST,)), ((FIRST, SECOND), (FIRST, SECOND))]


def test_an_epoch_never_follows_a_later_one(tmp_path: Path) -> None:
    table = filled(tmp_path / "shop.epochs.json")
    with pytest.raises(RingError, match="epoch 0 cannot begin at server 1: epoch 1 has begun at"):
        table.begin(FIRST)
    assert EpochTable(tmp_path / "shop.epochs.json").epochs == (FIRST, SECOND)


def test_what_is_noted_is_not_stored_before_it_is_saved(tmp_path: Path) -> None:
    table = filled(tmp_path / "shop.epochs.json")
    table.note(Executed(SECOND.first_scn + 1, "0-2-9"))
    assert EpochTable(tmp_path / "shop.epochs.json").executed == Executed(SECOND.first_scn, "0-2-8")


@given(st.data())
def test_a_damaged_byte_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("epochs") / "shop.epochs.json"
    filled(path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 2))] ^= 1 << data.draw(st.integers(0, 6))
    path.write_bytes(content)
    with pytest.raises(RingError, match="cannot be read"):
        EpochTable(path)
