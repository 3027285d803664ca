"""Installs databus in an empty home, types quickstart at a busy MariaDB, and counts rows."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.first_hour.installing import WAYS, install, is_compiled, make_distributions
from benchmarks.first_hour.shop import Rows, fill, rows_of, writing
from benchmarks.shared.report import Figure, at_most, publish
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import Child, free_port, stopped_by_signals, wait_until

FIRST_ROW_S = at_most(60.0)
BUSY_S = 5.0  # how long the writer goes on after the first row
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a newcomer saw."""

    way: str
    install_s: float
    first_row_s: float  # from the typing of the command to a row in a callback
    rows: int
    wrong: int  # rows that are missing, too many or other than in the database


class Copy(Consumer):
    """Keeps every row, and when the first came."""

    def __init__(self) -> None:
        self.rows: Rows = {}
        self.first_s: float | None = None

    def on_data_event(self, event: DataEvent) -> None:
        """Apply a change."""
        self.first_s = self.first_s or time.monotonic()
        place = event.source.partition(".")[2], int(event.row["id"])
        if event.is_delete:
            self.rows.pop(place, None)
        else:
            self.rows[place] = event.row["version"]

    on_bootstrap_event = on_data_event


def _has_begun(child: Child, copy: Copy) -> bool:
    """Return whether the first row has come; raises ChildError when none can come any more."""
    child.check()
    return copy.first_s is not None


def follow_from_nothing(way: str, databus: Path, install_s: float, seed: int) -> Outcome:
    """Type the command while a writer goes on, with a client that is there too early."""
    folder = databus.parent.parent.parent / "work"
    folder.mkdir()
    port, bootstrap_port = free_port(), free_port()
    with PrivateMariaDB() as server:
        fill(server)
        (folder / "admin").write_text(server.password)
        words = [str(databus), "quickstart", f"{server.uri}/shop", "--yes", "--account", "capture"]
        words += ["--password-file", str(folder / "admin"), "--folder", str(folder)]
        words += ["--port", str(port), "--bootstrap-port", str(bootstrap_port)]
        command = ["env", "-i", f"HOME={folder.parent}", "PATH=/usr/bin:/bin", *words]
        child = Child("quickstart", command, folder)
        copy = Copy()
        client = DatabusClient(
            f"http://127.0.0.1:{port}",
            bootstrap_servers=f"http://127.0.0.1:{bootstrap_port}",
            start="beginning",
        )
        client.register(copy, ["shop.customers", "shop.orders", "shop.parcels"])
        with writing(server, seed) as stopped, client:
            typed_s = time.monotonic()
            child.start()
            try:
                wait_until(lambda: _has_begun(child, copy), PATIENCE_S, "the first row")
                time.sleep(BUSY_S)
                stopped.set()
                with suppress(TimeoutError):
                    wait_until(lambda: copy.rows == rows_of(server), PATIENCE_S, "all", 0.5)
            finally:
                child.stop(20)
        wanted = rows_of(server)
    keys = wanted.keys() | copy.rows.keys()
    wrong = sum(wanted.get(key) != copy.rows.get(key) for key in keys)
    assert copy.first_s is not None
    return Outcome(way, install_s, copy.first_s - typed_s, len(wanted), wrong)


def measure(ways: tuple[str, ...], seed: int) -> list[Outcome]:
    """Make both distributions, and try each way in a home of its own."""
    outcomes = []
    with stopped_by_signals(), tempfile.TemporaryDirectory() as name:
        files = make_distributions(Path(name))
        for number, way in enumerate(ways):
            began_s = time.monotonic()
            databus = install(way, files, Path(name) / f"home{number}")
            install_s = time.monotonic() - began_s
            assert is_compiled(databus) == ("without" not in way), way
            outcomes.append(follow_from_nothing(way, databus, install_s, seed))
    return outcomes


def figures_of(outcomes: list[Outcome]) -> list[Figure]:
    """Return the times and the rows of each way."""
    found = []
    for one in outcomes:
        found += [
            Figure(f"{one.way}: install", one.install_s, "s"),
            Figure(f"{one.way}: first row in a callback", one.first_row_s, "s", FIRST_ROW_S),
            Figure(f"{one.way}: of {one.rows} rows", one.wrong, "wrong", at_most(0)),
        ]
    return found


def figures(short: bool = False) -> list[Figure]:
    """Try the wheel alone, or each way."""
    return figures_of(measure(WAYS[:1] if short else WAYS, seed=1))


@click.command()
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), help="Default: all.")
@click.option("--seed", default=1, show_default=True, help="Of the writer.")
def main(ways: tuple[str, ...], seed: int) -> None:
    """Install and run as a newcomer would; exit with 1 if a row is lost, or the first is late."""
    outcomes = measure(ways or WAYS, seed)
    publish("first hour", figures_of(outcomes))
    raise SystemExit(any(one.wrong or one.first_row_s > 60 for one in outcomes))
