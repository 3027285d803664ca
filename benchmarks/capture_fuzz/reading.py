"""Reads the same bytes by every path, and returns the result of each.

capture   PacketReader, Assembler and WindowEncoder in Python; the compiled
          decoder in front of them, where it was built
client    RowReader in Python; the compiled cutter ahead of it

A path ends with windows and, when it stopped, one of the project's errors. Any
other exception leaves it, and is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.capture_fuzz.recording import Recording
from benchmarks.capture_fuzz.statements import SOURCES
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.mysql.binlog.packets import PacketReader, StreamBrokenError, StreamEnded
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.binlog.xa import PreparedTransactions
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.rows.layout import Dialect
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import Transaction, UnfitRowError
from databus.schemas.errors import DatabusError
from databus.schemas.stream import row_reader
from databus.schemas.stream.row_event import IS_PLAIN
from databus.schemas.stream.stream_reader import ControlEvent
from databus.schemas.windows import WindowBatch
from tests.relay.sources.mysql.room import Room

try:
    from databus.relay.sources.mysql.replication import compiled_assembler
except ImportError:  # not compiled: there is one path only
    new_compiled = None
else:
    new_compiled = compiled_assembler.CompiledAssembler

ROOM_BYTES = 1 << 16
MOST_WINDOW_BYTES = 1 << 24
UNFIT_ROW = "unfit row"
BROKEN_STREAM = "the stream is broken"
SRC_IDS = {source: number for number, source in enumerate(SOURCES, 1)}


class Outcome(NamedTuple):
    """A path's result: windows (or the client's items), and why it ended."""

    found: Sequence[Any]
    problem: str


Path = Callable[[Recording, Dialect, Sequence[bytes]], Outcome]


def _tables_of(recording: Recording, dialect: Dialect) -> WatchedTables:
    rules = replace(recording.rules, dialect=dialect)
    return WatchedTables(Names(SOURCES), rules, recording.history(), recording.scan)


def _encoder() -> WindowEncoder:
    registry = SchemaRegistry(MemoryStore())
    for source, src_id in SRC_IDS.items():
        registry.add_source(source, src_id)
    return WindowEncoder(registry, SRC_IDS)


def paths() -> list[Path]:
    """Return the ways to read a stream: in Python alone, and with the compiled decoder."""
    compiled = [read_compiled, read_placed]
    return [read_in_python] if new_compiled is None else [read_in_python, *compiled]


def read_in_python(recording: Recording, dialect: Dialect, chunks: Sequence[bytes]) -> Outcome:
    """Read with the assembler in Python, the reference; all objects are new for each stream."""
    tables, encoder, packets = _tables_of(recording, dialect), _encoder(), PacketReader()
    assembler = Assembler(tables, dialect, prepared=PreparedTransactions())
    windows: list[Any] = []
    try:
        for chunk in chunks:
            for event in packets.receive(chunk):
                transaction = assembler.receive(event)
                if transaction is not None and transaction.changes:
                    windows.append(encoder.encode(transaction))
    except StreamEnded:
        return Outcome(windows, "")
    except (AssemblyStopped, StreamBrokenError, UnfitRowError, DatabusError) as error:
        return Outcome(windows, _text(error))
    return Outcome(windows, "")


def read_placed(recording: Recording, dialect: Dialect, chunks: Sequence[bytes]) -> Outcome:
    """Read with the compiled decoder, which writes as much as it can into the ring's room."""
    return read_compiled(recording, dialect, chunks, Room(ROOM_BYTES))


def read_compiled(
    recording: Recording, dialect: Dialect, chunks: Sequence[bytes], room: Room | None = None
) -> Outcome:
    """Read with the compiled decoder."""
    assert new_compiled is not None
    assembler = new_compiled(
        _tables_of(recording, dialect),
        dialect,
        encoder=_encoder(),
        epoch=0,
        prepared=PreparedTransactions(),
    )
    if room is not None:
        assembler.write_into(room)
    windows: list[Any] = []
    try:
        for chunk in chunks:
            for item in assembler.receive_bytes(chunk, len(chunk)):
                if isinstance(item, WindowBatch):
                    windows += (item if room is None else room.lift(item)).windows()
                elif not isinstance(item, Transaction) or item.changes:
                    raise TypeError(f"a small window came as {item!r:.200}")
    except StreamEnded:
        return Outcome(windows, "")
    except (AssemblyStopped, StreamBrokenError, UnfitRowError, DatabusError) as error:
        return Outcome(windows, _text(error))
    return Outcome(windows, "")


def _text(error: Exception) -> str:
    # Messages name different places of a row that does not fit; only the refusal counts.
    is_unfit = isinstance(error, UnfitRowError) or "cannot be captured" in str(error)
    if isinstance(error, StreamBrokenError):  # with any message: the connection is made again
        return BROKEN_STREAM
    return UNFIT_ROW if is_unfit else f"{type(error).__name__}: {error}"


def cutters() -> list[Callable[..., int] | None]:
    """Return the cutters that may precede the client's reader: none, and the compiled one."""
    found = row_reader.take_rows
    return [None] if found is None else [None, found]


def read_rows(cutter: Callable[..., int] | None, chunks: Sequence[bytes]) -> Outcome:
    """Read version 2 events as a client does."""
    reader = row_reader.RowReader(MOST_WINDOW_BYTES)
    items: list[Any] = []
    with patch.object(row_reader, "take_rows", cutter):
        try:
            for chunk in chunks:
                items += map(_comparable, reader.receive(chunk))
            items.append((reader.pending_scn, reader.pending_events))
            reader.close()
        except DatabusError as error:
            return Outcome(items, f"{type(error).__name__}: {error}")
    return Outcome(items, "")


def _comparable(item: row_reader.RowWindow | ControlEvent) -> tuple[Any, ...]:
    """Return an item without the details that depend on the path."""
    rows = [event[:IS_PLAIN] for event in item.events]
    return *(value for name, value in item._asdict().items() if name != "events"), rows
