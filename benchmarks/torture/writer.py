"""Commit the workload, never too far ahead of the client.

How far ahead is bounded in transactions, not in time: the ring always holds
what a client that was just killed still has to read, and the writer never
finishes while a kill is still due.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import End, Work, Workload
from databus.demo.databases import Session, database_of
from databus.demo.writer import Pace

WAIT_S = 0.002


def run_transaction(session: Session, work: Work) -> None:
    """Run one transaction to its end."""
    session.begin()
    for sql, parameters in work.statements:
        session.execute(sql, parameters)
    if work.end is End.COMMIT:
        session.commit()
    else:
        session.rollback()


def write(
    session: Session, workload: Workload, count: int, lead: int, rate: float, folder: Path
) -> None:
    """Commit so many transactions at this rate, at most `lead` ahead of the client."""
    pace = Pace(rate, time.monotonic())
    with (
        SharedNumber(folder / "rolled_back") as undone,
        SharedNumber(folder / "applied") as applied,
    ):
        for work in workload.transactions(count):
            while work.number - applied.get() > lead:
                time.sleep(WAIT_S)
            run_transaction(session, work)
            undone.set(undone.get() + (work.end is End.ROLLBACK))
            time.sleep(pace.delay_s(1, time.monotonic()))


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--seed", type=int, required=True)
@click.option("--transactions", type=int, required=True)
@click.option("--lead", type=int, required=True)
@click.option("--rate", type=float, required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(
    uri: str,
    password_file: Path | None,
    seed: int,
    transactions: int,
    lead: int,
    rate: float,
    folder: Path,
) -> None:
    """Run as the torture's writer process."""
    session = database_of(uri, password_file).connect()
    try:
        write(session, Workload(seed), transactions, lead, rate, folder)
    finally:
        session.close()


if __name__ == "__main__":
    main()
