"""The status of a pair's stores: read from their files, as plain values and as a table.

Counting rows costs more the larger the tables are, so the poller counts less often
the longer it takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from databus.bootstrap.server.checks import seeded_percent
from databus.bootstrap.server.reader_pool import OpenStores
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, SourceStatus, StoreSizes
from databus.schemas.errors import BootstrapError

LOOK_S = 1.0
RATE_S = 10.0  # the time over which a seeding rate is measured
COUNTING_SHARE = 0.02  # of the time may be spent on counting
_TITLES = ("source", "id", "status", "rows", "deleted", "log rows", "log bytes", "from scn")


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The status of one store. Without a file every field has its initial value."""

    problem: str = ""
    store_id: str = ""
    scn: int = -1
    timestamp_ns: int = 0
    term: int = 0
    sources: tuple[SourceState, ...] = ()
    sizes: StoreSizes | None = None

    @property
    def problems(self) -> list[str]:
        """The problems of the store and of each of its sources."""
        own = [self.problem] if self.problem else []
        return own + [
            f"{source.name}: {source.problem}"
            for source in self.sources
            if source.problem and source.status is not SourceStatus.INACTIVE
        ]

    def to_json_value(self) -> dict[str, Any]:
        """Return the status as plain values."""
        sizes = self.sizes
        return {
            "problem": self.problem,
            "storeId": self.store_id,
            "scn": self.scn,
            "timestampNs": self.timestamp_ns,
            "term": self.term,
            "fileBytes": None if sizes is None else sizes.file_bytes,
            "packedBytes": None if sizes is None else sizes.packed_bytes,
            "sources": {s.name: _source_value(s, sizes) for s in self.sources},
        }


def read_status(store: Store, sizes: StoreSizes | None) -> StoreStatus:
    """Return the current status of a store; the sizes are counted by the caller."""
    with store.reading():
        position, term, sources = store.position(), store.term(), tuple(store.sources())
    return StoreStatus("", store.id, position.scn, position.timestamp_ns, term, sources, sizes)


def read_all(paths: Mapping[str, Path]) -> dict[str, StoreStatus]:
    """Return the status of each store, with sizes counted now."""
    stores = OpenStores(paths)
    try:
        return dict(_look(stores, paths, lambda _, store: store.sizes()))
    finally:
        stores.close()


def _look(
    stores: OpenStores,
    names: Iterable[str],
    sizes_of: Callable[[str, Store], StoreSizes],
) -> Iterator[tuple[str, StoreStatus]]:
    now = stores.look()
    for name in names:
        if name in now.problems:
            yield name, StoreStatus(str(now.problems[name]))
        elif name in now.open:
            store = now.open[name]
            try:
                yield name, read_status(store, sizes_of(name, store))
            except BootstrapError as error:
                yield name, StoreStatus(str(error))
        else:
            yield name, StoreStatus("the producer has not created this store yet")


