"""Load of many clients, and API requests meanwhile: `python -m benchmarks.admin_load`.

A relay runs in its own process, with a writer at a steady rate and a ring that
is partly filled at the start. Of 200 clients, in their own processes, 150 hold
long-polls and 50 read the ring repeatedly at full speed. Meanwhile this process
requests `/api/v1/physicalSources`, `/clients` and `/relay`.

Every client checks every window (`admin_load_clients`). At the end the writer
stops, and the API's values must equal the counts: rows and windows those of the
writer, requests and bytes those of each client. The command fails on a
difference, or if the target is missed.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from benchmarks.serve import child, run_service
from benchmarks.shared.admin_load_clients import ROWS, Job, Tally, keys_of, run_clients
from benchmarks.shared.report import Figure, at_most, percentile, publish
from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.relay.relay import Relay
from databus.relay.sources.source import (
    Captured,
    Newest,
    Origin,
    RowChange,
    Source,
    Transaction,
)
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.event.metadata import Op
from databus.schemas.table import Column, Table

TABLE = Table(
    "bench.rows",
    (
        Column("id", "bigint", 0, nullable=False, key_position=0),
        Column("text", "varchar(100)", 1),
    ),
)
NAME = "bench"
RING_BYTES = 64 << 20
FILLED_WINDOWS = 8000  # about 20 MB
RATE = 5.0  # windows a second: each wakes every client that is held
WAIT_MS = 2000
SIZE_BYTES = 1 << 20
PROCESSES = 2  # of readers
PATHS = ("/api/v1/physicalSources", "/api/v1/clients", "/api/v1/relay")
P99_MS = 100.0
TARGET = at_most(P99_MS)
PATIENCE_S = 60.0
MB = 1e6


class Writer(Source):
    """A source: a first batch of windows at once, then windows at a steady rate."""

    name = NAME

    def __init__(self) -> None:
        self._scn = 0
        self._began_s = 0.0

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Continue after an SCN."""
        self._writer = WindowWriter(self.name, self._encoder, newest)
        self._scn = after_scn or 0
        self._began_s = time.monotonic()

    def tables(self) -> Sequence[Table]:
        """Return the one table."""
        return (TABLE,)

    def read(self) -> Sequence[Captured]:
        """Return the windows that are due."""
        return self._writer.write_from(self._due)

    def _due(self) -> Sequence[Transaction]:
        if self._scn < FILLED_WINDOWS:
            self._began_s = time.monotonic()
            return [self._next() for _ in range(100)]
        written = self._scn - FILLED_WINDOWS
        due_s = self._began_s + written / RATE - time.monotonic()
        if due_s > 0:
            time.sleep(min(due_s, 0.2))
        return [self._next()] if due_s <= 0.2 else ()

    def close(self) -> None:
        """Do nothing."""

    def _next(self) -> Transaction:
        self._scn += 1
        changes = [
            RowChange(TABLE, Op.INSERT, {"id": key, "text": f"{key:0100d}"})
            for key in keys_of(self._scn)
        ]
        return Transaction(self._scn, time.time_ns(), changes, Origin())


def run_relay(folder: str, ready: Connection) -> None:
    """Serve the writer's ring until SIGTERM."""
    settings = build_settings(
        {
            "data_dir": folder,
            "http": {"port": 0},
            "physical_sources": [
                {
                    "name": NAME,
                    "uri": "generator:",
                    "sources": [{"name": TABLE.source, "id": 1}],
                    "ring_bytes": RING_BYTES,
                }
            ],
        },
        RelaySettings,
    )
    run_service(Relay(settings, open_source=_open_writer), ready)


def _open_writer(_settings: PhysicalSourceSettings) -> Writer:
    return Writer()


class Api:
    """One keep-alive connection to the API, which records the time of each response."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            place.hostname or "", place.port, timeout=PATIENCE_S
        )
        self.took_ms: list[float] = []

    def ask(self, path: str, method: str = "GET") -> Any:
        """Return a response's JSON; raises ValueError for an error or malformed JSON."""
        began = time.perf_counter()
        self._connection.request(method, path)
        with self._connection.getresponse() as answer:
            body = answer.read()
        self.took_ms.append(1000 * (time.perf_counter() - began))
        if answer.status != 200:
            raise ValueError(f"{path} was answered {answer.status}: {body[:200]!r}")
        return json.loads(body)

    def source(self) -> dict[str, Any]:
        """Return the one physical source."""
        (found,) = self.ask(PATHS[0])["physicalSources"]
        return dict(found)

    def wait_until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Poll until the physical source fulfils a condition; return it."""
        end = time.monotonic() + PATIENCE_S
        while not is_so(found := self.source()):
            if time.monotonic() > end:
                raise TimeoutError(f"the relay did not come so far: {found}")
            time.sleep(0.05)
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def clients(job: Job) -> Iterator[Callable[[], list[Tally]]]:
    """Run clients in a process; yield a function that ends them and returns their tallies."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=run_clients, args=(job, there))
    process.start()
    there.close()

    def tell() -> None:
        here.send("stop")

    def end() -> list[Tally]:
        tell()
        if not here.poll(PATIENCE_S):
            raise TimeoutError("clients did not end")
        found: list[Tally] = here.recv()
        return found

    try:
        yield end
    finally:
        process.terminate()
        process.join(10)
        here.close()


