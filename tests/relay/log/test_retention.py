"""Old segments go, oldest first, but not under a reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.relay.log.directory import DELETED, folders_aside
from databus.relay.log.hold import Hold
from databus.relay.log.reader import LogReader
from databus.relay.log.retention import Retention
from databus.relay.log.segment import segment_paths
from databus.relay.log.writer import LogWriter
from databus.schemas.errors import ScnNotFoundError
from tests.relay.log.logs import Hands, append, open_writer, reading
from tests.relay.ring.model import make_window

HOUR_NS = 3600 * 10**9


@pytest.fixture
def hands() -> Hands:
    return Hands()


def fill(folder: Path, hands: Hands, count: int) -> LogWriter:
    """Write segments of one window each, one an hour."""
    writer = open_writer(folder, segment_bytes=1, wall_ns=hands)
    for scn in range(1, count + 1):
        append(writer, [make_window(scn, [900])])
        hands.now_ns += HOUR_NS
    writer.sync()
    return writer


def first_scns(writer: LogWriter) -> list[int]:
    return [segment.header.first_scn for segment in writer.segments]


def test_segments_are_kept_for_some_hours(tmp_path: Path, hands: Hands) -> None:
    writer = fill(tmp_path, hands, 6)
    Retention(writer, 1 << 30, 2.5).clean(hands.now_ns)
    assert first_scns(writer) == [4, 5, 6]
    writer.close()


def test_segments_are_kept_up_to_a_size(tmp_path: Path, hands: Hands) -> None:
    writer = fill(tmp_path, hands, 6)
    sizes = [segment.size_bytes for segment in writer.segments]
    retention = Retention(writer, sum(sizes[3:]), 1000)
    retention.clean(hands.now_ns)
    assert first_scns(writer) == [4, 5, 6]
    assert retention.size_bytes == sum(sizes[3:])
    writer.close()


def test_what_a_consumer_has_not_read_is_kept_up_to_a_size_of_its_own(
    tmp_path: Path, hands: Hands
) -> None:
    writer = fill(tmp_path, hands, 6)
    sizes = [segment.size_bytes for segment in writer.segments]
    hold = Hold(["ann", "bob"])
    retention = Retention(writer, sum(sizes[4:]), 1000, hold, sum(sizes))
    hold.note({"ann": 5, "eve": 1})
    retention.clean(hands.now_ns)
    assert (first_scns(writer), hold.after_scn) == ([1, 2, 3, 4, 5, 6], -1), "bob has not reported"
    hold.note({"bob": 2})
    retention.clean(hands.now_ns)
    assert (first_scns(writer), hold.after_scn) == ([3, 4, 5, 6], 2)
    hold.note({"bob": 3})  # ann, who is silent, still counts
    retention.clean(hands.now_ns)
    assert (first_scns(writer), retention.unread) == ([4, 5, 6], "")
    tight = Retention(writer, sum(sizes[4:]), 1000, hold, sum(sizes[5:]))
    tight.clean(hands.now_ns)
    assert first_scns(writer) == [5, 6]
    assert "was deleted, though ann, bob had not read all of it" in tight.unread
    writer.close()


def test_the_segment_being_written_is_kept(tmp_path: Path, hands: Hands) -> None:
    writer = fill(tmp_path, hands, 3)
    Retention(writer, 0, 0).clean(hands.now_ns + HOUR_NS)
    assert first_scns(writer) == [3]
    writer.close()
    writer = open_writer(tmp_path)
    assert writer.durable.scn == 3
    writer.close()


def test_a_segment_is_renamed_first_and_deleted_at_the_next_round(
    tmp_path: Path, hands: Hands
) -> None:
    writer = fill(tmp_path, hands, 3)
    retention = Retention(writer, 1 << 30, 1.5)
    retention.clean(hands.now_ns)
    assert len(list(tmp_path.glob(f"*{DELETED}"))) == 1
    retention.clean(hands.now_ns)
    assert list(tmp_path.glob(f"*{DELETED}")) == []
    assert len(segment_paths(tmp_path)) == 2
    writer.close()


def test_a_segment_that_a_reader_has_open_is_kept_with_all_newer_ones(
    tmp_path: Path, hands: Hands
) -> None:
    writer = fill(tmp_path, hands, 6)
    retention = Retention(writer, 0, 0)
    with reading(tmp_path) as reader:
        position = reader.find(2, 0)
        assert position is not None
        data = reader.read(position, 10)
        retention.clean(hands.now_ns)
        assert first_scns(writer) == [2, 3, 4, 5, 6]
        assert reader.read(position, 10) == data
    retention.clean(hands.now_ns)
    assert first_scns(writer) == [6]
    writer.close()


def test_a_reader_of_what_is_gone_is_told_the_oldest(tmp_path: Path, hands: Hands) -> None:
    writer = fill(tmp_path, hands, 6)
    reader = LogReader(writer)
    Retention(writer, 1 << 30, 3.5).clean(hands.now_ns)
    with pytest.raises(ScnNotFoundError) as caught:
        reader.find(1, -1)
    assert caught.value.oldest == reader.min_scn == 3
    assert reader.find(2, -1) == reader.head
    reader.close()
    writer.close()


def test_logs_aside_count_and_go_first(tmp_path: Path, hands: Hands) -> None:
    fill(tmp_path, hands, 3).close()
    writer = open_writer(tmp_path, segment_bytes=1, wall_ns=hands)
    writer.begin_anew(9)
    for scn in (10, 11):
        append(writer, [make_window(scn, [900])])
    writer.sync()
    retention = Retention(writer, 1, 1000)
    (aside,) = folders_aside(tmp_path)
    with reading(aside) as reader:
        assert reader.find(2, 0) is not None  # opens the second
        retention.clean(hands.now_ns)
        assert len(segment_paths(aside)) == 2
        assert first_scns(writer) == [10, 11]
    retention.clean(hands.now_ns)
    retention.clean(hands.now_ns)
    assert folders_aside(tmp_path) == []
    assert first_scns(writer) == [11]
    writer.close()
