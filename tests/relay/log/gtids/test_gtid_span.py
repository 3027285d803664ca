"""A GTID is found in the frames of a log that its segments' indexes name, and in no other."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NoReturn

import pytest

from databus.relay.log.gtids.frame_gtids import split_gtid
from databus.relay.log.gtids.gtid_span import GtidSpan
from databus.relay.log.reader import LogReader
from databus.relay.log.segment import read_segment, segment_paths
from databus.relay.log.verify import verify_segment
from databus.schemas.errors import RelayLogDamagedError
from databus.schemas.event.metadata import gtid_bytes
from tests.relay.log.gtids.windows import UUID, footer_of, gtids_at, take_index_out, window
from tests.relay.log.logs import append, append_large, open_writer, reading

Frames = dict[int, list[str]]  # the GTIDs of each frame, by its position


def refuse(error: RelayLogDamagedError) -> NoReturn:
    raise error


def write(folder: Path, seed: int, *, is_sealed: bool = True) -> Frames:
    """Write a log of many segments whose GTIDs are in no order."""
    draw, found, scn = random.Random(seed), {}, 0
    numbers = draw.sample(range(1, 5000), 400)
    writer = open_writer(folder, segment_bytes=5000)
    while numbers:
        taken = [numbers.pop() for _ in range(min(len(numbers), draw.randrange(1, 6)))]
        gtids = [f"0-{draw.choice((1, 2))}-{n}" if n % 3 else f"{UUID}:{n}" for n in taken]
        position = writer.written.position
        if draw.random() < 0.2:
            large = window(scn + 1, gtids[0], 30)
            append_large(writer, large, 900)
            found[position], scn = gtids[:1], scn + 1
        else:
            append(writer, [window(scn + n, gtid) for n, gtid in enumerate(gtids, 1)])
            found[position], scn = gtids, scn + len(gtids)
    writer.sync()
    assert len(writer.segments) > 3
    if is_sealed:
        writer.seal()
    writer.close()
    return found


def spans(reader: LogReader, gtid: str) -> list[GtidSpan]:
    """Return all places in which a GTID may be."""
    found, position = [], reader.head
    while (span := reader.gtid_span(position, split_gtid(gtid.encode()), refuse)) is not None:
        assert span.end > position
        found.append(span)
        position = span.end
    return found


@pytest.mark.parametrize("is_sealed", [True, False])
def test_every_gtid_is_in_a_frame_that_is_named(tmp_path: Path, is_sealed: bool) -> None:
    frames = write(tmp_path, 7, is_sealed=is_sealed)
    named = 0
    with reading(tmp_path) as reader:
        for position, gtids in frames.items():
            for gtid in gtids:
                found = spans(reader, gtid)
                assert position in [span.begin for span in found]
                assert all(span.is_frame for span in found)
                (span,) = (one for one in found if one.begin == position)
                assert gtid_bytes(gtid) in reader.read(span.begin, span.end - span.begin)
                named += len(found)
        assert spans(reader, "0-1-5000") == spans(reader, "7-7-7") == []
    count = sum(map(len, frames.values()))
    assert named < count * len(frames) / 4  # not simply all of them


def test_a_log_that_is_opened_again_still_has_the_gtids_of_its_unsealed_segment(
    tmp_path: Path,
) -> None:
    frames = write(tmp_path, 8, is_sealed=False)
    writer = open_writer(tmp_path)
    writer.seal()
    writer.close()
    assert verify_segment(segment_paths(tmp_path)[-1])
    with reading(tmp_path) as reader:
        for position, gtids in frames.items():
            assert all(position in [one.begin for one in spans(reader, gtid)] for gtid in gtids)


def test_frames_that_were_taken_back_are_not_named(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    append(writer, [window(1, "0-1-1")])
    writer.sync()
    append(writer, [window(2, "0-1-2")])
    writer.roll_back()
    append(writer, [window(2, "0-1-3")])
    writer.seal()
    writer.close()
    (path,) = segment_paths(tmp_path)
    assert verify_segment(path) == 2
    assert read_segment(path).gtids == {b"0-1-": (1, 3)}
    with reading(tmp_path) as reader:
        assert spans(reader, "0-1-2") == []
        assert len(spans(reader, "0-1-3")) == 1


def test_a_segment_without_an_index_may_have_any_gtid(tmp_path: Path) -> None:
    frames = write(tmp_path, 9)
    paths = segment_paths(tmp_path)
    take_index_out(paths[1:3])
    for path in paths:
        verify_segment(path)
    assert [read_segment(path).gtids is None for path in paths[:4]] == [False, True, True, False]
    with reading(tmp_path) as reader:
        found = [span for span in spans(reader, "7-7-7") if not span.is_frame]
        segments = [read_segment(path) for path in paths[1:3]]
        assert found == [(one.header.position, one.end.position, False) for one in segments]
        for position, gtids in frames.items():
            for gtid in gtids:
                assert any(one.begin <= position < one.end for one in spans(reader, gtid))


def test_a_damaged_index_is_refused_by_name_and_its_windows_are_searched(tmp_path: Path) -> None:
    write(tmp_path, 10)
    path = segment_paths(tmp_path)[1]
    data, (begin, end) = path.read_bytes(), gtids_at(path)
    list_at, gtid = (
        end - footer_of(path).gtid_list_bytes,
        next(iter(read_segment(path).gtids or ())),
    )
    wanted = split_gtid(gtid + str((read_segment(path).gtids or {})[gtid][0]).encode())
    for at in range(begin, end):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(RelayLogDamagedError, match=path.name):
            verify_segment(path)
        segment, named = read_segment(path), list[RelayLogDamagedError]()
        if at >= list_at:
            assert (segment.gtids, segment.damage) == (None, "its index of GTIDs is damaged")
        with reading(tmp_path) as reader:
            begins = segment.header.position, segment.end.position
            span = reader.gtid_span(begins[0], wanted, named.append)
        if named:
            assert span == GtidSpan(*begins)
            assert named[0].problem == "its index of GTIDs is damaged"
            assert named[0].path == str(path)
        else:
            assert at < list_at  # of another prefix
