"""The compiled decoder writes each value as Python does, in one pass or step by step.

Values are made here byte by byte, the invalid ones too. What servers write is in
`test_mysql_every_type` and `benchmarks.capture_fuzz`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from hypothesis import given, strategies as st

from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.compiled_assembler import CompiledAssembler
from databus.relay.sources.mysql.rows.decimals import decimal_size
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Definition
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import UnfitRowError
from databus.schemas.windows import EncodedWindow, WindowBatch
from tests.relay.sources.mysql.binlog import events_made as made
from tests.relay.sources.mysql.replication.test_decoder import (
    DELETE,
    DIALECT,
    UPDATE,
    WRITE,
    packets,
    stream,
    transaction,
    windows_of,
)
from tests.relay.sources.mysql.room import Room

DECIMALS = (
    (1, 0),
    (2, 2),
    (9, 0),
    (10, 2),
    (18, 0),
    (18, 9),
    (18, 17),
    (19, 0),
    (30, 30),
    (65, 30),
)
FRACTIONS = (0, 1, 3, 6)
INTS = {1: ("tinyint", 1), 2: ("smallint", 2), 9: ("mediumint", 3), 3: ("int", 4), 8: ("bigint", 8)}
TEXTS = st.one_of(
    st.text(max_size=40).map(str.encode),
    st.binary(max_size=20),
    st.text(alphabet=st.characters(max_codepoint=127), max_size=80).map(str.encode),
)


class Made:
    """A table, and what its rows are made of: the key first, each other column nullable."""

    def __init__(self, key: str = "id") -> None:
        self.columns = [DefinedColumn("id", "int", False)]
        self.values: list[st.SearchStrategy[bytes]] = []
        self.types, self.lengths = bytes([3]), b""
        for code, (name, size) in INTS.items():
            for unsigned in ("", " unsigned"):
                self._add(name + unsigned, code, b"", _bytes(size))
        for precision, scale in DECIMALS:
            size = decimal_size(precision, scale)
            decimal = st.one_of(_bytes(size), st.binary(max_size=2).map(_in_decimal(size)))
            self._add(f"decimal({precision},{scale})", 246, bytes([precision, scale]), decimal)
        for digits in FRACTIONS:
            part = (digits + 1) // 2
            self._add(f"datetime({digits})", 18, bytes([digits]), _datetimes(part))
            seconds = st.integers(0, 1 << 32).map(lambda s: struct.pack(">I", s & 0xFFFFFFFF))
            stamps = st.one_of(_bytes(4 + part), _joined(seconds, _fractions(part)))
            self._add(f"timestamp({digits})", 17, bytes([digits]), stamps)
        self._add("date", 10, b"", st.one_of(_bytes(3), _DATES))
        self._add("double", 5, b"\x08", _bytes(8).filter(lambda b: b[7] & 0x7F != 0x7F))
        self._add("float", 4, b"\x04", _bytes(4))
        self._add("varchar(50)", 15, struct.pack("<H", 200), TEXTS.map(_sized("<B")))
        self._add("text", 252, b"\x02", TEXTS.map(_sized("<H")))
        self._add("blob", 252, b"\x02", st.binary(max_size=70).map(_sized("<H")))
        self.key = key

    def _add(self, name: str, code: int, length: bytes, values: st.SearchStrategy[bytes]) -> None:
        is_text = name.startswith(("varchar", "text"))
        charset = "utf8mb4" if is_text else None
        self.columns.append(DefinedColumn(f"c{len(self.columns)}", name, True, charset))
        self.types, self.lengths = self.types + bytes([code]), self.lengths + length
        self.values.append(values)

    def tables(self) -> WatchedTables:
        history = History()
        version = TableVersion(Definition(tuple(self.columns), (self.key,)), "utf8mb4")
        history.begin(Record(0, {("d", "t"): version}, {"d": "utf8mb4"}, is_beginning=True))
        return WatchedTables(Names(["d.t"]), Rules(DIALECT), history, lambda _begin, _end: {})

    def table_map(self) -> bytes:
        nullable = (1 << len(self.columns)) - 2
        return made.table_map(self.types, self.lengths, nullable=nullable)

    def images(self) -> st.SearchStrategy[bytes]:
        """Return row images in which few columns are not null, so that most are valid."""
        count = len(self.columns)
        places = st.lists(st.integers(1, count - 1), max_size=3, unique=True).map(sorted)

        def image(key: int, chosen: list[int], values: list[bytes]) -> bytes:
            nulls = (1 << count) - 2 - sum(1 << place for place in chosen)
            head = nulls.to_bytes((count + 7) // 8, "little") + struct.pack("<i", key)
            return head + b"".join(values)

        return places.flatmap(
            lambda chosen: st.builds(
                image,
                st.sampled_from([0, 1, -1, 1 << 30, -(1 << 31)]),
                st.just(chosen),
                st.tuples(*(self.values[place - 1] for place in chosen)).map(list),
            )
        )

    def rows(self, type_code: int, *images: bytes) -> bytes:
        count = len(self.columns)
        return made.rows_v2(type_code, count, b"".join(images), present=(1 << count) - 1)


def _bytes(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def _joined(*parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*parts).map(b"".join)


def _sized(width: str):  # type: ignore[no-untyped-def]
    return lambda data: struct.pack(width, len(data)) + data


def _in_decimal(size: int):  # type: ignore[no-untyped-def]
    """Return a function to a small number's decimal, of either sign."""

    def packed(low: bytes) -> bytes:
        plain = (bytes(size) + low)[-size:]
        plain = bytes([plain[0] & 0x7F | 0x80]) + plain[1:]
        return plain if len(low) % 2 else bytes(byte ^ 0xFF for byte in plain)

    return packed


