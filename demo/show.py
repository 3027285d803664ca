"""One run of the demo: stage, writer, consumer, screen, and the result at the end."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.demo.arrivals import Arrivals, arrival_of
from databus.demo.databases import Dialect
from databus.demo.latecomer import Latecomer, late_client, shop_rows
from databus.demo.processes import (
    Child,
    check_signals,
    free_port,
    port_or_free,
    python_module,
    wait_until,
)
from databus.demo.screen import REFRESH_PER_S, Screen, screen_for
from databus.demo.shop import SOURCES, create_statements
from databus.demo.stage import Stage

# Where every command and page of the docs looks for them.
RELAY_PORT, BOOTSTRAP_PORT = 11115, 11116
NOTHING_NEW_S = 60.0  # without arrivals after the writer has finished
VISIBLE_RATE = 12.0
COUNTED_RATE = 200.0
# After so many changes the smallest ring no longer holds the first ones.
LATE_AFTER = 400
SMALLEST_RING = "64KiB"
CAUGHT_UP_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line; `rate` is in changes per second."""

    dialect: Dialect = "sqlite"
    changes: int | None = None
    rate: float | None = None
    port: int | None = None
    seed: int = 1

    @property
    def changes_per_s(self) -> float:
        """The requested rate, or else a slow one to watch, a fast one with --changes."""
        return self.rate or (VISIBLE_RATE if self.changes is None else COUNTED_RATE)

    def ports(self) -> tuple[int, int]:
        """Return the ports of relay and bootstrap server: those of the docs, if they are free."""
        if self.port is None:
            return port_or_free(RELAY_PORT), port_or_free(BOOTSTRAP_PORT)
        return self.port or free_port(), free_port()

    @property
    def late_after(self) -> int | None:
        """The number of changes after which the late consumer starts; None for a short demo."""
        if self.changes is None:
            return LATE_AFTER
        return self.changes // 2 if self.changes >= 2 * LATE_AFTER else None


class Show:
    """Runs the demo from start to end."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._done = threading.Event()
        self._last_arrival_s = time.monotonic()
        self.arrivals = Arrivals(plan.changes)
        self.latecomer = Latecomer()
        self.is_late_one_right = True
        self._has_begun_late = False

    def run(self) -> None:
        """Run until all changes came, or for ever; raises ChildError when a process fails.

        Signals stop it between two steps (see `stopped_by_signals`): then
        KeyboardInterrupt passes through, after everything was cleaned up.
        """
        plan = self._plan
        screen = screen_for(self._console, self.arrivals, self._footer)
        port, bootstrap_port = plan.ports()
        stage = Stage(
            plan.dialect,
            create_statements(plan.dialect),
            SOURCES,
            port=port,
            bootstrap_port=bootstrap_port,
            ring_bytes=SMALLEST_RING,
        )
        with ExitStack() as stack:
            with self._doing("making a shop"):
                stack.enter_context(stage)
            with self._doing("starting the relay"):
                stage.start_relay()
            if plan.late_after is not None:
                with self._doing("starting the bootstrap pair"):
                    stage.start_bootstrap()
            with self._doing("starting the consumer"):
                stack.enter_context(self._consumer(stage, screen))
            self._say(guide(stage, plan))
            writer = stage.child("writer", writer_command(stage, plan))
            writer.start()
            with screen:
                self._watch(screen, writer, stage, stack)
            if self._has_begun_late and plan.changes is not None:
                self._judge_latecomer(stage)

    def _say(self, lines: list[str]) -> None:
        # Not wrapped by us: a URL that a terminal wraps can still be copied whole.
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _doing(self, what: str) -> AbstractContextManager[object]:
        check_signals()
        if self._console.is_terminal:
            return self._console.status(f"{what} …")
        self._console.print(f"{what} …")
        return nullcontext()

    def _consumer(self, stage: Stage, screen: Screen) -> DatabusClient:
        client = DatabusClient([stage.url])

        @client.on(*SOURCES)
        def take(event: DataEvent) -> None:
            arrival = arrival_of(
                event.source, event.op, event.wire_key, event.row, event.scn, time.time_ns()
            )
            self.arrivals.add(arrival)
            screen.add(arrival)
            self._last_arrival_s = time.monotonic()
            if self.arrivals.is_complete:
                self._done.set()

        return client

    def _watch(self, screen: Screen, writer: Child, stage: Stage, stack: ExitStack) -> None:
        while not self._done.wait(1 / REFRESH_PER_S):
            check_signals()
            screen.refresh()
            stage.check()
            if self._is_late_due and stage.is_seeded:
                self._begin_late(stage, stack)
            waited_s = time.monotonic() - self._last_arrival_s
            if writer.exit_code == 0 and waited_s > NOTHING_NEW_S:
                break
        if self._is_late_due:  # the writer finished before the bootstrap server was ready
            stage.await_seeded()
            self._begin_late(stage, stack)

    @property
    def _is_late_due(self) -> bool:
        after = self._plan.late_after
        return not self._has_begun_late and after is not None and self.arrivals.count >= after

    def _begin_late(self, stage: Stage, stack: ExitStack) -> None:
        self._has_begun_late = True
        stack.enter_context(late_client(stage.url, stage.bootstrap_url, SOURCES, self.latecomer))

    def _footer(self) -> str:
        """Return the late consumer's progress; "" before it starts."""
        return self.latecomer.describe() if self._has_begun_late else ""

    def _judge_latecomer(self, stage: Stage) -> None:
        """Wait until the late consumer has finished, and compare its rows with the shop's."""
        session = stage.database.connect()
        try:
            shop = shop_rows(session.rows, SOURCES)
        finally:
            session.close()
        with suppress(TimeoutError):
            late = self.latecomer
            wait_until(lambda: late.is_live and late.rows == shop, CAUGHT_UP_S, "the late consumer")
        verdict = self.latecomer.verdict(shop)
        self.is_late_one_right = not verdict.startswith("NOT")
        self._say([f"{self.latecomer.describe()}, which are {verdict}"])


