"""Commit at a rate until told to stop: the bootstrap torture's writer, but keys come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from benchmarks.bootstrap_torture.filling import SIZES
from benchmarks.bootstrap_torture.writer import write
from benchmarks.load import Stop
from benchmarks.torture.workload import Workload
from databus.demo.databases import database_of

REUSED_SHARE = 0.3


@click.command()
@click.option("--uri", required=True)
@click.option("--password-file", type=click.Path(path_type=Path))
@click.option("--seed", type=int, required=True)
@click.option("--rows", type=int, required=True, help="That are there before.")
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(uri: str, password_file: Path | None, seed: int, rows: int, folder: Path) -> None:
    """Run as the torture's writer process, until SIGTERM."""
    stop = Stop()
    workload = Workload(seed, replace(SIZES, reused_share=REUSED_SHARE))
    for _ in workload.keys_before(rows):
        pass
    session = database_of(uri, password_file).connect()
    try:
        write(session, workload, folder, stop)
    finally:
        session.close()


if __name__ == "__main__":
    main()
