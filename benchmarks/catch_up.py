"""The cost of a catch-up: `python -m benchmarks.catch_up [--short] [--json FILE]`.

Two stores of 1,000,000 rows, each with 1,000,000 updates in its log, 100 to a
window: of 1,000 of the rows, and of all of them. A client that has everything
from before the updates catches up twice: by snapshot-plus-catch-up, as it does
when its SCN is gone from the relay, and by replaying the whole log, as it would
if there were no snapshot. The first costs what was changed, the second how
often: that is what the ratios show.

Real are the store, the server (a process of its own), HTTP, the client and the
relay that refuses it; the rows come from nowhere, and the relay's from the
generator, which the client never gets to. Every row is decoded.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.report import Figure, command
from databus.bootstrap.store.store import Store, StoredEvent
from databus.client.checkpoints.store import MemoryCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.demo.processes import Child, free_port, python_module, wait_until
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.checkpoint import LINEAR, ORDER_KEY, Checkpoint, ConsumptionMode
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

SOURCE, SRC_ID = "shop.stock", 1
UPDATES_PER_WINDOW = 100
CHUNK_ROWS = 10_000
BASE_SCN = 1000
# Coprime to every count of keys here: updates go over the table in leaps, not in its order.
LEAP = 7_919
START_S, CATCH_UP_S = 30.0, 3600.0
TABLE = Table(
    SOURCE,
    (
        Column("id", "integer", 0, False, 0),
        Column("quantity", "integer", 1, False),
        Column("note", "text", 2),
    ),
    "sqlite",
)


@dataclass(frozen=True, slots=True)
class Size:
    """The number of rows, of updates, and of rows that are updated."""

    rows: int
    updates: int
    keys: int

    @property
    def last_scn(self) -> int:
        """The last window of updates."""
        return BASE_SCN + self.updates // UPDATES_PER_WINDOW


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one catch-up."""

    seconds: float
    events: int


class Rows:
    """Makes the events of the table."""

    def __init__(self) -> None:
        self.schema = avro_schema(TABLE)
        self._codec, self._digest = RowCodec(self.schema), schema_id(self.schema)

    def event(self, key: int, number: int, scn: int, op: Op, index: int = 0) -> StoredEvent:
        """Return the row of a key after its number-th change."""
        row = {"id": key, "quantity": number, "note": f"row {key}, changed by update {number}"}
        told = EventMetadata(op, None, 1, "generator", scn, 0, index)
        payload = Part(self._codec.encode(row), self._digest, 1)
        metadata = metadata_part(encode_metadata(told))
        event = Event(scn, scn, SRC_ID, 0, key, Opcode.UPSERT, payload, metadata)
        return StoredEvent(scn, key, False, encode(event))


def fill(path: Path, size: Size) -> None:
    """Make a store: rows as seeded at BASE_SCN, then the updates."""
    rows = Rows()
    store = Store.open(path)
    try:
        store.add_sources({SOURCE: SRC_ID})
        store.add_schemas(SRC_ID, [(1, rows.schema)])
        store.apply_window(BASE_SCN, BASE_SCN, [])
        store.begin_seeding(SOURCE, BASE_SCN, size.rows)
        for begin in range(0, size.rows, CHUNK_ROWS):
            keys = range(begin, min(begin + CHUNK_ROWS, size.rows))
            seeded = [rows.event(key, 0, BASE_SCN, Op.SNAPSHOT) for key in keys]
            store.merge_chunk(SOURCE, seeded, str(keys[-1]))
        store.end_seeding(SOURCE, BASE_SCN)
        store.activate_caught_up()
        for scn in range(BASE_SCN + 1, size.last_scn + 1):
            store.apply_window(scn, scn, list(_updates(rows, size, scn)))
    finally:
        store.close()


def _updates(rows: Rows, size: Size, scn: int) -> Iterator[tuple[int, StoredEvent]]:
    first = (scn - BASE_SCN - 1) * UPDATES_PER_WINDOW
    for index in range(UPDATES_PER_WINDOW):
        number = first + index
        key = number * LEAP % size.keys
        yield SRC_ID, rows.event(key, number + 1, scn, Op.UPDATE, index)


class Counter(Consumer):
    """Counts each row, and decodes it with `decodes`; signals the end of a bootstrap."""

    def __init__(self, decodes: bool = True) -> None:
        self.is_done = threading.Event()
        self._decodes = decodes
        self.events = 0
        self.error: BaseException | None = None

    def on_bootstrap_event(self, event: DataEvent) -> None:
        """Count a row or change."""
        self.events += not self._decodes or len(event.row) > 0

    def on_stop_bootstrap(self) -> None:
        """Record the end."""
        self.is_done.set()

    def on_error(self, error: BaseException) -> None:
        """Record the failure."""
        self.error = error
        self.is_done.set()