def _fractions(size: int) -> st.SearchStrategy[bytes]:
    most = (0, 99, 9999, 999999)[size]
    return st.integers(0, most + 1).map(lambda n: n.to_bytes(size, "big") if size else b"")


def _datetimes(part: int) -> st.SearchStrategy[bytes]:
    def packed(year: int, month: int, day: int, hour: int, minute: int) -> bytes:
        number = (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | 59
        return (number + (1 << 39)).to_bytes(5, "big")

    dates = st.builds(
        packed, st.sampled_from([0, 1, 1900, 1970, 2000, 2024, 9999]), st.integers(0, 12),
        st.sampled_from([0, 1, 28, 29, 30, 31]), st.integers(0, 24), st.integers(0, 60),
    )  # fmt: skip
    return st.one_of(_joined(dates, _fractions(part)), _bytes(5 + part))


_DATES = st.builds(
    lambda year, month, day: (year << 9 | month << 5 | day).to_bytes(3, "little"),
    st.sampled_from([0, 1, 1900, 1969, 1970, 2000, 2024, 9999]),
    st.integers(0, 13),
    st.sampled_from([0, 1, 28, 29, 30, 31]),
)
BY_NUMBER, BY_TEXT = Made(), Made("c29")
assert BY_TEXT.columns[29].name == "c29"


def _encoder(before_images: bool) -> WindowEncoder:
    registry = SchemaRegistry(MemoryStore())
    registry.add_source("d.t", 1)
    return WindowEncoder(registry, {"d.t": 1}, before_images)


def in_python(table: Made, events: list[bytes], before_images: bool) -> list[EncodedWindow]:
    assembler, writer = Assembler(table.tables(), DIALECT), _encoder(before_images)
    found = [assembler.receive(event) for event in events]
    return [writer.encode(t) for t in (*found, assembler.take_held()) if t is not None]


def in_cython(table: Made, events: list[bytes], before_images: bool) -> list[EncodedWindow]:
    compiled = CompiledAssembler(table.tables(), DIALECT, encoder=_encoder(before_images), epoch=0)
    data = packets(events)
    compiled.write_into(room := Room(1 << 17))
    items = [
        room.lift(item) if isinstance(item, WindowBatch) else item
        for item in compiled.receive_bytes(data, len(data))
    ]
    held = compiled.take_held()
    return list(windows_of([*items, *([held] if held is not None else [])]))


def outcome(read, table: Made, events: list[bytes], before_images: bool):  # type: ignore[no-untyped-def]
    try:
        return read(table, events, before_images)
    except (AssemblyStopped, UnfitRowError) as error:
        return str(error)


def _each_alone(table: Made, types: bytes, images: list[bytes]) -> Iterator[list[bytes]]:
    """Yield transactions with one image each, in each kind of event."""
    for image in images:
        for event in (
            table.rows(WRITE, image),
            table.rows(DELETE, image),
            table.rows(UPDATE, image, image),
        ):
            yield transaction(types, event)


def _without_place(problem: str) -> str:
    return re.sub(r"(row|scn) \d+", r"\1", problem)


@given(data=st.data(), table=st.sampled_from([BY_NUMBER, BY_TEXT]), before_images=st.booleans())
def test_a_row_is_the_same_event_in_both(
    data: st.DataObject, table: Made, before_images: bool
) -> None:
    images = data.draw(st.lists(table.images(), min_size=2, max_size=4))
    # A first row registers the version: those before it are written by Python.
    first = table.rows(WRITE, b"\xfe" + b"\xff" * (len(table.columns) // 8) + struct.pack("<i", 9))
    types = table.table_map()
    changes = data.draw(
        st.sampled_from(
            [
                [table.rows(WRITE, *images)],
                [table.rows(DELETE, *images)],
                [table.rows(UPDATE, *images[:2])],
                [table.rows(WRITE, images[0]), types, table.rows(UPDATE, *images[:2])],
            ]
        )
    )
    events = stream(*transaction(types, first), *transaction(types, *changes))
    compiled, python = (
        outcome(read, table, events, before_images) for read in (in_cython, in_python)
    )
    if isinstance(compiled, str) and isinstance(python, str):
        # Of several bad rows Python meets first one that cannot be decoded.
        alone = [
            outcome(in_python, table, stream(*transaction(types, first), *events), before_images)
            for events in _each_alone(table, types, images)
        ]
        problems = {_without_place(each) for each in alone if isinstance(each, str)}
        assert {_without_place(compiled), _without_place(python)} <= problems
    else:
        assert compiled == python
