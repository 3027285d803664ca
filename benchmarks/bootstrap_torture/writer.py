"""Commit the workload at a rate until stopped, without waiting for readers.

Files in the folder, each a shared number: `rate` (transactions a second, 0 = as
fast as it goes; then it may be set, once), `committed` (the newest transaction)
and `rolled_back` (how many).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.bootstrap_torture.filling import SIZES
from benchmarks.shared.load import Stop
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import End, Workload
from benchmarks.torture.writer import run_transaction
from databus.demo.databases import Session, database_of
from databus.demo.writer import RateLimiter


def write(session: Session, workload: Workload, folder: Path, stop: Stop) -> None:
    """Commit until stopped; the current transaction is finished."""
    with (
        SharedNumber(folder / "rate") as rate,
        SharedNumber(folder / "committed") as committed,
        SharedNumber(folder / "rolled_back") as undone,
    ):
        limiter = None
        for work in workload.transactions():
            if stop.is_set:
                return
            run_transaction(session, work)
            if work.end is End.COMMIT:
                committed.set(work.number)
            else:
                undone.set(undone.get() + 1)
            if limiter is None and rate.get():
                limiter = RateLimiter(rate.get(), time.monotonic())
            if limiter is not None and work.end is End.COMMIT:
                time.sleep(limiter.delay_s(1, time.monotonic()))


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--seed", type=int, required=True)
@click.option("--rows", type=int, required=True, help="That are there before.")
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--reused-keys", default=0.0, help="Share of new rows with a key that is gone.")
def main(
    uri: str, password_file: Path | None, seed: int, rows: int, folder: Path, reused_keys: float
) -> None:
    """Run as the torture's writer process, until SIGTERM."""
    stop = Stop()
    workload = Workload(seed, replace(SIZES, reused_share=reused_keys))
    for _ in workload.keys_before(rows):
        pass
    session = database_of(uri, password_file).connect()
    try:
        write(session, workload, folder, stop)
    finally:
        session.close()


if __name__ == "__main__":
    main()