class Pair:
    """A bootstrap server of one store, and a relay that holds only the newest windows."""

    def __init__(self, folder: Path, last_scn: int) -> None:
        self._last_scn = last_scn
        self.relay_url = f"http://127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{free_port()}"
        physical = (
            '[[physical_sources]]\nname = "shop"\nuri = "generator:?rate=50&rows=1"\n'
            f'sources = ["{SOURCE}"]\nstart = "{last_scn - 20}"\n'
        )
        relay = _port(self.relay_url)
        server = f"relays = [{json.dumps(self.relay_url)}]\n" + _port(self.url)
        self.relay = _daemon(folder, "relay", ("relay", "run"), relay + physical)
        self.server = _daemon(folder, "server", ("bootstrap", "serve"), server + physical)

    def wait(self) -> None:
        """Wait until both answer, and the relay has the windows after the store's."""
        wait_until(self._is_serving, START_S, "the server")
        wait_until(self._is_ahead, START_S, "the relay")

    def catch_up(self, checkpoint: Checkpoint, *, decodes: bool = True) -> Cost:
        """Run a client from a checkpoint to the end of its bootstrap."""
        counter, checkpoints = Counter(decodes), MemoryCheckpoints()
        checkpoints.save("default", [SOURCE], checkpoint)
        client = DatabusClient(
            [self.relay_url], bootstrap_servers=(self.url,), checkpoints=checkpoints
        )
        client.register(counter, [SOURCE])
        began = time.perf_counter()
        with client:
            if not counter.is_done.wait(CATCH_UP_S):
                raise TimeoutError(f"no end of the bootstrap after {counter.events} events")
            seconds = time.perf_counter() - began
        if counter.error is not None:
            raise counter.error
        return Cost(seconds, counter.events)

    def replay(self) -> Cost:
        """Catch up by replaying the log."""
        snapshot = Checkpoint(
            ConsumptionMode.SNAPSHOT,
            BASE_SCN,
            prev_scn=BASE_SCN,
            bootstrap_since_scn=BASE_SCN,
            bootstrap_start_scn=BASE_SCN,
            server_info=self.url.removeprefix("http://"),
            extra={ORDER_KEY: LINEAR},
        )
        read = snapshot.start_snapshot(SOURCE, 0).end_snapshot()
        target = read.with_target_scn(self._last_scn)
        return self.catch_up(target.start_catch_up(SOURCE, 0))

    def _is_serving(self) -> bool:
        self.server.check()
        return _ask(self.url, "/admin") == "GOOD"

    def _is_ahead(self) -> bool:
        self.relay.check()
        text = _ask(self.relay_url, "/bufferInfo/inbound/shop/0")
        return bool(text) and json.loads(text)["maxScn"] > self._last_scn


@contextmanager
def pair_of(folder: Path, size: Size) -> Iterator[Pair]:
    """Fill a store and serve it for the length of a `with`."""
    with ExitStack() as stack:
        place = folder / f"keys-{size.keys}"
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        (place / "server").mkdir(parents=True)
        fill(place / "server" / "shop.db", size)
        pair = Pair(place, size.last_scn)
        for child in (pair.relay, pair.server):
            stack.callback(child.stop)
            child.start()
        pair.wait()
        yield pair


def figures(short: bool = False) -> list[Figure]:
    """Measure few and many keys, by snapshot and by log."""
    rows = 20_000 if short else 1_000_000
    found: list[Figure] = []
    seconds: list[float] = []
    folder = Path(tempfile.mkdtemp(prefix="databus-catch-up-"))
    try:
        for keys in (max(200, rows // 1000), rows):
            size = Size(rows, rows, keys)
            with pair_of(folder, size) as pair:
                by_snapshot = pair.catch_up(Checkpoint.at(BASE_SCN))
                by_log = pair.replay()
            found += _figures_of(size, by_snapshot, by_log)
            seconds.append(by_snapshot.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    name = "catch-up, time of all keys changed / of few keys changed"
    return [*found, Figure(name, seconds[1] / seconds[0], "x")]


def _figures_of(size: Size, by_snapshot: Cost, by_log: Cost) -> list[Figure]:
    what = f"catch-up, {size.updates:,} updates of {size.keys:,} keys"
    return [
        Figure(f"{what}: by snapshot", by_snapshot.seconds, "s"),
        Figure(f"{what}: by snapshot", by_snapshot.events, "rows"),
        Figure(f"{what}: by the whole log", by_log.seconds, "s"),
        Figure(f"{what}: by the whole log", by_log.events, "rows"),
        Figure(f"{what}: log / snapshot", by_log.seconds / by_snapshot.seconds, "x"),
    ]


def _daemon(folder: Path, name: str, words: tuple[str, ...], settings: str) -> Child:
    file = folder / f"{name}.toml"
    file.write_text(f"data_dir = {json.dumps(name)}\n{settings}", encoding="utf-8")
    return Child(name, python_module("databus.cli.main", *words, "-c", file), folder)


def _port(url: str) -> str:
    return f"[http]\nport = {url.rpartition(':')[2]}\n"


def _ask(url: str, path: str) -> str:
    """Return a server's response; empty without one."""
    with suppress(OSError), urllib.request.urlopen(url + path, timeout=5) as answer:
        found: bytes = answer.read()
        return found.decode()
    return ""


main = command("catch-up", figures)
if __name__ == "__main__":
    main()
