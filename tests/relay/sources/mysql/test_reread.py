"""What a second reading of a server's log is given of the first one's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.kind import RereadRequest
from databus.relay.sources.mysql.reread import _whole_lines, prepare_reread
from databus.relay.sources.mysql.tables.history import History, Record
from databus.schemas.scn import BinlogPosition
from tests.relay.sources.mysql.tables.test_history import history_of


def test_a_history_that_is_being_written_is_copied_up_to_its_last_whole_line(
    tmp_path: Path,
) -> None:
    path, cut, copy = tmp_path / "kept", tmp_path / "cut", tmp_path / "copy"
    history_of(path)
    data = path.read_bytes()
    for length in range(data.index(b"\n"), len(data) + 1):
        cut.write_bytes(data[:length])
        copy.write_bytes(_whole_lines(cut))
        lines = copy.read_bytes()
        assert data.startswith(lines)
        assert lines.count(b"\n") == data[:length].count(b"\n")
        assert History(copy).begin_scn == (10 if lines else None)


@pytest.mark.parametrize("is_start", [True, False])
def test_a_reading_begins_with_the_file_unless_the_first_one_is_known_to_have_begun_in_it(
    tmp_path: Path, is_start: bool
) -> None:
    kept, mark = tmp_path / "kept", Any
    file, inside, asked = (BinlogPosition(0, 1, offset).to_scn() for offset in (4, 669, 9000))
    # Without a start it is inside an event: what was known of the tables was looked up there.
    History(kept).begin(Record(inside, {}, {}, is_beginning=True, is_start=is_start))
    settings = PhysicalSourceSettings(
        name="shop", uri="mysql://databus@127.0.0.1:1", sources=("shop.orders",)
    )
    request = RereadRequest(asked, mark, "shop.again", tmp_path, tmp_path)  # type: ignore[arg-type]
    found = prepare_reread(settings, request, kept, tmp_path / "copy")
    assert found == (inside if is_start else file, inside)
