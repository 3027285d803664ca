"""Searches the same bytes for statements, and for a time, by every path; returns each result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.capture_fuzz.reading import Outcome
from benchmarks.capture_fuzz.recording import Recording
from benchmarks.capture_fuzz.statements import SOURCES
from databus.relay.sources.mysql.binlog.packets import PacketReader, StreamBrokenError, StreamEnded
from databus.relay.sources.mysql.search.definition_scan import (
    DefinitionScan,
    read_chunks,
    read_events,
)
from databus.relay.sources.mysql.search.skipping import IS_COMPILED
from databus.relay.sources.mysql.search.transaction_walk import TransactionWalk
from databus.relay.sources.mysql.tables.names import Names

Search = Callable[[DefinitionScan, Sequence[bytes]], None]


def searches() -> list[Search]:
    """Return the ways to search, the one in Python first."""
    return [in_python, _compiled] if IS_COMPILED else [in_python]


def search(way: Search, recording: Recording, chunks: Sequence[bytes], end: int) -> Outcome:
    """Return the tables that were found, the position that was reached, and the problem."""
    scan = DefinitionScan(Names(SOURCES), recording.rules, 0, end)
    problem = ""
    try:
        way(scan, chunks)
    except (StreamEnded, StreamBrokenError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    cursor = scan.placer.cursor
    return Outcome([*scan.found.items(), scan.is_over, cursor.file, cursor.offset], problem)


def in_python(scan: DefinitionScan, chunks: Sequence[bytes]) -> None:
    """Read every event here."""
    read_events(scan, _events(chunks))


def _events(chunks: Iterable[bytes]) -> Iterable[bytes]:
    reader = PacketReader()
    for chunk in chunks:
        yield from reader.receive(chunk)


def _compiled(scan: DefinitionScan, chunks: Sequence[bytes]) -> None:
    read_chunks(scan, ((chunk, len(chunk)) for chunk in chunks))


def walk_along(
    chunks: Sequence[bytes], until_ns: int, end_offset: int, *, is_compiled: bool
) -> Outcome:
    """Walk from transaction to transaction up to a time or an offset of the file.

    Returns the transaction at which that ends, the newest one, the position, and the problem.
    """
    walk = TransactionWalk()
    reached, problem = None, ""
    events = (
        walk.events_left(((chunk, len(chunk)) for chunk in chunks), until_ns, end_offset)
        if is_compiled
        else _events(chunks)
    )
    try:
        for data in events:
            ended = walk.take(data)
            if ended is not None and ended.time_ns >= until_ns:
                reached = ended
            if reached is not None or walk.cursor.offset > end_offset:
                break
    except (StreamEnded, StreamBrokenError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    # Compiled code does not look at GTIDs.
    shown = [found and found._replace(gtid=None) for found in (reached, walk.newest())]
    return Outcome([*shown, walk.cursor.file, walk.cursor.offset], problem)
