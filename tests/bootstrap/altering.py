"""A database whose tables are altered, with a relay, a whole pair, and whoever reads them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from databus.bootstrap.pair import Pair, listed_sources
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.seeder.job import SeedingThread, store_path
from databus.bootstrap.server.pages import read_page
from databus.bootstrap.server.parameters import parse_page_request
from databus.bootstrap.server.source_lookup import Stores
from databus.bootstrap.service import make_service
from databus.bootstrap.store.store import SourceStatus, Store
from databus.bootstrap.verify.comparison import Comparison
from databus.bootstrap.verify.verify import verify
from databus.client.consumer import Consumer, DataEvent
from databus.conf.settings import BootstrapSettings, HttpSettings
from databus.relay.sources.kind import open_scan
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.event import Opcode
from databus.schemas.table_change import Step, step
from tests import PATIENCE_S
from tests.bootstrap.live import pair_settings
from tests.bootstrap.walking import catch_up_at, split
from tests.promises.running import RunningRelay, consuming, running, wait_until
from tests.relay.fakes import ServiceThread

_LIMITS = HttpSettings(max_response_bytes=1 << 20)

Rows = dict[Any, dict[str, Any]]


def _with_numbers(row: dict[str, Any]) -> dict[str, Any]:
    micro = timedelta(microseconds=1)
    return {name: v // micro if isinstance(v, timedelta) else v for name, v in row.items()}


class Keeper(Consumer):
    """Keeps each source's rows by key, as they are: also through every change of their table."""

    def __init__(self) -> None:
        self._kept: dict[str, Rows] = {}
        self.changes: list[tuple[str, Step]] = []
        self.problems: list[BaseException] = []
        self.scn = self._page_scn = -1

    @property
    def rows(self) -> dict[str, Rows]:
        """The rows with a TIME in microseconds, as a scan of the table has it."""
        return {
            source: {key: _with_numbers(row) for key, row in kept.items()}
            for source, kept in self._kept.items()
        }

    def read_again(self, source: str, other: Keeper) -> None:
        """Take the rows of a source from one that has read it just now."""
        self._kept[source] = dict(other._kept.get(source, {}))

    def on_data_event(self, event: DataEvent) -> None:
        rows = self._kept.setdefault(event.source, {})
        if event.is_truncate:
            rows.clear()
        elif event.is_delete:
            rows.pop(event.wire_key, None)
        else:
            rows[event.wire_key] = event.row

    def on_schema_change(self, source: str, before: str, after: str, needs_reload: bool) -> None:
        found = step(before, after)
        self.changes.append((source, found))
        if not needs_reload:
            known = self._kept.get(source, {})
            self._kept[source] = {key: found.row(row) for key, row in known.items()}

    def on_checkpoint(self, scn: int) -> None:
        self.scn = scn

    def on_bootstrap_checkpoint(self, scn: int) -> None:
        self._page_scn = scn

    def on_stop_bootstrap(self) -> None:
        self.scn = self._page_scn

    def on_error(self, error: BaseException) -> None:
        self.problems.append(error)


