"""What a bootstrap is tested on: relay and pair as processes, databases, a consumer."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Protocol

from databus.bootstrap.store.store import SourceState, SourceStatus, Store
from databus.client.checkpoints.store import FileCheckpoints
from databus.client.consumer import Consumer, DataEvent
from databus.demo.processes import Child, free_port, python_module
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import BootstrapError
from tests import PATIENCE_S
from tests.bootstrap.live import live_rows
from tests.mariadb_server import Database
from tests.promises.running import (
    RunningRelay,
    Shop,
    mysql_source,
    to_toml,
    wait_until,
)

RING_BYTES = 256 << 10
PAGE_BYTES = 8 << 10
ROWS_A_WINDOW = 50
# An order's note that is long enough for a few thousand rows to be more than a ring holds.
NOTE = "n" * 120
_turns = itertools.count(1)


class Place(Protocol):
    """A database with tables `orders` and `people`, and its relay's settings."""

    orders: str  # the names of the two sources
    people: str

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Run statements, each a transaction; return the last one's rows."""

    def settings(self, *tables: str) -> dict[str, Any]:
        """Return the settings of the physical source, with more tables."""


@dataclass
class SqlitePlace:
    """An SQLite shop; any thread may use it."""

    shop: Shop
    orders: str = "shop.orders"
    people: str = "shop.people"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.run("CREATE TABLE people (name TEXT, land TEXT, born TEXT, PRIMARY KEY (name, land))")

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Run statements."""
        rows: Sequence[tuple[Any, ...]] = ()
        with self._lock:
            for statement in statements:
                rows = self.shop.connection.execute(statement).fetchall()
        return rows

    def settings(self, *tables: str) -> dict[str, Any]:
        """Return the settings of the physical source, with more tables."""
        sources = [self.orders, self.people, *(f"shop.{table}" for table in tables)]
        return self.shop.settings(sources=sources, ring_bytes=RING_BYTES)


class MysqlPlace:
    """A database of a MariaDB server; any thread may use it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.orders, self.people = f"{database.name}.orders", f"{database.name}.people"
        self._folder = folder
        self._lock = threading.Lock()
        # A relay begins with the server's oldest binlog: what tests before this one have written
        # there would pass through its small ring faster than a producer reads.
        self.run("RESET MASTER")

    def run(self, *statements: str) -> Sequence[tuple[Any, ...]]:
        """Run statements."""
        with self._lock:
            return self.database.run(*statements)

    def settings(self, *tables: str) -> dict[str, Any]:
        """Return the settings of the physical source, with more tables."""
        more = (f"{self.database.name}.{table}" for table in tables)
        sources = [self.orders, self.people, *more]
        # Nothing older than the ring may come from the server's binlogs.
        rungs = {"ring_bytes": RING_BYTES, "catch_ups": 0}
        return mysql_source(self.database, self._folder, sources=sources, **rungs)