def writer_command(stage: Stage, plan: Plan) -> list[str]:
    """Return the command line of the writer."""
    changes = () if plan.changes is None else ("--changes", plan.changes)
    where = stage.database.arguments()
    options = ("--seed", plan.seed, "--rate", plan.changes_per_s, *changes)
    return python_module("databus.demo.writer", *where, *options)


def databus_command() -> str:
    """Return the path of this command: `make demo` does not put it on PATH."""
    return sys.argv[0] if Path(sys.argv[0]).name == "databus" else "databus"


def guide(stage: Stage, plan: Plan) -> list[str]:
    """Return URLs to open and commands to type in another terminal, as lines."""
    database = "SQLite" if plan.dialect == "sqlite" else "a private MariaDB"
    url, databus = stage.url, databus_command()
    relay = "" if stage.port == RELAY_PORT else f" --relay {url}"
    stream = f"{url}/stream?sources=1,2,3&size=100000&output=json_plain_value"
    looks = [f"{url}{path}" for path in ("/sources", "/health", "/metrics")]
    late, spark = [], []
    if plan.late_after is not None:
        looks.append(f"{stage.bootstrap_url}/bootstrapStatus")
        spark = [
            "To keep the orders in a Delta table (with the extra `spark`, and Java 17):",
            f"  {databus} spark sync shop.orders delta:lake/orders --relay {url} \\",
            f"    --bootstrap {stage.bootstrap_url} --checkpoint lake/checkpoint",
        ]
        late = [
            f"After {plan.late_after} changes another consumer starts. The small ring has lost the",
            "beginning by then; the bootstrap server has not.",
        ]
    return [
        f"A shop in {database}, a relay, and this consumer; all their files are in {stage.folder}",
        "and go when it ends (Ctrl-C).",
        *late,
        "",
        f"Its page, for a browser:  {url}/",
        "",
        "To look at:",
        *(f"  {look}" for look in looks),
        "To type in another terminal (what the ring has; the next changes; as a client sees them):",
        f"  curl -s '{stream}'",
        f"  curl -s '{stream}&streamFromLatestScn=true&wait=10000'",
        f"  {databus} tail shop.orders{relay} --from earliest",
        "And what the page shows, there:",
        f"  {databus} top{relay}",
        *spark,
        "",
    ]