@dataclass
class Altered:
    """What runs."""

    settings: BootstrapSettings
    relay: RunningRelay
    store: Store
    url: str
    sources: Sequence[str]
    folder: Path = field(default_factory=Path)

    def table(self, source: str) -> list[dict[str, Any]]:
        """Return the rows that a table has, as the scan reads them."""
        # Of this table alone: a scan asks the server about each of its tables when it is opened.
        alone = {"sources": (source,)}
        scan = open_scan(self.settings.physical_sources[0].model_copy(update=alone))
        scan.open()
        try:
            return [dict(row) for chunk in scan.chunks(source, 10_000) for row in chunk.rows]
        finally:
            scan.close()

    def newest_scn(self) -> int:
        """Return where the database's log ends."""
        scan = open_scan(self.settings.physical_sources[0])
        scan.open()
        try:
            return scan.newest_scn()
        finally:
            scan.close()

    def wait_until_served(self) -> None:
        """Wait until the pair has what the database has, and serves every source."""
        scn = self.newest_scn()
        wait_until(lambda: self.store.position().scn >= scn, f"scn {scn}", self.tell)
        wait_until(
            lambda: all(s.status is SourceStatus.ACTIVE for s in self.store.sources()),
            "every source to be served",
            self.tell,
        )

    def tell(self) -> Any:
        """Return how it is."""
        return self.store.position(), self.store.sources(), self.relay.tell()

    def late(self, sources: Sequence[str] | None = None) -> Keeper:
        """Return what a consumer has that begins now, from nothing, when it has all."""
        keeper, scn = Keeper(), self.newest_scn()
        with consuming(
            [self.relay.url],
            sources or self.sources,
            keeper,
            bootstrap_servers=[self.url],
            start="beginning",
        ):
            wait_until(
                lambda: keeper.scn >= scn or bool(keeper.problems),
                f"a late consumer at scn {scn}",
                lambda: (keeper.scn, keeper.problems),
            )
        assert not keeper.problems
        return keeper

    @contextmanager
    def held_by(self, keeper: Keeper) -> Iterator[None]:
        """Let a consumer have all that there is, and stay, for the length of a `with`."""
        self.wait_until_served()
        scn = self.newest_scn()
        servers: dict[str, Any] = {"bootstrap_servers": [self.url], "start": "beginning"}
        with consuming([self.relay.url], self.sources, keeper, **servers):
            wait_until(lambda: keeper.scn >= scn, "an early consumer", lambda: keeper.problems)
            yield

    def logged(self, source: str, since_scn: int) -> Rows:
        """Return the rows that somebody gets who began at an SCN, and catches up only now."""
        scn = self.store.position().scn
        asked = {"sources": source, "checkPoint": catch_up_at(since_scn, scn).to_json()}
        request = parse_page_request(
            {**asked, "maxev": "2", "truncate": "true", "batchSize": "100000"}, _LIMITS
        )
        stores = Stores({self.settings.physical_sources[0].name: self.store})
        page = read_page(request, stores, listed_sources(self.settings))
        assert page.is_phase_over
        src_id = self.store.source(source).src_id
        texts = {schema_id(text): text for _, _, text in self.store.schemas([src_id])}
        rows: Rows = {}
        for event in split(page.body)[0]:
            rows.pop(event.key, None)
            if event.opcode is not Opcode.DELETE:
                rows[event.key] = row_codec(texts[event.schema_id]).decode(event.value)
        return rows

    def verify(self, *sources: str) -> list[Comparison]:
        """Compare with the database as `databus bootstrap verify` does."""
        (physical,) = self.settings.physical_sources
        return verify(self.settings, physical, sources or None, lambda _: None, threading.Event())


@contextmanager
def altered(folder: Path, physical: Mapping[str, Any], **options: Any) -> Iterator[Altered]:
    """Run relay and pair over a physical source."""
    with running(RunningRelay(folder, physical)) as relay:
        relay.start()
        settings = pair_settings(relay, physical, folder, http={"port": 0}, **options)
        (one,) = settings.physical_sources
        producer, seeding = Producer(settings, one), SeedingThread(settings, one)
        producer.start()
        path = store_path(settings, one)
        wait_until(path.exists, "the store", producer.status)
        store = Store.open(path)
        try:
            wait_until(lambda: store.position().scn >= 0, "a position", producer.status)
            seeding.start()
            server = ServiceThread(make_service(Pair(settings)))
            try:
                yield Altered(settings, relay, store, server.url, one.source_names, folder)
            finally:
                server.close()
        finally:
            assert seeding.stop(PATIENCE_S)
            assert producer.stop(PATIENCE_S)
            store.close()


def same(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two tables have the same rows, in any order."""
    return sorted(map(_text, rows)) == sorted(map(_text, others))


def _text(row: Mapping[str, Any]) -> str:
    return repr(sorted((name, _plain(value)) for name, value in row.items()))


def _plain(value: Any) -> Any:
    is_aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(UTC).isoformat() if is_aware else value
