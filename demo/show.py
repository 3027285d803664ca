"""One run of the demo: stage, writer, consumer, screen; and a verdict at the end."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from rich.console import Console
from rich.panel import Panel

from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.demo.arrivals import Arrivals, arrival_of
from databus.demo.databases import Dialect
from databus.demo.processes import Child, python_module
from databus.demo.screen import REFRESH_PER_S, Screen, screen_for
from databus.demo.shop import SOURCES, create_statements
from databus.demo.stage import Stage

NOTHING_NEW_S = 15.0  # the writer is done and nothing came for so long: it never will
VISIBLE_RATE = 12.0
COUNTED_RATE = 200.0
STREAM_PARAMETERS = (
    "sources=1,2,3",
    "size=100000",
    "output=json_plain_value",
    "streamFromLatestScn=true",
    "wait=10000",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asks for; `rate` in changes a second."""

    dialect: Dialect = "sqlite"
    changes: int | None = None
    rate: float | None = None
    port: int = 0
    seed: int = 1

    @property
    def changes_per_s(self) -> float:
        """The rate asked for; otherwise one to watch, or one to get done with."""
        return self.rate or (VISIBLE_RATE if self.changes is None else COUNTED_RATE)


class Show:
    """The demo, from the first file to the last line."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._done = threading.Event()
        self._last_arrival_s = time.monotonic()
        self.arrivals = Arrivals(plan.changes)

    def run(self) -> None:
        """Run until all changes came, or for ever; raises ChildError when a process fails.

        KeyboardInterrupt passes through, after everything was cleaned up.
        """
        plan = self._plan
        screen = screen_for(self._console, self.arrivals)
        stage = Stage(plan.dialect, create_statements(plan.dialect), SOURCES, port=plan.port)
        with ExitStack() as stack:
            with self._doing("making a shop"):
                stack.enter_context(stage)
            with self._doing("starting the relay"):
                stage.start_relay()
            with self._doing("starting the consumer"):
                stack.enter_context(self._consumer(stage, screen))
            self._console.print(guide(stage, plan.dialect))
            writer = stage.child("writer", writer_command(stage, plan))
            writer.start()
            stack.enter_context(screen)
            self._watch(screen, writer, stage.relay)

    def _doing(self, what: str) -> AbstractContextManager[object]:
        if self._console.is_terminal:
            return self._console.status(f"{what} …")
        self._console.print(f"{what} …")
        return nullcontext()

    def _consumer(self, stage: Stage, screen: Screen) -> DatabusClient:
        client = DatabusClient([stage.url])

        @client.on(*SOURCES)
        def take(event: DataEvent) -> None:
            arrival = arrival_of(
                event.source, event.op, event.key, event.row, event.scn, time.time_ns()
            )
            self.arrivals.add(arrival)
            screen.add(arrival)
            self._last_arrival_s = time.monotonic()
            if self.arrivals.is_complete:
                self._done.set()

        return client

    def _watch(self, screen: Screen, writer: Child, relay: Child) -> None:
        while not self._done.wait(1 / REFRESH_PER_S):
            screen.refresh()
            relay.check()
            writer.check()
            waited_s = time.monotonic() - self._last_arrival_s
            if writer.exit_code == 0 and waited_s > NOTHING_NEW_S:
                return


def writer_command(stage: Stage, plan: Plan) -> list[str]:
    """Return the command line of the writer."""
    changes = () if plan.changes is None else ("--changes", plan.changes)
    where = stage.database.arguments()
    options = ("--seed", plan.seed, "--rate", plan.changes_per_s, *changes)
    return python_module("databus.demo.writer", *where, *options)


def guide(stage: Stage, dialect: Dialect) -> Panel:
    """Return what to look at and what to type in another terminal."""
    url = stage.url
    database = "SQLite" if dialect == "sqlite" else "a private MariaDB"
    stream = f"{url}/stream?" + "&".join(STREAM_PARAMETERS)
    lines = [
        f"A shop in {database}, a relay and this consumer. Everything is in {stage.folder}",
        "and goes with Ctrl-C. Look at, or type in another terminal:",
        "",
        *(f"  {url}{path}" for path in ("/sources", "/health", "/metrics")),
        f"  curl '{stream}'",
        f"  databus tail shop.orders --relay {url} --from earliest",
    ]
    return Panel("\n".join(lines), title="databus demo", expand=False)
