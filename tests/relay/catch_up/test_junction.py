"""Where two histories meet: equal rows prove it, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from databus.relay.capture.overlap.window_digests import window_digests
from databus.relay.catch_up.junction import bound_of, compare, lacks
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.events import CHUNK_BYTES
from databus.relay.ring.scn_index import Extent
from databus.schemas.errors import RelayLogError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode

SCHEMA = bytes(range(16))
Row = tuple[int, bytes, bytes | None]  # of a source: key and row, and the row before


def row(key: int, after: bytes = b"a", before: bytes | None = None) -> Row:
    return key, after, before


class Windows:
    """Windows in memory, read as those of a ring are."""

    def __init__(self, *windows: tuple[int, Sequence[Row]], file: str = "log.1") -> None:
        self.ends: list[tuple[int, int]] = []
        self.data = b""
        for scn, rows in windows:
            for key, after, before in rows:
                op = Op.INSERT if before is None else Op.UPDATE
                metadata = encode_metadata(EventMetadata(op, file=file, before=before))
                part = metadata_part(metadata)
                payload = Part(after, SCHEMA)
                self.data += encode(Event(scn, scn, 1, 0, key, Opcode.UPSERT, payload, part))
            self.data += encode(end_of_period(scn, scn))
            self.ends.append((scn, len(self.data)))

    @property
    def max_scn(self) -> int:
        return self.ends[-1][0] if self.ends else -1

    def find(self, scn: int, window_offset: int) -> int | None:
        assert window_offset == WINDOW_DONE
        return None if scn > self.max_scn else max((e for s, e in self.ends if s <= scn), default=0)

    def read(self, position: int, max_bytes: int) -> bytes:
        return self.data[position : position + max_bytes]

    def extent(self, prev_scn: int) -> Extent:
        oldest = self.ends[0][0] if self.ends else -1
        return Extent(0, len(self.data), oldest, prev_scn, 0, 1)


def every(_event: Event) -> bool:
    return True


HELD = Windows((30, [row(3)]), (40, []), (50, [row(5, b"b", b"a")]))


def test_equal_rows_prove_it_whatever_the_file_and_the_empty_windows_are() -> None:
    read = Windows(
        (10, [row(1)]), (20, [row(2)]), (30, [row(3)]), (50, [row(5, b"b", b"a")]), file="log.2"
    )
    proved = compare(HELD.extent(20), HELD, read, every)
    assert proved == 50


@pytest.mark.parametrize(
    "newest",
    [
        [(30, [row(3)])],
        [(25, [])],
    ],
    ids=["a part of what is compared", "none of it"],
)
def test_as_long_as_it_has_not_read_that_far_nothing_is_proved(
    newest: list[tuple[int, list[Row]]],
) -> None:
    assert compare(HELD.extent(20), HELD, Windows((20, [row(2)]), *newest), every) is None


@pytest.mark.parametrize(
    "windows",
    [
        [(30, [row(3, b"z")]), (50, [row(5, b"b", b"a")])],
        [(30, [row(3)]), (50, [row(5, b"b", b"z")])],
        [(30, [row(3)]), (50, [row(5, b"b")])],
        [(30, [row(3)]), (45, [row(4)]), (50, [row(5, b"b", b"a")])],
        [(25, [row(9)]), (30, [row(3)]), (50, [row(5, b"b", b"a")])],
        [(50, [row(5, b"b", b"a")])],
    ],
    ids=["after", "before", "op", "one more", "one more before the oldest", "one less"],
)
def test_other_rows_are_an_error(windows: list[tuple[int, list[Row]]]) -> None:
    with pytest.raises(RelayLogError, match="not one history"):
        compare(HELD.extent(20), HELD, Windows((20, [row(2)]), *windows), every)


def test_rows_that_the_relay_did_not_capture_do_not_count() -> None:
    read = Windows((20, []), (30, [row(3), row(99)]), (50, [row(5, b"b", b"a")]))
    assert compare(HELD.extent(20), HELD, read, lambda event: event.key != 99) is not None


def test_an_empty_ring_is_reached_with_its_newest_scn() -> None:
    empty = Windows()
    assert compare(empty.extent(20), empty, Windows((10, [row(1)])), every) is None
    assert compare(empty.extent(20), empty, Windows((20, [row(1)])), every) == 20


def test_without_the_scn_before_the_oldest_window_the_bound_is_that_window() -> None:
    held = HELD.extent(-1)
    assert (bound_of(held), bound_of(HELD.extent(20))) == (30, 20)
    assert [lacks(held, (scn, WINDOW_DONE)) for scn in (0, 29, 30)] == [False, True, False]
    asked = [(19, -1), (20, -1), (20, 0), (30, 0)]
    assert [lacks(HELD.extent(20), one) for one in asked] == [True, False, True, False]
    assert not lacks(Windows().extent(-1), (5, WINDOW_DONE))


BEGUN = Windows((30, []), (40, [row(4)]), (50, [row(5)]))  # capture began after 30, at `latest`


@pytest.mark.parametrize("unread", [[row(3)], [row(3), row(6)], []])
def test_the_place_where_capture_began_says_nothing_of_the_rows_there(unread: list[Row]) -> None:
    read = Windows((20, [row(2)]), (30, unread), (40, [row(4)]), (50, [row(5)]))
    assert compare(BEGUN.extent(-1), BEGUN, read, every) == 50
    only = Windows((30, []))
    assert compare(only.extent(-1), only, read, every) == 30


@pytest.mark.parametrize(
    "windows",
    [
        [(40, [row(4, b"z")]), (50, [row(5)])],
        [(35, [row(9)]), (40, [row(4)]), (50, [row(5)])],
        [(50, [row(5)])],
    ],
    ids=["other rows", "one more", "one less"],
)
def test_what_was_captured_since_the_begin_is_compared(
    windows: list[tuple[int, list[Row]]],
) -> None:
    with pytest.raises(RelayLogError, match="not one history"):
        compare(BEGUN.extent(-1), BEGUN, Windows((30, [row(3)]), *windows), every)


def test_an_oldest_window_with_rows_is_compared_if_nothing_is_known_of_what_was_before() -> None:
    read = Windows((20, [row(2)]), (30, [row(3)]), (50, [row(5, b"b", b"a")]))
    assert compare(HELD.extent(-1), HELD, read, every) == 50
    other = Windows((20, [row(2)]), (30, [row(9)]), (50, [row(5, b"b", b"a")]))
    with pytest.raises(RelayLogError, match="at scn 30"):
        compare(HELD.extent(-1), HELD, other, every)


def test_windows_and_events_larger_than_a_chunk_have_digests_too() -> None:
    large = Windows((10, [row(1, b"x" * CHUNK_BYTES * 2), row(2)]), (20, [row(3)] * 500))
    found = list(window_digests(large, 0, every))
    assert [one.scn for one in found] == [10, 20]
    other = Windows((10, [row(1, b"x" * CHUNK_BYTES * 2), row(3)]), (20, [row(3)] * 500))
    assert [one.digest for one in window_digests(other, 0, every)][1] == found[1].digest
    assert next(window_digests(other, 0, every)).digest != found[0].digest
