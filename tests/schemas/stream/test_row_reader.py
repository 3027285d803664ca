"""The client's reader: the same windows as the plain reader's, whatever comes in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import (
    LoggedStatement,
    checkpoint_event,
    ddl_event,
    dml_event,
    end_of_period,
    statement_of,
)
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import (
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    encode_metadata,
    may_have_notes,
    metadata_part,
)
from databus.schemas.stream import _row_cutter as row_cutter, row_reader
from databus.schemas.stream.page_reader import PageReader
from databus.schemas.stream.row_event import (
    IS_PLAIN,
    KEY,
    LOST_ROW_DIGEST,
    METADATA_DIGEST,
    NO_ROW_DIGEST,
    OPCODE,
    ROW_DIGEST,
    SCN,
    SRC_ID,
    TIMESTAMP_NS,
    WIRE,
    RowEvent,
    metadata_bytes,
    row_bytes,
    wire_bytes,
)
from databus.schemas.stream.row_reader import RowReader, RowWindow
from databus.schemas.stream.stream_reader import ControlEvent, StreamReader, Window

DIGEST, OTHER_DIGEST = b"a" * 16, b"b" * 16
KNOWN = frozenset({(40, DIGEST), (40, OTHER_DIGEST)})


@pytest.fixture(autouse=True, scope="module", params=["compiled", "python"])
def take_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read once with the compiled cutter going ahead and once without it."""
    ahead = row_cutter.take_rows if request.param == "compiled" else None
    with patch.object(row_reader, "take_rows", ahead):
        yield


parts = st.builds(
    Part,
    st.binary(max_size=30),
    st.sampled_from([DIGEST, OTHER_DIGEST, b"crc4"]),
    st.integers(0, 100),
)
metadata = st.none() | st.builds(
    Part, st.binary(max_size=30), st.sampled_from([b"meta", DIGEST]), st.just(1)
)


@st.composite
def events(draw: st.DrawFn, scn: int) -> Event:
    return Event(
        scn,
        draw(st.integers(0, 1 << 60)),
        draw(st.integers(1, 50)),
        draw(st.integers(0, 5)),
        draw(st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=20)),
        draw(st.sampled_from([Opcode.UPSERT, Opcode.DELETE])),
        draw(st.none() | parts),
        draw(metadata),
        draw(st.booleans()),
        draw(st.booleans()),
    )


notes = st.builds(
    Notes,
    st.lists(st.integers(0, 200), max_size=3).map(tuple),
    st.lists(st.integers(0, 200), max_size=2).map(tuple),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
)
# Metadata as the relay writes it, and damaged in a way that CRCs do not tell.
ours = st.builds(
    lambda told, wrong: metadata_part(wrong or encode_metadata(told)),
    st.builds(
        EventMetadata,
        op=st.sampled_from(Op),
        gtid=st.none() | st.text(max_size=5),
        server_id=st.integers(0, 1 << 32),
        file=st.text(max_size=5) | st.just("x" * 200),
        offset=st.integers(0, 1 << 40),
        epoch=st.integers(0, 255),
        row_index=st.integers(0, 1 << 20),
        before=st.none() | st.binary(max_size=200) | st.just(bytes(9000)),
        comment=st.none() | st.text(max_size=5),
        notes=st.none() | notes,
    ),
    st.just(b"") | st.binary(max_size=20),
)


