"""Reads everything that is delivered and shown from each kind of file.

A reader returns what can be compared; it raises the project's error where the file
is refused. Of a ring with damage in the middle it says how far a client got, and what
one behind the damage gets: `judge_ring` compares that with the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from databus.bootstrap.packs.reading import PackReading
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import WHOLE_WINDOW, Store
from databus.bootstrap.store.values import SourceState
from databus.bootstrap.store.watch import StoreWatch, file_at
from databus.client.checkpoints.store import read_file
from databus.registry.registry import SchemaRegistry
from databus.registry.sqlite_store import SqliteStore
from databus.relay.capture.max_scn import FileMaxScn, SqliteMaxScn
from databus.relay.captured_spans import load_first_scns
from databus.relay.ring.layout import open_file
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.stream import StreamJob, run
from databus.relay.sources.mysql.tables.history import History
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import BootstrapTooOldError, DamagedWindowsError
from databus.schemas.scn import MAX_SCN

FETCH_BYTES = 1 << 20
PAGE_BYTES = 4 << 20
RING_NAME = "shop"
_ASK_AGAIN_S = 0.02

Read = Callable[[Path], Any]


class Delivered(NamedTuple):
    """What one client got from a ring: up to the damage, if any, and after it."""

    data: bytes
    last_scn: int
    stopped: str = ""
    rest: bytes = b""


class RingRead(NamedTuple):
    """The content of a ring. `newest_scn` is where capture would continue."""

    all_rows: Delivered
    of_one_source: Delivered
    newest_scn: int
    shown: tuple[int, ...]
    dropped: str  # what the start said of windows it left out; "" for none


def read_ring(path: Path) -> RingRead:
    """Open a ring like a starting relay, and read it to its end."""
    with path.open("rb") as file:
        layout = open_file(path, file.fileno(), writable=False)
        capacity_bytes = layout.capacity_bytes
        layout.close()
    ring = Ring.open(path, RING_NAME, capacity_bytes)
    reader = None
    try:
        reader = RingReader.open(path, follows=True)
        shown = (reader.min_scn, reader.prev_scn, reader.first_timestamp_ns)
        return RingRead(
            _follow(reader),
            _follow(reader, src_ids=frozenset({1})),
            ring.max_scn,
            (*shown, reader.max_scn, reader.latest_timestamp_ns),
            ring.dropped,
        )
    finally:
        if reader is not None:
            reader.close()
        ring.close()


def _follow(reader: RingReader, **selected: Any) -> Delivered:
    data, scn, error = _read_on(reader, Checkpoint.flexible(), selected)
    if error is None:
        return Delivered(data, scn)
    rest, _, again = _read_on(reader, Checkpoint.at(error.until), selected)
    if again is not None:
        raise again
    return Delivered(data, scn, str(error), rest)


def _read_on(
    reader: RingReader, checkpoint: Checkpoint, selected: dict[str, Any]
) -> tuple[bytes, int, DamagedWindowsError | None]:
    pieces: list[bytes] = []
    while True:
        selection = Selection(RING_NAME, checkpoint, **selected)
        try:
            response = run(StreamJob(reader, selection, FETCH_BYTES, None))
        except DamagedWindowsError as error:
            return b"".join(pieces), checkpoint.window_scn, error
        pieces.append(response.body)
        if response.is_caught_up or response.resume is None:
            return b"".join(pieces), checkpoint.window_scn, None
        checkpoint = Checkpoint.at(response.resume[0])


def judge_ring(path: Path, before: RingRead, after: RingRead) -> str:
    """Return "found" or "repaired" for correct but incomplete content; else "wrong"."""
    if after.all_rows.stopped:
        pairs = zip(before[:2], after[:2], strict=True)
        is_right = all(
            whole.data.startswith(part.data)
            and (not part.stopped or whole.data.endswith(part.rest))
            and (not part.stopped or str(path) in part.stopped)
            for whole, part in pairs
        )
        return "found" if is_right else "wrong"
    # The oldest windows left out at a restart: a consumer that needs them is refused.
    is_end = all(
        whole.data.endswith(part.data) for whole, part in zip(before[:2], after[:2], strict=True)
    )
    if is_end and after.newest_scn == before.newest_scn and str(path) in after.dropped:
        return "found"
    # The newest ones left out: capture delivers the rest again.
    is_beginning = all(
        whole.data.startswith(part.data) for whole, part in zip(before[:2], after[:2], strict=True)
    )
    if is_beginning and after.newest_scn == max(after.all_rows.last_scn, after.shown[1]):
        return "repaired"
    return "wrong"


def read_schemas(path: Path) -> Any:
    """Return the content of a registry; `path` is the store or its copy."""
    registry = SchemaRegistry(SqliteStore(path.with_name("schemas.db")))
    return [(name, registry.versions(name)) for name in sorted(registry.sources())]


def read_checkpoint(path: Path) -> Any:
    """Return the checkpoint from which a client would start."""
    return read_file(path)


def read_max_scn(path: Path) -> Any:
    """Return the SCN after which capture would continue."""
    return FileMaxScn(path).load()


def read_first_scns(path: Path) -> Any:
    """Return the SCN after which each source is captured."""
    return load_first_scns(path)


def read_max_scn_database(path: Path) -> Any:
    """Return the same from a database of MaxSCNs."""
    return SqliteMaxScn(path, RING_NAME).load()


def read_history(path: Path) -> Any:
    """Return a table's definitions at every SCN."""
    history = History(path)
    return [
        (scn, history.table(name, scn), history.charset("shop", scn), history.stretch(scn))
        for scn in range(60)
        for name in (("shop", "orders"), ("shop", "order"))
    ]


