"""Commits changes at a rate until stopped, as a process of its own."""

from __future__ import annotations

import time
from pathlib import Path

import click

from benchmarks.shared.load import Stop
from benchmarks.spark_verify.shop import changes
from databus.demo.databases import database_of
from databus.demo.writer import RateLimiter


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--rows", type=int, required=True)
@click.option("--seed", type=int, required=True)
@click.option("--rate", type=float, required=True, help="Changes a second.")
def main(uri: str, password_file: Path | None, rows: int, seed: int, rate: float) -> None:
    """Write until SIGTERM; the current transaction is finished."""
    stop = Stop()
    session = database_of(uri, password_file).connect()
    limiter = RateLimiter(rate, time.monotonic())
    try:
        for statements in changes(rows, seed):
            if stop.is_set:
                return
            session.begin()
            for statement in statements:
                session.execute(statement)
            session.commit()
            time.sleep(limiter.delay_s(len(statements), time.monotonic()))
    finally:
        session.close()


if __name__ == "__main__":
    main()