class RunningPair:
    """Producer, seeder and servers of one store, each a process; `options` are settings.

    It keeps the relay's sources, or only `sources`.
    """

    def __init__(
        self, folder: Path, relay: RunningRelay, sources: Sequence[str] = (), **options: Any
    ) -> None:
        self._folder = folder
        self._relay = relay
        self._only = {"sources": list(sources)} if sources else {}
        self._path = folder / "pair" / f"{relay.physical[0]['name']}.db"
        self._options = {"data_dir": str(folder / "pair"), "relays": [relay.url]} | options
        self.producer = self._child("producer", "run", "--no-serve", "--no-seed")

    def states(self) -> dict[str, SourceState]:
        """Return how far each source of the store is."""
        with self._store() as store:
            return {state.name: state for state in store.sources()} if store else {}

    def position(self) -> int:
        """Return the SCN of the last window that the producer applied."""
        with self._store() as store:
            return store.position().scn if store else -1

    def log_scn(self) -> int:
        """Return the SCN of the window of its relay's log that the store has; -1 = of none."""
        with self._store() as store:
            return ((store and store.log_window()) or (-1,))[0]

    @contextmanager
    def _store(self) -> Iterator[Store | None]:
        try:
            store = Store.open(self._path, is_read_only=True)
        except BootstrapError:  # not made yet, or not all of it
            yield None
            return
        with contextlib.closing(store):
            yield store

    def wait_for_producer(self) -> None:
        """Wait until the producer has what the relay has."""
        self.wait(lambda: self.position() >= self._relay.max_scn(), "the producer")

    def wait_for_row(self, source: str, number: int) -> None:
        """Wait until the producer has a row, which the relay may not have yet."""

        def has_row() -> bool:
            with self._store() as store:
                return store is not None and number in live_rows(store, source)

        self.wait(has_row, f"row {number}")

    def start(self) -> RunningPair:
        """Start the producer and wait until the store knows its sources."""
        self.producer.start()
        self.wait(
            lambda: [s for s in self.states().values() if s.log_floor_scn >= 0],
            "a log in the store",
        )
        return self

    def seed(self) -> None:
        """Run the seeder to its end, and wait until every source is served."""
        seeder = self._child("seeder", "seed")
        seeder.start()
        try:
            code = seeder.wait(PATIENCE_S)
        finally:
            seeder.stop()
        assert code == 0, seeder.log_tail()
        self.wait(self.is_active, "the catch-up of the seeding")

    def reset(self, source: str) -> None:
        """Mark a source to be seeded again."""
        with contextlib.closing(Store.open(self._path)) as store:
            store.reset_source(source)

    def is_active(self) -> bool:
        """Say whether every source is served."""
        states = self.states().values()
        return bool(states) and all(s.status is SourceStatus.ACTIVE for s in states)

    def server(self, name: str = "server") -> RunningServer:
        """Make another server of the store; start it yourself."""
        port = free_port()
        return RunningServer(self._child(name, "serve", port=port), port)

    def wait(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until something is so; fails, telling what the producer said."""
        wait_until(is_so, what, lambda: f"{self.states()}\n{self.producer.log_tail()}")

    def _child(self, name: str, *words: str, port: int = 0) -> Child:
        file = self._folder / f"{name}.toml"
        physical = [{**one, **self._only} for one in self._relay.physical]
        text = to_toml(self._options, {"port": port or free_port()}, physical)
        file.write_text(text, encoding="utf-8")
        command = python_module("databus.cli.main", "bootstrap", *words, "-c", file)
        return Child(name, command, self._folder)


class RunningServer:
    """`databus bootstrap serve` as a process of its own."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.url = f"http://127.0.0.1:{port}"
        self._port = port

    def start(self) -> RunningServer:
        """Start it and wait until it answers."""
        self.child.start()
        wait_until(self._answers, self.child.name, self.child.log_tail)
        return self

    def _answers(self) -> bool:
        assert self.child.exit_code is None, self.child.log_tail()
        with contextlib.closing(HTTPConnection("127.0.0.1", self._port)) as connection:
            try:
                connection.request("GET", "/admin")
                return connection.getresponse().read() == b"GOOD"
            except OSError:
                return False


@contextmanager
def running_pair(
    folder: Path, place: Place, *tables: str, **options: Any
) -> Iterator[tuple[RunningRelay, RunningPair]]:
    """Run a relay of a place and a producer of it; nothing is seeded or served yet."""
    relay = RunningRelay(folder, place.settings(*tables))
    pair = RunningPair(folder, relay, **options)
    with ExitStack() as stack:
        stack.callback(relay.child.stop)
        relay.start()
        stack.callback(pair.producer.stop)
        yield relay, pair.start()


@contextmanager
def serving(*servers: RunningServer) -> Iterator[list[str]]:
    """Run servers; gives their URLs."""
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.child.stop)
            server.start()
        yield [server.url for server in servers]


def has_evicted(relay: RunningRelay, scn: int) -> bool:
    """Say whether a client that has everything up to an SCN must bootstrap."""
    return "ScnNotFound" in str(relay.stream(Checkpoint.at(scn)).headers)


def insert_orders(place: Place, ids: Sequence[int], note: str = NOTE) -> None:
    """Insert orders, some to a transaction."""
    for begin in range(0, len(ids), ROWS_A_WINDOW):
        rows = ", ".join(f"({n}, '{note}')" for n in ids[begin : begin + ROWS_A_WINDOW])
        place.run(f"INSERT INTO orders (id, note) VALUES {rows}")