class StatusWatch:
    """Reads the status of the stores at intervals, on its own thread.

    `stores` is the newest result; any thread may read it.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        look_s: float = LOOK_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stores: Mapping[str, StoreStatus] = {name: StoreStatus() for name in paths}
        self._paths = paths
        self._look_s = look_s
        self._monotonic_s = monotonic_s
        self.seed_rates = SeedRates(monotonic_s)
        self._counted: dict[str, tuple[float, StoreSizes]] = {}  # when to count again
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bootstrap-status", daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        stores = OpenStores(self._paths)
        try:
            while not self._stop.is_set():
                self.stores = dict(_look(stores, self._paths, self._sizes))
                self.seed_rates.look(self.stores)
                self._stop.wait(self._look_s)
        finally:
            stores.close()

    def _sizes(self, name: str, store: Store) -> StoreSizes:
        began_s = self._monotonic_s()
        if name in self._counted and began_s < self._counted[name][0]:
            return self._counted[name][1]
        sizes = store.sizes()
        now_s = self._monotonic_s()
        # Counting reads whole indexes: a large store is counted less often.
        self._counted[name] = (now_s + (now_s - began_s) / COUNTING_SHARE, sizes)
        return sizes


class SeedRates:
    """The seeding rates of tables, computed from the status of their stores.

    It does not matter which process seeds. One thread calls `look`; any thread may read.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        # By source: (time, rows), the oldest first.
        self._seen: dict[tuple[str, str], tuple[tuple[float, int], ...]] = {}

    def look(self, stores: Mapping[str, StoreStatus]) -> None:
        """Record the row counts of the stores."""
        now_s = self._monotonic_s()
        seen = {}
        for name, store in stores.items():
            for source in store.sources:
                if source.status is SourceStatus.SEEDING:
                    place = name, source.name
                    # One sample older than RATE_S is kept: the rate is measured from it.
                    kept = [s for s in self._seen.get(place, ()) if now_s - s[0] <= RATE_S + LOOK_S]
                    is_anew = bool(kept) and kept[-1][1] > source.seed_rows
                    before = () if is_anew else tuple(kept)
                    seen[place] = (*before, (now_s, source.seed_rows))
        self._seen = seen

    def rows_per_s(self, name: str, source: str) -> float | None:
        """Return the rate over the last few seconds, or None when it is not known."""
        seen = self._seen.get((name, source), ())
        if len(seen) < 2:
            return None
        (then_s, rows_then), (now_s, rows_now) = seen[0], seen[-1]
        return (rows_now - rows_then) / (now_s - then_s) if now_s > then_s else None


def status_table(name: str, status: Mapping[str, Any]) -> Table:
    """Return a store's status, given as plain values, as a table for the terminal."""
    title = f"{name}: producer at scn {status['scn']}"
    # A server of an earlier version has neither; a file says only the term.
    if lease := status.get("lease"):
        title += f", {_lease_text(lease)}"
    elif term := status.get("term"):
        title += f", term {term}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, title in enumerate(_TITLES):
        table.add_column(title, no_wrap=True, justify="left" if number in (0, 2) else "right")
    for source, values in status["sources"].items():
        table.add_row(*(str(cell) for cell in _cells(source, values)))
    problems = [status["problem"], *(v["problem"] for v in status["sources"].values())]
    table.caption = "\n".join(filter(None, problems)) or None
    return table


def _lease_text(lease: Mapping[str, Any]) -> str:
    owner = f"of {lease['owner']}" if lease["owner"] else "free"
    return f"{lease['role']}; the lease is {owner}, term {lease['term']}"


def _cells(source: str, values: Mapping[str, Any]) -> Iterator[Any]:
    done = values["seededPercent"]
    yield source
    yield values["id"]
    yield values["status"] + ("" if done is None else f" {done} %")
    for key in ("rows", "tombstones", "logRows", "logBytes"):
        yield "" if values[key] is None else f"{values[key]:,}"
    floor_scn = max(values["floorScn"], values["logFloorScn"])
    yield floor_scn if values["status"] == SourceStatus.ACTIVE else "-"


def _source_value(source: SourceState, sizes: StoreSizes | None) -> dict[str, Any]:
    size = sizes.sources.get(source.name) if sizes else None
    is_seeding = source.status is SourceStatus.SEEDING
    return {
        "id": source.src_id,
        "status": source.status.value,
        "problem": source.problem,
        "rows": size.rows if size else None,
        "tombstones": size.tombstones if size else None,
        "logRows": size.log_rows if size else None,
        "logBytes": size.log_bytes if size else None,
        "floorScn": source.floor_scn,
        "logFloorScn": source.log_floor_scn,
        "tombstoneFloorScn": source.tombstone_floor_scn,
        "seedScn": source.seed_scn,
        "seedUntilScn": source.seed_until_scn,
        "seededRows": source.seed_rows,
        "seededPercent": seeded_percent(source) if is_seeding else None,
    }
