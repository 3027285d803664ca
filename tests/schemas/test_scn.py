"""SCNs: the position of a binlog in 63 bits."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.schemas.errors import ProtocolError
from databus.schemas.scn import MAX_SCN, BinlogPosition, binlog_position


@given(st.integers(0, (1 << 8) - 1), st.integers(0, (1 << 23) - 1), st.integers(0, (1 << 32) - 1))
def test_a_position_comes_back_from_its_scn(epoch: int, file_number: int, offset: int) -> None:
    position = BinlogPosition(epoch, file_number, offset)
    assert binlog_position(position.to_scn()) == position


def test_without_an_epoch_it_is_the_position_of_databus() -> None:
    assert BinlogPosition(0, 3, 4000).to_scn() == (3 << 32) + 4000
    assert BinlogPosition(1, 0, 0).to_scn() == 1 << 55


def test_scns_of_later_positions_are_greater() -> None:
    positions = [(0, 1, 4), (0, 1, 5), (0, 2, 4), (1, 1, 4), (255, (1 << 23) - 1, (1 << 32) - 1)]
    scns = [BinlogPosition(*position).to_scn() for position in positions]
    assert scns == sorted(scns)
    assert scns[-1] == MAX_SCN


@pytest.mark.parametrize(
    "position", [(256, 0, 0), (0, 1 << 23, 0), (0, 0, 1 << 32), (-1, 0, 0), (0, 0, -1)]
)
def test_a_part_that_has_no_room_is_refused(position: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match="is outside"):
        BinlogPosition(*position).to_scn()


@pytest.mark.parametrize("scn", [-1, MAX_SCN + 1])
def test_an_scn_out_of_range_is_refused(scn: int) -> None:
    with pytest.raises(ProtocolError, match="is outside"):
        binlog_position(scn)
