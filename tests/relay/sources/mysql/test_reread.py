"""What a second reading of a server's log is given of the first one's."""

from __future__ import annotations

from pathlib import Path

from databus.relay.sources.mysql.reread import _whole_lines
from databus.relay.sources.mysql.tables.history import History
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