def jobs_of(url: str, holding: int, readers: int) -> list[Job]:
    """Distribute the clients over processes: one for those that hold, some for those that read."""
    jobs = [Job(url, tuple(f"holder-{n}" for n in range(holding)), WAIT_MS, SIZE_BYTES)]
    for number in range(PROCESSES):
        ids = tuple(f"reader-{n}" for n in range(number, readers, PROCESSES))
        jobs.append(Job(url, ids, 0, SIZE_BYTES))
    return [job for job in jobs if job.ids]


def run(holding: int, readers: int, seconds: float) -> tuple[list[Figure], list[str]]:
    """Run the load; return the figures and the problems."""
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-") as folder,
        child(run_relay, str(Path(folder))) as url,
        ExitStack() as opened,
    ):
        api, control = Api(url), Api(url)
        opened.callback(api.close)
        opened.callback(control.close)
        control.wait_until(lambda source: source["windows"] >= FILLED_WINDOWS)
        ends = [opened.enter_context(clients(job)) for job in jobs_of(url, holding, readers)]
        _wait_for_clients(control, holding + readers)
        before, began = control.ask(PATHS[2])["servedBytes"], time.monotonic()
        while time.monotonic() < began + seconds:
            for path in PATHS:
                api.ask(path)
        served = control.ask(PATHS[2])["servedBytes"] - before
        rate = served / (time.monotonic() - began) / MB
        # The writer stops first: then every long-polling client has everything.
        control.ask(f"{PATHS[0]}/{NAME}/pause", "POST")
        tallies = _end_all(ends)
        problems = list(check(control, tallies, {f"holder-{n}" for n in range(holding)}))
    return _figures(api.took_ms, rate, holding + readers), problems


def _wait_for_clients(api: Api, count: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while len(api.ask(PATHS[1])["clients"]) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"{count} clients did not come")
        time.sleep(0.1)


def _end_all(ends: Sequence[Callable[[], list[Tally]]]) -> list[Tally]:
    """End all processes of clients at once; return all tallies."""
    found: list[list[Tally]] = [[] for _ in ends]

    def end(number: int) -> None:
        found[number] = ends[number]()

    threads = [threading.Thread(target=end, args=(number,)) for number in range(len(ends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [tally for of in found for tally in of]


def check(api: Api, tallies: Sequence[Tally], holders: set[str]) -> Iterator[str]:
    """Yield differences between the API and the counts, and the clients' problems."""
    yield from (tally.problem for tally in tallies if tally.problem)
    source, relay = api.source(), api.ask(PATHS[2])
    newest = int(source["ring"]["maxScn"])
    yield from _differences(
        {
            "rows captured": (source["events"], newest * ROWS),
            "windows captured": (source["windows"], newest),
            "clients": (relay["clients"], len(tallies)),
            "stream requests": (relay["streamRequests"], sum(t.requests for t in tallies)),
            "bytes served": (relay["servedBytes"], sum(t.body_bytes for t in tallies)),
            "held requests": (relay["heldRequests"], 0),
        }
    )
    told = {client["id"]: client for client in api.ask(PATHS[1])["clients"]}
    for tally in tallies:
        client = told.get(tally.id, {})
        yield from _differences(
            {
                f"requests of {tally.id}": (client.get("requests"), tally.requests),
                f"bytes of {tally.id}": (client.get("servedBytes"), tally.body_bytes),
                f"rows of {tally.id}": (tally.windows * ROWS, tally.rows),
            }
        )
        if tally.id in holders and tally.scn != newest:
            yield f"{tally.id} has read up to {tally.scn}, the writer wrote {newest}"
        if not tally.rows:
            yield f"{tally.id} has read nothing"


def _differences(pairs: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    for what, (told, counted) in pairs.items():
        if told != counted:
            yield f"{what}: the API says {told}, counted were {counted}"


def _figures(took_ms: Sequence[float], rate: float, count: int) -> list[Figure]:
    of = f"{count} clients"
    return [
        Figure(f"{of}: /api/v1, p50", percentile(took_ms, 50), "ms"),
        Figure(f"{of}: /api/v1, p99", percentile(took_ms, 99), "ms", TARGET),
        Figure(f"{of}: /api/v1, slowest", max(took_ms), "ms"),
        Figure(f"{of}: answers of /api/v1", len(took_ms), ""),
        Figure(f"{of}: read", rate, "MB/s"),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Measure; raises ValueError when a client or the API reports wrong values."""
    found, problems = run(*((15, 5, 2.0) if short else (150, 50, 30.0)))
    if problems:
        raise ValueError("; ".join(problems[:5]))
    return found


@click.command()
@click.option("--clients", "count", default=200, show_default=True, help="Clients in all.")
@click.option("--readers", default=50, show_default=True, help="Of them at full speed.")
@click.option("--seconds", default=30.0, show_default=True, help="How long.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(count: int, readers: int, seconds: float, json_file: Path | None) -> None:
    """Query the API of a relay that many clients read from, and check all values."""
    found, problems = run(count - readers, readers, seconds)
    publish("admin_load", found, json_file)
    for problem in problems[:20]:
        click.echo(problem, err=True)
    missed = any(figure.is_met is False for figure in found)
    raise SystemExit(1 if problems or missed else 0)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.admin_load")
