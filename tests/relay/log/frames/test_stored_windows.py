"""Frames of a log as they lie on disk are one stream of zstd, and have the windows that it has."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from zstandard import ZstdDecompressor

from databus.relay.log.frames.stored_windows import StoredWindows
from databus.relay.log.reader import LogReader
from databus.relay.log.segment import segment_paths
from databus.schemas.windows import EncodedWindow
from tests.relay.log.logs import append, append_large, open_writer, reading
from tests.relay.ring.model import make_window

ALL = 1 << 30


def decoded(stored: StoredWindows) -> bytes:
    """Return the events in a part of a file."""
    out: list[bytes] = []

    class _Pieces:
        def write(self, piece: bytes) -> int:
            out.append(piece)
            return len(piece)

    ZstdDecompressor().stream_writer(_Pieces()).write(stored.file.read())  # type: ignore[arg-type]
    return b"".join(out)


def windows(scns: range) -> list[EncodedWindow]:
    """Return windows of some events each."""
    return [make_window(scn, [200] * (scn % 3 + 1)) for scn in scns]


def write(folder: Path, *, is_compressed: bool = True) -> list[int]:
    """Write a log of frames in several segments; return the positions of the frames."""
    writer = open_writer(folder, segment_bytes=6000, is_compressed=is_compressed)
    positions = []
    for begin in range(1, 200, 7):
        positions.append(writer.written.position)
        append(writer, windows(range(begin, begin + 7)))
    writer.sync()
    writer.close()
    return positions


def test_from_every_frame_on_whole_frames_decode_to_the_windows_of_the_log(tmp_path: Path) -> None:
    positions = write(tmp_path)
    assert len(segment_paths(tmp_path)) > 2
    with reading(tmp_path) as reader:
        for at in positions:
            for most_bytes in (9000, 14_000, ALL):
                stored = reader.stored_windows(at, most_bytes)
                assert stored is not None
                data = decoded(stored)
                assert data == reader.read(at, stored.end - at)
                assert len(data) == stored.plain_bytes == stored.end - at <= most_bytes
                assert reader.find(stored.scn, -1) == stored.end
                assert stored.end in (*positions, reader.tail)


def test_what_begins_inside_a_frame_or_is_too_large_or_not_compressed_is_read_otherwise(
    tmp_path: Path,
) -> None:
    first, second, *_ = write(tmp_path / "zstd")
    with reading(tmp_path / "zstd") as reader:
        inside = reader.find(2, -1)
        assert inside is not None
        assert first < inside < second
        assert reader.stored_windows(inside, ALL) is None
        assert reader.rest_of_frame(inside) == second - inside
        assert reader.stored_windows(first, second - first - 1) is None
        assert reader.rest_of_frame(first) == 0
        assert reader.stored_windows(reader.tail, ALL) is None
        assert reader.rest_of_frame(reader.tail) == 0
    write(tmp_path / "plain", is_compressed=False)
    with reading(tmp_path / "plain") as reader:
        assert reader.stored_windows(first, ALL) is None
        assert reader.rest_of_frame(inside) == 0


def test_a_window_of_several_frames_is_sent_whole_or_not_at_all(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    append(writer, windows(range(1, 3)))
    large = make_window(3, [400] * 40)
    begin = writer.written.position
    append_large(writer, large, 2000)
    end = writer.written.position
    append(writer, windows(range(4, 6)))
    writer.sync()
    writer.close()
    with reading(tmp_path) as reader:
        stored = reader.stored_windows(0, end)
        assert stored is not None
        assert (stored.end, stored.scn) == (end, 3)
        assert decoded(stored) == reader.read(0, end)
        short = reader.stored_windows(0, end - 1)
        assert short is not None
        assert (short.end, short.scn) == (begin, 2)
        assert reader.stored_windows(begin, end - begin - 1) is None


def test_a_file_stays_open_and_locked_as_long_as_a_part_of_it_is_sent(tmp_path: Path) -> None:
    write(tmp_path)
    path = segment_paths(tmp_path)[0]

    def is_free() -> bool:
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    with reading(tmp_path) as reader:
        stored = reader.stored_windows(0, ALL)
        assert stored is not None
        reader.read(reader.tail - 1, 1)  # in another segment
        assert not is_free()
        expected = reader.read(0, stored.end)
        reader.read(reader.tail - 1, 1)
        path.unlink()
        assert decoded(stored) == expected
    write_again(path)
    assert is_free()


def write_again(path: Path) -> None:
    """Make a file that nobody has open."""
    path.write_bytes(b"")


def test_a_file_that_is_shorter_than_it_should_be_is_an_error(tmp_path: Path) -> None:
    write(tmp_path)
    with reading(tmp_path) as reader:
        stored = reader.stored_windows(0, ALL)
        assert stored is not None
        os.truncate(segment_paths(tmp_path)[0], stored.file.offset + 10)
        with pytest.raises(OSError, match="bytes before it should"):
            stored.file.read()


def test_nothing_of_an_empty_log_is_stored(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    reader = LogReader(writer)
    assert reader.stored_windows(0, ALL) is None
    reader.close()
    writer.close()
