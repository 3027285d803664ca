"""The measured servers: a relay with a full ring, one with steady changes, a bootstrap server."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.serve import child, run_service
from benchmarks.spark_speed.rows import SOURCE, SRC_ID, TABLE, row
from databus.bootstrap.packs.packer import Packer
from databus.bootstrap.store.store import Store, StoredEvent
from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.demo.processes import Child, free_port, python_module, wait_until
from databus.relay.relay import Relay
from databus.relay.sources.source import (
    Captured,
    Newest,
    RowChange,
    Source,
    Transaction,
)
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema

PHYSICAL = "shop"
ROWS_PER_WINDOW = 10
EVENT_BYTES = 300  # more than an event of the table has
LEAST_RING_BYTES = 64 << 20  # minutes of few rows
CHUNK_ROWS = 10_000
BASE_SCN = 1000
READY_S = 300.0
IDLE_S = 0.05
PACKED_BYTES = 4 << 30  # of the store: the default
SEGMENT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a relay's source: `rows` at once, then `rate` windows per second.

    With `archive`, a URI, the relay has a log that is archived there.
    """

    folder: str
    rows: int
    rate: float = 0.0
    archive: str = ""


class Orders(Source):
    """A relay's source of made-up inserts."""

    name = PHYSICAL

    def __init__(self, load: Load) -> None:
        self._at_once = load.rows // ROWS_PER_WINDOW
        self._rate = load.rate
        self._scn = 0
        self._began = 0.0

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:  # noqa: ARG002
        """Begin with the first row."""
        self._writer = WindowWriter(self.name, self._encoder, newest)
        self._began = time.monotonic()

    def tables(self) -> Sequence[Table]:
        """Return the table."""
        return (TABLE,)

    def read(self) -> Sequence[Captured]:
        """Return the windows that are due, or wait a moment."""
        return self._writer.write_from(self._due)

    def _due(self) -> Sequence[Transaction]:
        due = self._at_once + int((time.monotonic() - self._began) * self._rate)
        end = min(due, self._scn + 100)
        if end <= self._scn:
            time.sleep(IDLE_S if not self._rate else min(IDLE_S, 0.5 / self._rate))
            return ()
        found = [self._window(scn) for scn in range(self._scn + 1, end + 1)]
        self._scn = end
        return found

    def close(self) -> None:
        """Do nothing."""

    def _window(self, scn: int) -> Transaction:
        keys = range(scn * ROWS_PER_WINDOW, (scn + 1) * ROWS_PER_WINDOW)
        changes = [RowChange(TABLE, Op.INSERT, row(key)) for key in keys]
        return Transaction(scn, time.time_ns(), changes)


def run_relay(load: Load, ready: Connection) -> None:
    """Run a relay until SIGTERM."""
    ring_bytes = max(LEAST_RING_BYTES, load.rows * EVENT_BYTES)
    source: dict[str, Any] = {"name": PHYSICAL, "uri": "generator:", "sources": [SOURCE]}
    source["ring_bytes"] = ring_bytes
    if load.archive:
        source["log"] = {"archive": load.archive, "segment_bytes": SEGMENT_BYTES}
    settings = build_settings(
        {"data_dir": load.folder, "http": {"port": 0}, "physical_sources": [source]}, RelaySettings
    )

    def open_source(_settings: PhysicalSourceSettings) -> Orders:
        return Orders(load)

    run_service(Relay(settings, open_source=open_source), ready)


