"""A ring opens with every whole window before the damage, or says that it can't.

Never with half a window, never with a wrong one, whatever byte is damaged and
wherever its writer was killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from databus.relay.ring import recovery as ring_recovery
from databus.relay.ring.layout import (
    FIRST,
    HEAD,
    MASK,
    NEXT,
    PAGE_BYTES,
    PREV_SCN,
    TAIL,
    Layout,
    open_file,
)
from databus.relay.ring.reader import RingReader
from databus.relay.ring.recovery import RingState, recover
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.relay.ring.scn_index import IndexEntry
from databus.schemas.errors import RingCorruptError, ScnNotFoundError
from tests.relay.instructions import looks_at_each_instruction
from tests.relay.ring.model import (
    RingModel,
    append_in_pieces,
    append_placed,
    batch_of,
    make_window,
    split_events,
    unstamped,
    window_of,
)
from tools.repository import ROOT

pytestmark = pytest.mark.usefixtures("way")

CAPACITY = 3000
BLOCK = 400
KILLS = 12


class RingImage:
    """A ring's file as bytes, the windows it holds, and where each of them lies."""

    def __init__(self, path: Path, windows: int) -> None:
        self.path = path
        self.model = RingModel()
        ring = Ring.open(path, "shop", CAPACITY, BLOCK, start_scn=0)
        for scn in range(1, windows + 1):
            window = make_window(scn, [scn * 7 % 60, scn % 40])
            ring.append([window])
            self.model.append([window])
        self.prev_scn, self.max_scn = ring.prev_scn, ring.max_scn
        self.head, self.tail = ring.head, ring.tail
        ring.close()
        self.content = path.read_bytes()
        self.data_at = len(self.content) - CAPACITY

    def starts(self) -> dict[int, int]:
        """Return where each window held begins, by its SCN."""
        position, starts = self.tail, {}
        for scn, events in reversed(self.model.windows):
            if position <= self.head:
                break
            position -= sum(map(len, events))
            starts[scn] = position
        return starts

    def in_file(self, position: int) -> int:
        return self.data_at + position % CAPACITY

    def open_with(self, content: bytes) -> tuple[int, int] | None:
        """Open the ring from these bytes; return (prev_scn, max_scn), None when refused.

        Whatever it holds must be windows of the list, and must still be that
        after another restart and another append.
        """
        with self.path.open("r+b") as file:  # not emptied first: file systems flush that
            file.write(content)
            file.truncate()
        try:
            Ring.open(self.path, "shop", CAPACITY).close()
        except RingCorruptError:
            return None
        ring = Ring.open(self.path, "shop", CAPACITY)
        reader = RingReader.open(self.path)
        try:
            extent, newest = reader.extent(), reader.newest()
            held = split_events(reader.read(extent.head, CAPACITY))
            assert held == [
                event
                for scn, events in self.model.windows
                if extent.prev_scn < scn <= newest[0]
                for event in events
            ]
            assert newest == (ring.max_scn, extent.head + sum(map(len, held)))
            following = make_window(1000)
            ring.append([following])
            assert reader.read(newest[1], CAPACITY) == following.data
            return extent.prev_scn, newest[0]
        finally:
            reader.close()
            ring.close()


