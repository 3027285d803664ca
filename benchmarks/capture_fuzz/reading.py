"""The same bytes by every path there is; what each says of them.

capture   PacketReader, Assembler and WindowEncoder in Python; the compiled
          lane ahead of them where it was built
client    RowReader in Python; the compiled cutter ahead of it

A path ends with windows and, when it stopped, one of the project's errors. Any
other exception leaves it, and is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.capture_fuzz.recording import RecordedCatalog, Recording
from benchmarks.capture_fuzz.statements import SOURCES
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.encoder import UnfitRowError, WindowEncoder
from databus.relay.sources.mysql_assembly import Assembler, AssemblyStopped
from databus.relay.sources.mysql_packets import PacketReader, StreamEnded
from databus.relay.sources.mysql_tables import Names, WatchedTables
from databus.relay.sources.mysql_xa import PreparedTransactions
from databus.schemas import row_reader
from databus.schemas.errors import DatabusError

MOST_WINDOW_BYTES = 1 << 24
SRC_IDS = {source: number for number, source in enumerate(SOURCES, 1)}


class Outcome(NamedTuple):
    """What a path made of the bytes: windows (or the client's items), and why it ended."""

    found: Sequence[Any]
    problem: str


class Session(NamedTuple):
    """What one reading of a stream needs, made anew for each: nothing may be remembered."""

    assembler: Assembler
    encoder: WindowEncoder


def session_of(recording: Recording, *, partial_rows: bool) -> Session:
    """Return what reads a recording's events."""
    dialect = replace(recording.dialect, delivers_partial_rows=partial_rows)
    tables = WatchedTables(Names(SOURCES), dialect, RecordedCatalog(recording))
    registry = SchemaRegistry(MemoryStore())
    for source, src_id in SRC_IDS.items():
        registry.add_source(source, src_id)
    assembler = Assembler(tables, dialect, prepared=PreparedTransactions())
    return Session(assembler, WindowEncoder(registry, SRC_IDS))


def read_in_python(session: Session, chunks: Sequence[bytes]) -> Outcome:
    """Read with what the lane is compared with."""
    packets = PacketReader()
    windows: list[Any] = []
    try:
        for chunk in chunks:
            for event in packets.receive(chunk):
                transaction = session.assembler.receive(event)
                if transaction is not None and transaction.changes:
                    windows.append(session.encoder.encode(transaction))
    except StreamEnded:
        return Outcome(windows, "")
    except (AssemblyStopped, UnfitRowError, DatabusError) as error:
        return Outcome(windows, f"{type(error).__name__}: {error}")
    return Outcome(windows, "")


def cutters() -> list[Callable[..., int] | None]:
    """Return what may go ahead of the client's reader: nothing, and the compiled cutter."""
    found = row_reader.take_rows
    return [None] if found is None else [None, found]


def read_rows(cutter: Callable[..., int] | None, chunks: Sequence[bytes]) -> Outcome:
    """Read version 2 events as a client does."""
    reader = row_reader.RowReader(MOST_WINDOW_BYTES)
    items: list[Any] = []
    with patch.object(row_reader, "take_rows", cutter):
        try:
            for chunk in chunks:
                items += reader.receive(chunk)
            items.append((reader.pending_scn, reader.pending_events))
            reader.close()
        except DatabusError as error:
            return Outcome(items, f"{type(error).__name__}: {error}")
    return Outcome(items, "")