@contextmanager
def relay_of(folder: Path, rows: int, rate: float = 0.0) -> Iterator[str]:
    """Run a relay; yield its URL once its ring has the load's rows."""
    folder.mkdir(parents=True)
    with child(run_relay, Load(str(folder), rows, rate)) as url:
        last_scn = max(1, rows // ROWS_PER_WINDOW)
        wait_until(lambda: _newest_scn(url) >= last_scn, READY_S, "the ring to be filled")
        yield url


def archived(folder: Path, rows: int) -> tuple[str, int]:
    """Archive a relay's rows, and stop it; return the archive's URI and its newest SCN.

    The last segment of the log is not archived, so the archive has fewer rows.
    """
    folder.mkdir(parents=True)
    uri = (folder / "archive").as_uri()
    with child(run_relay, Load(str(folder / "data"), rows, archive=uri)) as url:
        last_scn = max(1, rows // ROWS_PER_WINDOW)
        wait_until(lambda: _newest_scn(url) >= last_scn, READY_S, "the ring to be filled")

        def log() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(_get(f"{url}/controlSources/status"))[PHYSICAL]
            log: dict[str, Any] = found["relayLog"]
            return log

        def is_archived() -> bool:
            found = log()
            is_whole = found["durableScn"] >= last_scn and not found["archive"]["waitingSegments"]
            return is_whole and found["archive"]["segments"] > 0

        wait_until(is_archived, READY_S, "the archive to be filled")
        return uri, int(log()["archive"]["maxScn"])


@contextmanager
def bootstrap_of(folder: Path, rows: int, relay_url: str) -> Iterator[str]:
    """Run the bootstrap server of a store with a number of rows; yield its URL."""
    (folder / "store").mkdir(parents=True)
    fill(folder / "store" / f"{PHYSICAL}.db", rows)
    port = free_port()
    settings = [
        f'data_dir = "store"\nrelays = {json.dumps([relay_url])}\n[http]\nport = {port}\n',
        f'[[physical_sources]]\nname = "{PHYSICAL}"\nuri = "generator:"\n',
        f"sources = {json.dumps([SOURCE])}\n",
    ]
    file = folder / "server.toml"
    file.write_text("".join(settings), encoding="utf-8")
    command = python_module("databus.cli.main", "bootstrap", "serve", "-c", file)
    server, url = Child("server", command, folder), f"http://127.0.0.1:{port}"

    def is_serving() -> bool:
        server.check()
        try:
            # A large store is checked before it is read: until then its tables are not listed.
            return bool(json.loads(_get(f"{url}/sources")))
        except OSError:
            return False

    server.start()
    try:
        wait_until(is_serving, READY_S, "the bootstrap server")
        yield url
    finally:
        server.stop()


def fill(path: Path, rows: int) -> None:
    """Make a store of seeded rows."""
    schema = avro_schema(TABLE)
    codec, digest = RowCodec(schema), schema_id(schema)
    told = EventMetadata(Op.SNAPSHOT, None, 1, "none", BASE_SCN, 0, 0)
    metadata = metadata_part(encode_metadata(told))

    def seeded(key: int) -> StoredEvent:
        payload = Part(codec.encode(row(key)), digest, 1)
        event = Event(BASE_SCN, BASE_SCN, SRC_ID, 0, key, Opcode.UPSERT, payload, metadata)
        return StoredEvent(BASE_SCN, key, False, encode(event))

    store = Store.open(path)
    try:
        store.add_sources({SOURCE: SRC_ID})
        store.add_schemas(SRC_ID, [(1, schema)])
        store.apply_window(BASE_SCN, BASE_SCN, [])
        store.begin_seeding(SOURCE, BASE_SCN, rows)
        for begin in range(0, rows, CHUNK_ROWS):
            keys = range(begin, min(begin + CHUNK_ROWS, rows))
            store.merge_chunk(SOURCE, [seeded(key) for key in keys], str(keys[-1]))
        store.end_seeding(SOURCE, BASE_SCN)
        store.activate_caught_up()
        packer = Packer(store, PACKED_BYTES)
        while packer.step():
            pass
    finally:
        store.close()


def _newest_scn(url: str) -> int:
    newest: int = json.loads(_get(f"{url}/bufferInfo/inbound/{PHYSICAL}/0"))["maxScn"]
    return newest


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as answer:
        body: bytes = answer.read()
        return body
