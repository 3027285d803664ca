"""`python -m benchmarks.shared.load`: a process that commits one-row transactions at a steady rate.

Table `ticks`: `n` counts the transactions from 1. Each is one INSERT that commits itself: one
round trip. A process has one session; several share the numbers, and a rate that is too high
for one. The times of each transaction are kept in memory and written at the end, so that noting
them costs nothing that would be measured. All processes are on one host, so their clocks are one
clock.
"""

from __future__ import annotations

import signal
import struct
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import click

from databus.demo.databases import Dialect, Session, database_of

SOURCE = "shop.ticks"


def create_table(dialect: Dialect) -> str:
    """Return the CREATE TABLE statement of the load's table."""
    big, text = ("INTEGER", "TEXT") if dialect == "sqlite" else ("BIGINT", "VARCHAR(4000)")
    return f"CREATE TABLE ticks (n {big} PRIMARY KEY, filler {text} NOT NULL)"


class Stop:
    """Becomes true on SIGTERM: the load ends after the current transaction."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)

    def _set(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.is_set = True


def commit_at_rate(
    session: Session, rate: float, numbers: Iterable[int], row_bytes: int, stop: Stop
) -> array[int]:
    """Commit these; return for each the times at which its INSERT was sent and had returned.

    A stall is not made up for with a burst: the load is what was asked for, or less.
    """
    stamps = array("q")
    filler = "x" * row_bytes
    due = time.perf_counter()
    for n in numbers:
        if stop.is_set:
            break
        begun_ns = time.time_ns()
        session.execute("INSERT INTO ticks VALUES (?, ?)", (n, filler))
        stamps.extend((begun_ns, time.time_ns()))
        due = max(due + 1 / rate, time.perf_counter() - 0.1)
        time.sleep(max(0.0, due - time.perf_counter()))
    return stamps


def write_numbers(path: Path, numbers: Iterable[int]) -> None:
    """Write 64-bit numbers to a file, which appears only when complete."""
    packed = array("q", numbers).tobytes()
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(packed)
    unfinished.replace(path)


def read_numbers(path: Path, columns: int) -> list[tuple[int, ...]]:
    """Read the numbers of `write_numbers`, as rows of a given width."""
    return list(struct.iter_unpack(f"={columns}q", path.read_bytes()))


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--rate", type=float, required=True, help="Transactions a second, of all sessions.")
@click.option("--transactions", type=int, required=True, help="How many, of all sessions.")
@click.option("--session", "number", type=int, default=0, help="This one's number, from 0.")
@click.option("--sessions", type=int, default=1)
@click.option("--row-bytes", type=int, default=100)
@click.option("--stamps", type=click.Path(path_type=Path), required=True)
def main(
    uri: str,
    password_file: Path | None,
    rate: float,
    transactions: int,
    number: int,
    sessions: int,
    row_bytes: int,
    stamps: Path,
) -> None:
    """Run as a load process."""
    session = database_of(uri, password_file).connect()
    try:
        numbers = range(number + 1, transactions + 1, sessions)
        found = commit_at_rate(session, rate / sessions, numbers, row_bytes, Stop())
    finally:
        session.close()
    write_numbers(stamps, found)


if __name__ == "__main__":
    main()
