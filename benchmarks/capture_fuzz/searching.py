"""Searches the same bytes for statements by every path, and returns the result of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from benchmarks.capture_fuzz.reading import Outcome
from benchmarks.capture_fuzz.recording import Recording
from benchmarks.capture_fuzz.statements import SOURCES
from databus.relay.sources.mysql.binlog.packets import PacketReader, StreamBrokenError, StreamEnded
from databus.relay.sources.mysql.replication.definition_scan import (
    DefinitionScan,
    read_chunks,
    read_events,
)
from databus.relay.sources.mysql.replication.skipping import IS_COMPILED
from databus.relay.sources.mysql.tables.names import Names

Search = Callable[[DefinitionScan, Sequence[bytes]], None]


def searches() -> list[Search]:
    """Return the ways to search, the one in Python first."""
    return [_in_python, _compiled] if IS_COMPILED else [_in_python]


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


def _in_python(scan: DefinitionScan, chunks: Sequence[bytes]) -> None:
    read_events(scan, _events(chunks))


def _events(chunks: Iterable[bytes]) -> Iterable[bytes]:
    reader = PacketReader()
    for chunk in chunks:
        yield from reader.receive(chunk)


def _compiled(scan: DefinitionScan, chunks: Sequence[bytes]) -> None:
    read_chunks(scan, ((chunk, len(chunk)) for chunk in chunks))