def read_store(path: Path) -> Any:
    """Return all rows, log, schemas and states of a store, as its server serves them."""
    _wait_until_checked(path)
    store = Store.open(path, is_read_only=True)
    try:
        states = store.sources()
        src_ids = [state.src_id for state in states]
        return (
            store.position(),
            states,
            store.schemas(src_ids),
            store.sizes().sources,
            [_rows(store, state.name) for state in states],
            [_packs(store, state) for state in states],
            _log(store, src_ids),
        )
    finally:
        store.close()


def _wait_until_checked(path: Path) -> None:
    """Request the store like a client, and retry while it is being checked."""
    watch = StoreWatch({RING_NAME: path})
    found = file_at(path)
    assert found is not None
    watch.start()
    try:
        while True:
            try:
                watch.admit(RING_NAME, *found)
                return
            except BootstrapTooOldError:
                time.sleep(_ASK_AGAIN_S)
    finally:
        watch.stop()


def _rows(store: Store, name: str) -> list[bytes]:
    bodies, after_id = [], 0
    while True:
        page = store.snapshot_body(name, needed_rows(0, MAX_SCN, after_id, None), PAGE_BYTES)
        bodies += page.parts
        after_id = page.measure.last_id
        if page.measure.is_last:
            return [b"".join(bodies)]


def _packs(store: Store, state: SourceState) -> list[Any]:
    version = store.rows_now([state.src_id]).version(state.src_id)
    packs = PackReading(store, state, version, lambda event: event)
    pages, after_id = [], 0
    while after_id < MAX_SCN:
        page = packs.page(needed_rows(0, MAX_SCN, after_id, None), PAGE_BYTES)
        after_id = page.last_id
        pages.append((after_id, b"".join(page.parts)))
    return pages


def _log(store: Store, src_ids: list[int]) -> list[Any]:
    rows, place = [], (0, WHOLE_WINDOW)
    while True:
        page = store.log_page(LogRange(src_ids, place, MAX_SCN, {}), PAGE_BYTES)
        rows += page.rows
        place = page.last
        if page.is_last:
            return rows