def insert_people(place: Place, count: int) -> None:
    """Insert people with a key of two columns."""
    rows = ", ".join(f"('p{n}', 'd{n % 10}', '1970-01-01')" for n in range(count))
    place.run(f"INSERT INTO people (name, land, born) VALUES {rows}")


def write_past_the_ring(place: Place, relay: RunningRelay, scn: int | None = None) -> None:
    """Update orders until the relay has evicted what comes after an SCN, or now.

    A window at a time: everything that is committed between two looks of an
    SQLite relay is one window, which has to fit the ring.
    """
    while scn is None or not has_evicted(relay, scn):
        before = relay.max_scn()
        update_orders(place)
        wait_until(lambda b=before: relay.max_scn() > b, "the window")  # type: ignore[misc]
        scn = relay.max_scn() if scn is None else scn


def update_orders(place: Place) -> None:
    """Update a fortieth of the orders, with a note that none had before."""
    turn = next(_turns)
    place.run(f"UPDATE orders SET note = '{turn}{NOTE}' WHERE id % 40 = {turn % 40}")


def rows_of(place: Place, table: str, *columns: str) -> set[tuple[Any, ...]]:
    """Return the rows of a table, some of their columns."""
    return set(place.run(f"SELECT {', '.join(columns)} FROM {table}"))


class Applying(Consumer):
    """Applies everything, old rows and changes alike, and holds it to what is promised.

    `on_page(number)` is called after each page of a bootstrap.
    """

    def __init__(self, on_page: Callable[[int], None] = lambda _: None) -> None:
        self.state: dict[str, dict[int | bytes, dict[str, Any]]] = {}
        self.problems: list[str] = []
        self.calls: list[str] = []
        self.pages = self.bootstrapped = 0
        self.scn = -1
        self._on_page = on_page
        self._newest: dict[tuple[str, int | bytes], int] = {}
        self._may_go_back = False

    def on_data_event(self, event: DataEvent) -> None:
        """Apply it, unless it is older than what is there."""
        place = event.source, event.wire_key
        before = self._newest.get(place, -1)
        if event.scn < before and not self._may_go_back:
            self.problems.append(f"{place} of scn {event.scn} came after that of {before}")
        self._newest[place] = event.scn
        rows = self.state.setdefault(event.source, {})
        if event.is_delete:
            rows.pop(event.wire_key, None)
        else:
            rows[event.wire_key] = event.row

    def on_bootstrap_event(self, event: DataEvent) -> None:
        """Apply it as any other."""
        self.bootstrapped += 1
        self.on_data_event(event)

    def on_end_bootstrap_sequence(self, scn: int) -> None:
        """Tell of the page."""
        self.pages += 1
        self._on_page(self.pages)

    def on_start_bootstrap(self) -> None:
        """Note it."""
        self.calls.append("start")

    def on_stop_bootstrap(self) -> None:
        """Note it."""
        self.calls.append("stop")

    def on_checkpoint(self, scn: int) -> None:
        """Note how far the live stream is."""
        self.scn = scn

    def on_bootstrap_checkpoint(self, scn: int) -> None:
        """Nothing: that is not the live stream."""

    def on_rollback(self, scn: int) -> None:
        """Allow what comes again."""
        self._may_go_back = True

    def on_error(self, error: BaseException) -> None:
        """Note it."""
        self.problems.append(f"stopped: {error!r}")

    def rows(self, source: str, *columns: str) -> set[tuple[Any, ...]]:
        """Return the rows as applied, some of their columns."""
        rows = self.state.get(source, {}).copy()  # another thread applies
        return {tuple(row[c] for c in columns) for row in rows.values()}


class WatchedCheckpoints(FileCheckpoints):
    """Checkpoint files; `modes` are those that the file had, one after another."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.modes: list[str] = []

    def load(self, name: str, sources: Sequence[str]) -> Checkpoint | None:
        """Load, and note the mode."""
        found = super().load(name, sources)
        if found is not None:
            self._note(found.mode)
        return found

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save, and note what the file says now."""
        super().save(name, sources, checkpoint)
        kept: Mapping[str, Any] = json.loads(self.path(name, sources).read_text("utf-8"))
        self._note(kept["checkpoint"]["consumption_mode"])

    def _note(self, mode: str) -> None:
        if mode not in self.modes[-1:]:
            self.modes.append(mode)