@pytest.fixture(params=[6, 40], ids=["first lap", "wrapped"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> RingImage:
    return RingImage(tmp_path / "shop.ring", request.param)


def damaged_at(content: bytes, at: int, mask: int) -> bytes:
    return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


@pytest.mark.parametrize("mask", [0xFF, 0x01])
def test_damage_at_every_byte_of_the_last_two_windows_keeps_all_before_it(
    image: RingImage, mask: int
) -> None:
    starts = image.starts()
    for position in range(starts[image.max_scn - 1], image.tail):
        hit = image.max_scn if position >= starts[image.max_scn] else image.max_scn - 1
        content = damaged_at(image.content, image.in_file(position), mask)
        assert image.open_with(content) == (image.prev_scn, hit - 1)


def test_damage_in_any_window_keeps_those_before_it_or_when_it_is_the_first_those_after_it(
    image: RingImage,
) -> None:
    starts = image.starts()
    oldest = min(starts)
    for position in range(image.head, image.tail, 3):
        hit = max(scn for scn, start in starts.items() if start <= position)
        opened = image.open_with(damaged_at(image.content, image.in_file(position), 0x40))
        assert opened is not None
        prev_scn, max_scn = opened
        assert (prev_scn, max_scn) == (image.prev_scn, hit - 1) or (hit == oldest <= prev_scn)


def test_damage_at_every_byte_of_the_header_loses_nothing_or_is_refused(image: RingImage) -> None:
    everything = (image.prev_scn, image.max_scn)
    refused = set()
    every_byte = range(PAGE_BYTES if image.prev_scn else 704)  # nothing is behind the cells
    for at, mask in [(at, 0xFF) for at in every_byte] + [(at, 0x01) for at in range(704)]:
        opened = image.open_with(damaged_at(image.content, at, mask))
        assert opened in (everything, None)
        if opened is None:
            refused.add(at)
    assert refused == set(range(300)), "the first part is refused, the cells are mended"


def test_damage_at_every_byte_of_the_index_loses_only_what_hung_on_it(image: RingImage) -> None:
    index_end = PAGE_BYTES + 32 * Layout("shop", CAPACITY, BLOCK).index_slots
    for at in range(PAGE_BYTES, index_end):
        opened = image.open_with(damaged_at(image.content, at, 0x10))
        assert opened is not None
        prev_scn, max_scn = opened
        assert max_scn == image.max_scn
        assert image.prev_scn <= prev_scn < max_scn


def test_a_file_cut_at_every_byte_of_the_last_two_windows_keeps_all_before_the_cut(
    tmp_path: Path,
) -> None:
    image = RingImage(tmp_path / "shop.ring", 6)
    starts = image.starts()
    for position in range(starts[image.max_scn - 1], image.tail + 1):
        left = image.content[: image.in_file(position)]
        # A cut that takes zeros only (an EOP ends in its key, 0) is mended by lengthening.
        mended = left.ljust(len(image.content), b"\0")
        whole = []
        for scn, start in starts.items():
            place = slice(image.in_file(start), image.in_file(starts.get(scn + 1, image.tail)))
            if mended[place] == image.content[place]:
                whole.append(scn)
        assert image.open_with(left) == (image.prev_scn, max(whole))


def test_a_file_cut_anywhere_opens_with_right_windows_or_is_refused(image: RingImage) -> None:
    for length in (*range(0, PAGE_BYTES, 111), *range(PAGE_BYTES, len(image.content), 7)):
        opened = image.open_with(image.content[:length])
        if length < PAGE_BYTES:
            assert opened is None
        elif length > image.data_at:
            assert opened is not None


def test_a_reader_refuses_a_cut_file_instead_of_dying_of_it(image: RingImage) -> None:
    image.path.write_bytes(image.content[:-1])
    with pytest.raises(RingCorruptError, match=r"the file has \d+ of \d+ bytes"):
        RingReader.open(image.path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x" * 100, b"x" * 10_000, bytes(10_000)):
        (tmp_path / "shop.ring").write_bytes(content)
        with pytest.raises(RingCorruptError):
            Ring.open(tmp_path / "shop.ring", "shop", CAPACITY)


def test_a_file_of_another_byte_order_is_refused(image: RingImage) -> None:
    content = bytearray(image.content)
    content[12:16] = content[12:16][::-1]
    image.path.write_bytes(content)
    with pytest.raises(RingCorruptError, match="byte order"):
        RingReader.open(image.path)


def recover_as(path: Path, boot_id: tuple[int, int] | None) -> RingState:
    fd = os.open(path, os.O_RDWR)
    ring_file = open_file(path, fd, writable=True)
    try:
        return recover(ring_file, boot_id)
    finally:
        ring_file.close()
        os.close(fd)


def test_after_the_machine_went_down_every_byte_is_checked(
    image: RingImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage in an old block of a large ring is looked for after a reboot, not after a kill."""
    monkeypatch.setattr("databus.relay.ring.recovery._CHECKED_BYTES", 0)
    starts = image.starts()
    hit = image.prev_scn + 3
    image.path.write_bytes(damaged_at(image.content, image.in_file(starts[hit]) + 60, 0x01))
    newest = {boot_id: recover_as(image.path, boot_id).newest_scn for boot_id in (None, (1, 2))}
    assert newest == {None: image.max_scn, (1, 2): hit - 1}


@pytest.mark.parametrize("pair", [TAIL, HEAD, FIRST, NEXT, PREV_SCN])
@pytest.mark.parametrize("garbage", [0, 1, 2999, 1 << 40, (1 << 64) - 1])
def test_any_number_in_a_cell_loses_nothing(image: RingImage, pair: int, garbage: int) -> None:
    for cell in (pair, pair + 1):
        content = bytearray(image.content)
        content[cell * 8 : cell * 8 + 8] = garbage.to_bytes(8, "little")
        assert image.open_with(bytes(content)) == (image.prev_scn, image.max_scn)


def test_of_two_readings_of_first_that_are_both_entries_the_one_at_head_is_taken(
    image: RingImage,
) -> None:
    first, end = (
        int.from_bytes(image.content[cell * 8 : cell * 8 + 8], "little") for cell in (FIRST, NEXT)
    )
    assert end - first > 3
    for other in range(first + 1, end):
        for cell, value in ((FIRST, other), (FIRST + 1, other ^ MASK)):
            content = bytearray(image.content)
            content[cell * 8 : cell * 8 + 8] = value.to_bytes(8, "little")
            assert image.open_with(bytes(content)) == (image.prev_scn, image.max_scn)


def blocks(path: Path) -> list[IndexEntry]:
    with closing(RingReader.open(path)) as reader:
        extent = reader.extent()
        found = [reader._index.get(number) for number in range(extent.first, extent.end)]
        return [entry for entry in found if entry is not None]


def with_pair(content: bytes, cell: int, value: int) -> bytes:
    """Return the file with another number, which both its readings say."""
    changed = bytearray(content)
    for at, word in ((cell, value), (cell + 1, value ^ MASK)):
        changed[at * 8 : at * 8 + 8] = word.to_bytes(8, "little")
    return bytes(changed)


def without_second_block(image: RingImage) -> bytes:
    """Return the file with the second entry of its index wiped."""
    first = int.from_bytes(image.content[FIRST * 8 : FIRST * 8 + 8], "little") + 1
    at = PAGE_BYTES + first % Layout("shop", CAPACITY, BLOCK).index_slots * 32
    return image.content[:at] + bytes(32) + image.content[at + 32 :]


def test_the_index_that_a_thorough_look_writes_has_each_block_again(image: RingImage) -> None:
    before = blocks(image.path)
    assert len(before) > 1
    image.path.write_bytes(without_second_block(image))
    Ring.open(image.path, "shop", CAPACITY).close()
    assert blocks(image.path) == before


def test_a_quick_look_checks_so_many_bytes_and_two_blocks_at_least(
    image: RingImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = blocks(image.path)
    assert len(entries) > 3
    for number, entry in enumerate(entries):
        damaged = damaged_at(image.content, image.in_file(entry.position) + 60, 0x01)
        for checked_bytes in (image.tail - entry.position, image.tail - entry.position - 1, 0):
            monkeypatch.setattr("databus.relay.ring.recovery._CHECKED_BYTES", checked_bytes)
            image.path.write_bytes(damaged)
            is_seen = checked_bytes + entry.position >= image.tail or number >= len(entries) - 2
            assert bool(recover_as(image.path, None).dropped) == is_seen


def test_what_is_dropped_is_said_once_with_the_byte_and_the_scn(image: RingImage) -> None:
    assert recover_as(image.path, (1, 2)).dropped == ""
    starts = image.starts()
    for hit, start in starts.items():
        image.path.write_bytes(damaged_at(image.content, image.in_file(start) + 60, 0x01))
        state = recover_as(image.path, (1, 2))
        if start == image.head:
            at, lost = image.in_file(image.head), f"up to scn {state.prev_scn}"
            assert state.prev_scn >= hit
        else:
            at, lost = image.in_file(start), f"what followed scn {hit - 1}"
        assert f"ring {image.path} is not whole at byte {at} " in state.dropped
        assert f"{lost} is dropped" in state.dropped
        assert recover_as(image.path, (1, 2)).dropped == ""


def test_a_reader_is_told_that_the_beginning_is_gone_while_the_rest_is_still_looked_at(
    image: RingImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    image.path.write_bytes(damaged_at(image.content, image.in_file(image.head) + 60, 0x01))
    wipe, looks = ring_recovery._wipe_all_but, []

    def look_and_wipe(*arguments: Any) -> None:
        with closing(RingReader.open(image.path)) as reader:
            wipe(*arguments)
            looks.append(reader.extent().head == reader.head)
            with pytest.raises(ScnNotFoundError):
                reader.read(image.head, 10)

    monkeypatch.setattr(ring_recovery, "_wipe_all_but", look_and_wipe)
    assert recover_as(image.path, (1, 2)).head > image.head
    assert looks == [True]


EMPTY_PAIRS = {"first": FIRST, "next": NEXT, "head": HEAD, "tail": TAIL, "prev_scn": PREV_SCN}


@pytest.mark.parametrize("name", EMPTY_PAIRS)
def test_of_a_ring_that_never_held_a_window_nothing_is_guessed(tmp_path: Path, name: str) -> None:
    path, cell = tmp_path / "shop.ring", EMPTY_PAIRS[name]
    Ring.open(path, "shop", CAPACITY, start_scn=70).close()
    content = path.read_bytes()
    for half in (cell, cell + 1):
        path.write_bytes(damaged_at(content, half * 8, 0x05))
        if name == "prev_scn":  # nothing else says it
            with pytest.raises(RingCorruptError, match="both its cells and its index"):
                recover_as(path, (1, 2))
        else:
            assert recover_as(path, (1, 2))[:6] == (0, 0, 0, 0, 70, 70)
    path.write_bytes(with_pair(content, cell, 5))
    if name == "prev_scn":
        assert recover_as(path, (1, 2)).newest_scn == 5
    else:
        with pytest.raises(RingCorruptError, match="both its cells and its index"):
            recover_as(path, (1, 2))


def blocks_behind_the_newest(path: Path) -> list[IndexEntry]:
    with closing(RingReader.open(path)) as reader:
        end, slots = reader._cells[NEXT], reader._file.layout.index_slots
        found = [reader._index.get(number) for number in range(end + 1, end + slots)]
        return [entry for entry in found if entry is not None]


@pytest.mark.parametrize("windows", [9, 50], ids=["first lap", "wrapped"])
def test_of_blocks_that_a_tail_does_not_reach_the_index_keeps_none(
    tmp_path: Path, windows: int
) -> None:
    path, size = tmp_path / "shop.ring", len(make_window(1, [20]).data)
    assert 2 * size < BLOCK, "a tail may lie inside a block, too"
    with closing(Ring.open(path, "shop", CAPACITY, BLOCK, start_scn=0)) as ring:
        ring.append([make_window(scn, [20]) for scn in range(1, windows + 1)])
        prev_scn, tails = ring.prev_scn, range(ring.tail, ring.head, -size)
    content = path.read_bytes()
    for scn, tail in zip(range(windows, prev_scn, -1), tails, strict=True):
        path.write_bytes(with_pair(content, TAIL, tail))
        with closing(Ring.open(path, "shop", CAPACITY)) as ring:
            assert (ring.tail, ring.max_scn, ring.prev_scn) == (tail, scn, prev_scn)
        assert blocks(path)[-1].position < tail
        assert blocks_behind_the_newest(path) == []


def test_of_a_ring_without_a_whole_window_the_index_keeps_no_block(image: RingImage) -> None:
    image.path.write_bytes(image.content[: image.data_at] + bytes(CAPACITY))
    with closing(Ring.open(image.path, "shop", CAPACITY)) as ring:
        assert (ring.min_scn, ring.max_scn) == (-1, image.prev_scn)
    assert blocks_behind_the_newest(image.path) == []


def test_dropped_windows_are_zeroed_so_that_no_later_walk_takes_them(image: RingImage) -> None:
    starts = image.starts()
    hit = image.max_scn - 1
    damaged = damaged_at(image.content, image.in_file(starts[hit]), 0xFF)
    image.path.write_bytes(damaged)
    Ring.open(image.path, "shop", CAPACITY).close()
    content = image.path.read_bytes()
    dropped = range(starts[hit], image.tail)
    assert {content[image.in_file(position)] for position in dropped} == {0}


# -- killed at any instruction ---------------------------------------------------------------


def snapshots(path: Path, work: Callable[[], None], modules: tuple[str, ...]) -> list[bytes]:
    """Run `work`; return the file as it was after each bytecode that changed it."""
    return [*looks_at_each_instruction(work, path.read_bytes, modules), path.read_bytes()]


WRITER_MODULES = tuple(
    f"databus.relay.ring.{name}"
    for name in ("ring", "layout", "recovery", "events", "scn_index", "room")
)


def with_half_copies(images: list[bytes], data_at: int) -> Iterator[bytes]:
    """Yield the images, and between two whose data differ one with half of it copied."""
    yield images[0]
    for before, after in pairwise(images):
        changed = [at for at in range(data_at, len(after)) if before[at] != after[at]]
        if len(changed) > 1:
            middle = changed[len(changed) // 2]
            yield before[:middle] + after[middle:]
            yield after[:middle] + before[middle:]
        yield after


Append = Callable[[Ring, list[EncodedWindow]], None]


def append_singly(ring: Ring, windows: list[EncodedWindow]) -> None:
    ring.append(windows[:3])
    for window in windows[3:]:
        ring.append([window])


def append_batches(ring: Ring, windows: list[EncodedWindow]) -> None:
    ring.append_batch(batch_of(windows[:4]))
    ring.append_batch(batch_of(windows[4:]))


def append_placed_batches(ring: Ring, windows: list[EncodedWindow]) -> None:
    """Between them, room that is written and comes to nothing."""
    for begin in range(0, len(windows), 3):
        _, room = ring.reserve(500) or (0, memoryview(bytearray(9)))
        with room:
            room[:] = bytes([begin + 1]) * len(room)
        if not append_placed(ring, windows[begin : begin + 3]):
            ring.append_batch(batch_of(windows[begin : begin + 3]))


def extend_and_finish(ring: Ring, windows: list[EncodedWindow]) -> None:
    """Between them, windows that come to nothing: one evicts all there is."""
    for window in windows[:-1]:
        append_in_pieces(ring, window, 90)
    ring.extend(0, unstamped(windows[-1]))
    ring.append([])
    append_in_pieces(ring, windows[-1], 1000)


@pytest.mark.parametrize("before", [0, 5, 30])
@pytest.mark.parametrize(
    "append", [append_singly, append_batches, append_placed_batches, extend_and_finish]
)
def test_a_writer_killed_at_any_instruction_of_append_loses_no_published_window(
    tmp_path: Path, append: Append, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("databus.relay.ring.ring.RESERVED_PART", 2)
    image = RingImage(tmp_path / "shop.ring", before)
    new = [make_window(scn, [scn % 50] * (scn % 4)) for scn in range(before + 1, before + 9)]
    new.append(make_window(before + 9, [CAPACITY - 140]))  # evicts all
    ring = Ring.open(image.path, "shop", CAPACITY)
    images = snapshots(image.path, lambda: append(ring, new), WRITER_MODULES)
    ring.close()
    image.model.append(new)
    assert len(images) > 50
    newest_seen = before
    for content in with_half_copies(images, image.data_at):
        opened = image.open_with(content)
        assert opened is not None
        # What was published before the kill is there: max_scn never goes back.
        assert opened[1] >= newest_seen
        newest_seen = opened[1]
    assert newest_seen == before + 9


def with_last_windows_harmed(image: RingImage) -> bytes:
    return damaged_at(image.content, image.in_file(image.starts()[image.max_scn - 1]), 0xFF)


def with_first_window_harmed(image: RingImage) -> bytes:
    return damaged_at(image.content, image.in_file(image.head) + 60, 0x01)


@pytest.mark.parametrize(
    "harm", [with_last_windows_harmed, with_first_window_harmed, without_second_block]
)
def test_a_recovery_killed_at_any_instruction_ends_as_one_that_was_not(
    image: RingImage, harm: Callable[[RingImage], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a quick look sees it.
    monkeypatch.setattr("databus.relay.ring.recovery._CHECKED_BYTES", CAPACITY)
    expected, expected_blocks = image.open_with(harm(image)), blocks(image.path)
    assert expected is not None
    image.path.write_bytes(harm(image))

    def open_and_close() -> None:
        Ring.open(image.path, "shop", CAPACITY).close()

    for content in snapshots(image.path, open_and_close, WRITER_MODULES):
        assert image.open_with(content) == expected
        assert blocks(image.path) == expected_blocks


def test_kill_9_at_random_moments_loses_no_acknowledged_window(tmp_path: Path, way: str) -> None:
    seed = int(os.environ.get("RING_KILL_SEED", random.randrange(1 << 32)))
    print(f"RING_KILL_SEED={seed}")
    chosen = random.Random(seed)
    path, capacity = tmp_path / "shop.ring", 16 << 10
    acknowledged = 0
    for _ in range(KILLS):
        acknowledged = append_and_kill(path, capacity, way, chosen.randrange(1, 4000))
        ring = Ring.open(path, "shop", capacity)
        reader = RingReader.open(path)
        assert ring.max_scn >= acknowledged
        held = reader.read(ring.head, capacity)
        assert held == b"".join(
            window_of(scn).data for scn in range(ring.prev_scn + 1, ring.max_scn + 1)
        )
        reader.close()
        ring.close()
    assert acknowledged > 3 * KILLS


def append_and_kill(path: Path, capacity: int, way: str, bytes_of_answers: int) -> int:
    """Let another process append; kill it; return the last SCN it said was in."""
    arguments = ["tests.relay.ring.child", "append", str(path), str(capacity), way]
    with subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        answers = child.stdout.read(bytes_of_answers)
        child.send_signal(signal.SIGKILL)
        answers += child.stdout.read()
    return int(answers[: answers.rindex(b"\n")].split(b"\n")[-1])


def test_a_damaged_file_of_an_unknown_start_is_still_unknown(tmp_path: Path) -> None:
    path = tmp_path / "shop.ring"
    Ring.open(path, "shop", CAPACITY).close()
    state = recover_as(path, (3, 4))
    assert (state.prev_scn, state.newest_scn) == (-1, -1)