@st.composite
def plain_events(draw: st.DrawFn, scn: int) -> Event:
    """Draw one of those that come one after another from a relay of this project."""
    row = Part(draw(st.binary(max_size=30)), draw(st.sampled_from([DIGEST, DIGEST, OTHER_DIGEST])))
    told = draw(st.builds(Part, st.binary(max_size=30), st.just(b"meta"), st.just(1)) | ours)
    key = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    opcode = draw(st.sampled_from([Opcode.UPSERT, Opcode.DELETE]))
    return Event(scn, draw(st.integers(0, 1 << 60)), 40, 0, key, opcode, row, told)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Draw windows, some in version 1, some control events, some cut."""
    pieces = []
    for scn in range(1, draw(st.integers(1, 5))):
        kinds = draw(
            st.sampled_from([events(scn), plain_events(scn), events(scn) | plain_events(scn)])
        )
        for event in draw(st.lists(kinds, max_size=9)):
            is_v1 = draw(st.integers(0, 5)) == 0 and (
                event.payload is None or len(event.payload.digest) == 16
            )
            bare = event._replace(metadata=None)
            pieces.append(event_v1.encode(bare) if is_v1 else event_v2.encode(event))
            if draw(st.integers(0, 9)) == 0:
                make = draw(st.sampled_from([ddl_event, dml_event]))
                pieces.append(event_v2.encode(make(scn, 1, 0, ["shop.a"], "", f"DDL {scn}")))
            if draw(st.integers(0, 9)) == 0:
                gone = event._replace(opcode=Opcode.DELETE, key=b"", payload=None)
                pieces.append(event_v2.encode(gone))
        end = end_of_period(scn, scn)
        pieces.append(event_v2.encode(end))
        if draw(st.integers(0, 9)) == 0:
            pieces.append(event_v2.encode(checkpoint_event(Checkpoint.at(scn))))
    stream = b"".join(pieces)
    return stream[: draw(st.integers(0, len(stream)))]


def shape(event: Event) -> tuple[Any, ...]:
    """Say of an event what the plain tuple has."""
    row, told = event.payload, event.metadata
    return (
        event.scn,
        event.timestamp_ns,
        event.src_id,
        event.key,
        event.opcode,
        row.digest if row else NO_ROW_DIGEST if event.is_truncate else LOST_ROW_DIGEST,
        b"" if row is None else row.data,
        None if told is None else (told.digest, told.data),
    )


def row_shape(event: RowEvent) -> tuple[Any, ...]:
    digest = event[METADATA_DIGEST]
    return (
        event[SCN],
        event[TIMESTAMP_NS],
        event[SRC_ID],
        event[KEY],
        event[OPCODE],
        event[ROW_DIGEST],
        row_bytes(event),
        None if digest is None else (digest, metadata_bytes(event)),
    )


def item_shape(item: Window | RowWindow | ControlEvent) -> tuple[Any, ...]:
    if isinstance(item, ControlEvent):
        return item.event, len(item.events), item.size_bytes
    if isinstance(item, RowWindow):
        rows, ddl = list(map(row_shape, item.events)), list(item.statements)
    else:
        rows = [shape(event) for event in item.events if not event.is_statement]
        places = [place for place, event in enumerate(item.events) if event.is_statement]
        ddl = [(place - n, statement_of(item.events[place])) for n, place in enumerate(places)]
    return item.scn, item.timestamp_ns, rows, ddl, item.size_bytes


def outcome(reader: StreamReader | RowReader, chunks: list[bytes]) -> list[Any]:
    """Read it all; say what came out, and in what the reader was left."""
    found: list[Any] = []
    try:
        for chunk in chunks:
            items: list[Any] = list(reader.receive(chunk))
            found += [item_shape(item) for item in items]
        found.append((reader.pending_scn, reader.pending_events))
        reader.close()
    except ProtocolError as error:
        found.append((type(error), str(error)))
    return found


def knowing_reader(limit: int, known: frozenset[tuple[int, bytes]]) -> RowReader:
    reader = RowReader(limit)
    reader.known = known
    return reader


some_known = st.sampled_from([frozenset(), KNOWN, frozenset({(40, OTHER_DIGEST)})])


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(streams(), st.integers(1, 2000), st.sampled_from([100, 400, 1 << 20]), some_known)
def test_it_reads_what_the_plain_reader_reads(
    stream: bytes, size: int, limit: int, known: frozenset[tuple[int, bytes]]
) -> None:
    chunks = cut(stream, size)
    assert outcome(knowing_reader(limit, known), chunks) == outcome(StreamReader(limit), chunks)


@given(streams(), st.integers(1, 400), st.integers(0, 10_000), st.integers(1, 255), some_known)
def test_it_refuses_what_the_plain_reader_refuses(
    stream: bytes, size: int, at: int, flip: int, known: frozenset[tuple[int, bytes]]
) -> None:
    damaged = bytearray(stream)
    if damaged:
        damaged[at % len(damaged)] ^= flip
    chunks = cut(bytes(damaged), size)
    reader = knowing_reader(1 << 20, known)
    assert outcome(reader, chunks) == outcome(StreamReader(1 << 20), chunks)


@given(
    st.lists(st.lists(plain_events(0), max_size=3), max_size=5), st.integers(1, 3000), some_known
)
def test_unknown_schemas_are_those_of_each_window(
    rows: list[list[Event]], size: int, known: frozenset[tuple[int, bytes]]
) -> None:
    pieces = []
    for scn, events_of in enumerate(rows, 1):
        pieces += [event_v2.encode(event._replace(scn=scn)) for event in events_of]
        pieces.append(event_v2.encode(end_of_period(scn, scn)))
    reader = knowing_reader(1 << 20, known)
    windows = [w for chunk in cut(b"".join(pieces), size) for w in reader.receive(chunk)]
    pairs = [{(e.src_id, e.payload.digest) for e in one if e.payload} for one in rows]
    assert [w.unknown for w in windows if isinstance(w, RowWindow)] == [p - known for p in pairs]


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_the_protocol_error(data: bytes) -> None:
    assert outcome(RowReader(1 << 20), [data]) == outcome(StreamReader(1 << 20), [data])


def make_event(src_id: int, digest: bytes, scn: int = 5) -> Event:
    told = Part(b"told", b"meta")
    return Event(scn, 1, src_id, 0, 7, Opcode.UPSERT, Part(b"row", digest), told)


def read(*read_events: Event, known: frozenset[tuple[int, bytes]] = KNOWN) -> list[Any]:
    reader = RowReader(1 << 20)
    reader.known = known
    return list(reader.receive(b"".join(map(event_v2.encode, read_events))))


def test_schemas_that_are_not_known_are_told_with_their_window() -> None:
    end = end_of_period(5, 5)
    stranger, other = make_event(40, b"c" * 16), make_event(41, DIGEST)
    known = make_event(40, DIGEST)
    (window, after) = read(
        known, stranger, other, known, end, known._replace(scn=6), end_of_period(6, 6)
    )
    assert window.unknown == {(40, b"c" * 16), (41, DIGEST)}
    assert after.unknown == frozenset()


def test_an_event_without_a_row_has_no_known_schema() -> None:
    bare = make_event(40, DIGEST)._replace(payload=None)
    (window,) = read(bare, end_of_period(5, 5))
    assert window.unknown == {(40, LOST_ROW_DIGEST)}


def test_an_event_about_all_rows_of_a_table_is_told_from_one_whose_row_is_lost() -> None:
    emptied = make_event(40, DIGEST)._replace(opcode=Opcode.DELETE, key=b"", payload=None)
    known = KNOWN | {(40, NO_ROW_DIGEST)}
    (window,) = read(emptied, make_event(40, DIGEST), end_of_period(5, 5), known=known)
    assert [event[ROW_DIGEST] for event in window.events] == [NO_ROW_DIGEST, DIGEST]
    assert window.unknown == frozenset()
    (window,) = read(emptied._replace(src_id=41), end_of_period(5, 5), known=known)
    assert window.unknown == {(41, NO_ROW_DIGEST)}


DDL = ddl_event(5, 1, 0, ["shop.a"], "shop", "ALTER TABLE a")
DDL_TOLD = LoggedStatement(("shop.a",), "shop", "ALTER TABLE a")


def test_a_ddl_event_is_one_of_its_window_and_keeps_its_place() -> None:
    row, end = make_event(40, DIGEST), end_of_period(5, 5)
    first, only = read(row, DDL, DDL, row, end, DDL._replace(scn=6), end_of_period(6, 6))
    assert (len(first.events), first.statements) == (2, ((1, DDL_TOLD), (1, DDL_TOLD)))
    assert (only.scn, only.events, only.statements) == (6, (), ((0, DDL_TOLD),))
    sizes = [len(event_v2.encode(event)) for event in (row, DDL, DDL, row, end)]
    assert first.size_bytes == sum(sizes)
    assert only.size_bytes == sizes[1] + sizes[-1]


def test_a_ddl_event_of_another_window_is_refused() -> None:
    for wrong in ((DDL._replace(scn=4),), (make_event(40, DIGEST), DDL._replace(scn=4))):
        with pytest.raises(ProtocolError, match="other windows in window 5"):
            read(*wrong, end_of_period(5, 5))


def test_a_half_window_counts_its_ddl_events() -> None:
    reader = RowReader(1 << 20)
    reader.receive(event_v2.encode(DDL))
    assert (reader.pending_scn, reader.pending_events) == (5, 1)
    reader.receive(event_v2.encode(make_event(40, DIGEST)))
    assert (reader.pending_scn, reader.pending_events) == (5, 2)
    reader.reset()
    assert (reader.pending_scn, reader.pending_events) == (None, 0)


def test_a_page_has_no_ddl_events() -> None:
    with pytest.raises(ProtocolError, match="src_id -60 in a page"):
        PageReader(1 << 20).receive(event_v2.encode(DDL))


@given(ours)
def test_what_is_called_plain_has_no_notes(told: Part) -> None:
    row = make_event(40, DIGEST)._replace(metadata=told)
    (window,) = read(row, row, row, end_of_period(5, 5))
    plain = [event[IS_PLAIN] for event in window.events]
    assert plain[0] == plain[1] == plain[2]
    try:
        metadata = decode_metadata(told.data)
    except ProtocolError:
        return
    if plain[1] or not may_have_notes(told.data):
        assert metadata.notes is None
    if row_reader.take_rows is not None:
        assert plain[1] == (metadata.notes is None)
    if metadata.notes is None and (metadata.before is None or len(metadata.before) < 8192):
        assert not may_have_notes(told.data)


def test_a_row_with_metadata_of_another_version_is_plain() -> None:
    if row_reader.take_rows is not None:
        row = make_event(40, DIGEST)
        (window,) = read(row, row, end_of_period(5, 5))
        assert window.events[1][IS_PLAIN]


def test_a_window_with_events_of_another_is_refused() -> None:
    with pytest.raises(ProtocolError, match="other windows in window 5"):
        read(make_event(40, DIGEST), make_event(40, DIGEST, scn=6), end_of_period(5, 5))
    with pytest.raises(ProtocolError, match="other windows in window 5"):
        read(end_of_period(5, 5), make_event(40, DIGEST, scn=4), end_of_period(5, 5))


def test_a_window_larger_than_the_limit_is_refused() -> None:
    with pytest.raises(WindowTooLargeError):
        RowReader(100).receive(event_v2.encode(make_event(40, DIGEST)) * 2)


@given(st.lists(events(7) | plain_events(7), max_size=6), st.sampled_from([event_v1, event_v2]))
def test_an_events_bytes_are_those_that_came(told: list[Event], version: Any) -> None:
    reader = RowReader(1 << 20)
    sent = b"".join(version.encode(event) for event in told)
    (window,) = reader.receive(sent + event_v2.encode(end_of_period(7, 0)))
    assert isinstance(window, RowWindow)
    for event, came in zip(told, window.events, strict=True):
        expected = event._replace(is_replicated=False, is_traced=False)
        if version is event_v1:
            (read, _) = event_v1.decode(event_v1.encode(event))
            expected = read._replace(is_replicated=False, is_traced=False)
        assert wire_bytes(came) == event_v2.encode(expected)


def test_bytes_that_need_no_change_are_not_encoded_again() -> None:
    plain = make_event(40, DIGEST)
    told = [
        plain,
        plain,
        plain._replace(key=b"of bytes"),
        plain._replace(metadata=None),
        plain._replace(opcode=Opcode.DELETE, key=b"", payload=None),
    ]
    (window,) = read(*told, end_of_period(5, 5))
    sent = [event_v2.encode(event) for event in told]
    with patch.object(event_v2, "encode", side_effect=AssertionError):
        assert [wire_bytes(event) for event in window.events] == sent
    assert all(wire_bytes(event) is event[WIRE] for event in window.events)
