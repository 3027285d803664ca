"""Whatever happens to a store, a consumer ends with the source's rows, or is refused.

Windows, TRUNCATE among them, seeding in chunks, falling off the relay, retention,
resets, reopening and kills come in any order, while consumers bootstrap page by
page. Each of them ends with exactly the rows that the source had at its target,
and never sees a row go back, unless it is refused with what the contract names.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from databus.bootstrap.store import store as store_module
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import SourceState, SourceStatus, Store
from databus.bootstrap.store.values import WHOLE_WINDOW, LogPlace, StoredEvent
from databus.conf.loading import build_settings
from databus.conf.settings import BootstrapSettings
from databus.schemas.event.v2 import decode
from databus.schemas.filters import AnyOf, EventFilter, ModFilter, NoFilter
from tests.bootstrap.filled import SRC_IDS, Change, emptied, is_truncate, stored
from tests.bootstrap.walking import row_of

Key = int | bytes
Tables = dict[int, dict[Key, str]]
KEYS: dict[int, list[Key]] = {1: [-(1 << 63), -2, -1, 0, 1, 2, 3, 40], 2: [b"7", b"a", b"b,c", b""]}
RowWrite = tuple[int, int, bool | None]  # src_id, number of the key; put, deleted, or all deleted
CHANGES: st.SearchStrategy[list[RowWrite]] = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2]),
        st.integers(0, 7),
        st.sampled_from([True, True, True, True, False, False, None]),
    ),
    max_size=4,
)
SOURCES = st.sampled_from(list(SRC_IDS))
RARELY = st.sampled_from([False] * 7 + [True])
FILTERS: list[EventFilter] = [NoFilter(), ModFilter(3, 0, 1), AnyOf((ModFilter(5, 3, 5),))]
CHUNK_ROWS = 2
PAGE_BYTES = 500  # a row or two
HOUR_S = 3600


class _Killed(Exception):  # noqa: N818 - it is no error
    pass


class Database:
    """The source: two tables and every transaction there ever was."""

    def __init__(self) -> None:
        self.scn = 10
        self.tables: Tables = {1: {}, 2: {}}
        self.history: dict[int, list[tuple[int, Key | None, str | None]]] = {}  # None: all keys
        self.begin: Tables = {1: {}, 2: {}}

    def commit(self, rise: int, changes: list[RowWrite]) -> None:
        self.scn += rise
        done: list[tuple[int, Key | None, str | None]] = []
        for index, (src_id, number, is_put) in enumerate(changes):
            if is_put is None:
                self.tables[src_id].clear()
                done.append((src_id, None, None))
                continue
            key = KEYS[src_id][number % len(KEYS[src_id])]
            value = f"{self.scn}.{index}" if is_put else None
            if value is None and self.tables[src_id].pop(key, None) is None:
                continue
            if value is not None:
                self.tables[src_id][key] = value
            done.append((src_id, key, value))
        self.history[self.scn] = done

    def at(self, scn: int) -> Tables:
        found = {src_id: dict(rows) for src_id, rows in self.begin.items()}
        for window_scn, changes in self.history.items():
            if window_scn > scn:
                break
            for src_id, key, value in changes:
                if key is None:
                    found[src_id].clear()
                elif value is None:
                    found[src_id].pop(key, None)
                else:
                    found[src_id][key] = value
        return found


class Consumer:
    """Bootstraps from S; `rows` is its target."""

    def __init__(self, since_scn: int, rows: Tables, wanted: EventFilter) -> None:
        self.since_scn = since_scn
        self.rows = rows
        self.wanted = wanted
        self.start_scn = self.target_scn = -1
        self.left = list(SRC_IDS)  # snapshots to read
        self.after_id = 0
        self.place: LogPlace = (-1, WHOLE_WINDOW)
        self.scns: dict[tuple[int, Key], int] = {}
        self.emptied_scns = dict.fromkeys((1, 2), since_scn)

    def take(self, src_id: int, key: Key, event: bytes) -> None:
        decoded, _ = decode(event)
        assert (decoded.src_id, decoded.key) == (src_id, key)
        assert decoded.scn >= self.emptied_scns[src_id], "it went back before a TRUNCATE"
        if is_truncate(decoded):
            newest = max((s for (i, _), s in self.scns.items() if i == src_id), default=0)
            assert decoded.scn >= newest, "a TRUNCATE came late"
            self.emptied_scns[src_id] = decoded.scn
            self.rows[src_id].clear()
            return
        assert self.wanted.matches(key)
        assert decoded.scn >= self.scns.get((src_id, key), self.since_scn), "it went back"
        self.scns[src_id, key] = decoded.scn
        if decoded.opcode == 2:
            self.rows[src_id].pop(key, None)
        else:
            self.rows[src_id][key] = row_of(decoded)["name"]


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.now_s = 1_000_000
        self.database = Database()
        self.evicted_scn = 10  # the newest window that the relay has no more
        self.store = self.open()
        self.resume: dict[str, int] = {}
        self.read: dict[str, list[StoredEvent]] = {}  # and not merged yet
        self.consumers: list[Consumer] = []
        self.finished = 0

    def open(self) -> Store:
        return Store.open(self.folder / "shop.db", now_ns=self.now_ns)

    def now_ns(self) -> int:
        return self.now_s * 1_000_000_000

    def teardown(self) -> None:
        try:
            self.do_all()
        finally:
            self.store.close()
            shutil.rmtree(self.folder)

    @initialize(rows=CHANGES, is_filled=st.booleans())
    def begin(self, rows: list[RowWrite], is_filled: bool) -> None:
        self.database.commit(1, rows)
        self.database.begin = {s: dict(rows) for s, rows in self.database.tables.items()}
        self.database.history.clear()
        self.begin_scn = self.evicted_scn = self.database.scn
        self.store.add_sources(SRC_IDS)
        if is_filled:
            self.fill([rows])

    # The source, the relay and the producer

    @rule(rise=st.integers(1, 3), changes=CHANGES)
    def commit(self, rise: int, changes: list[RowWrite]) -> None:
        self.database.commit(rise, changes)

    @rule(count=st.integers(1, 4))
    def produce(self, count: int) -> None:
        scn = self.store.position().scn
        if 0 <= scn < self.evicted_scn:
            self.store.fall_off(scn, self.evicted_scn + 1)
            assert self.store.position().scn == -1
            return
        held = [s for s in self.database.history if s > max(scn, self.evicted_scn)]
        for window_scn in held[:count]:
            if scn == -1:
                self.store.begin_log(window_scn - 1)
                scn = window_scn
            assert self.apply(window_scn)
            assert not self.apply(window_scn)
        self.store.activate_caught_up()

    def apply(self, scn: int) -> bool:
        events: list[Change] = [
            emptied(src_id, scn)
            if key is None
            else (src_id, stored(src_id, key, scn, value or "", is_deleted=value is None))
            for src_id, key, value in self.database.history[scn]
        ]
        return self.store.apply_window(scn, scn, events)

    @rule(count=st.integers(1, 5), overtakes=RARELY)
    def evict(self, count: int, overtakes: bool) -> None:
        last_scn = self.database.scn if overtakes else self.store.position().scn
        held = [scn for scn in self.database.history if self.evicted_scn < scn <= last_scn]
        self.evicted_scn = [self.evicted_scn, *held[:count]][-1]

    @rule(changes=CHANGES, more=CHANGES, is_seeded=st.booleans())
    def overtake(
        self,
        changes: list[RowWrite],
        more: list[RowWrite],
        is_seeded: bool,
    ) -> None:
        """Let the relay lose changes that the producer has not seen."""
        self.database.commit(1, changes)
        self.database.commit(1, more)
        self.evicted_scn = self.database.scn
        if is_seeded:
            self.fill([])

    # The seeder

    @rule(source=SOURCES, behind=st.integers(0, 2), kill=RARELY)
    def seed(self, source: str, behind: int = 0, kill: bool = False) -> None:
        """Merge what was read, and do what comes next."""
        if self.store.position().scn < 0:
            self.produce(1)
        state = self.store.source(source)
        if state.status is SourceStatus.NEW and self.store.position().scn >= 0:
            scn = max(state.log_floor_scn, self.database.scn - behind)
            self.store.begin_seeding(source, scn, 5)
            self.read[source], self.resume[source] = [], 0
        elif state.status is SourceStatus.SEEDING and state.seed_until_scn < 0:
            self.store.merge_chunk(source, self.read[source], str(self.resume[source]))
        if self.resume.get(source, 0) < len(KEYS[state.src_id]):
            self.read_chunk(source)
        else:
            self.end_seeding(source, kill)

    def read_chunk(self, source: str) -> None:
        """Read rows as they are now; they are merged later."""
        state = self.store.source(source)
        rows = self.database.tables[state.src_id]
        keys = KEYS[state.src_id][self.resume.get(source, 0) :][:CHUNK_ROWS]
        self.read[source] = [
            stored(state.src_id, key, state.seed_scn, rows[key]) for key in keys if key in rows
        ]
        self.resume[source] = self.resume.get(source, 0) + CHUNK_ROWS

    def end_seeding(self, source: str, is_killed: bool) -> None:
        state = self.store.source(source)
        if state.status is not SourceStatus.SEEDING:
            return
        until_scn = state.seed_until_scn if state.seed_until_scn >= 0 else self.database.scn
        effect = _Killed if is_killed else None
        with (
            patch.object(store_module, "_LEFTOVER_ROWS", 1),
            patch("time.sleep", side_effect=effect),
        ):
            try:
                self.store.end_seeding(source, until_scn)
            except _Killed:
                self.reopen()
                return
        self.store.activate_caught_up()

    @rule(source=SOURCES, is_wanted=RARELY)
    def reset(self, source: str, is_wanted: bool) -> None:
        if is_wanted and self.store.source(source).status is not SourceStatus.FELL_OFF_RELAY:
            self.store.reset_source(source)

    # Time, kills, housekeeping

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule(hours=st.integers(0, 3), log_bytes=st.sampled_from([1 << 30, 1 << 30, 600]))
    def retain(self, hours: int, log_bytes: int) -> None:
        self.now_s += hours * HOUR_S
        before = {state.name: state for state in self.store.sources()}
        retention = Retention(self.store, _settings(log_bytes), self.now_ns)
        while retention.step():
            pass
        for state in self.store.sources():
            if state.status in (SourceStatus.SEEDING, SourceStatus.SEEDING_CATCH_UP):
                floor_scn = max(state.seed_scn, before[state.name].log_floor_scn)
                assert state.log_floor_scn <= floor_scn
                assert state.tombstone_floor_scn == before[state.name].tombstone_floor_scn

    @invariant()
    def served_rows_are_the_sources(self) -> None:
        scn = self.store.position().scn
        for state in filter(is_active, self.store.sources()):
            page = self.store.snapshot_page(state.name, needed_rows(0, scn, 0, None), 1 << 30)
            rows = {row.key: row_of(decode(row.event)[0])["name"] for row in page.rows}
            assert rows == self.database.at(scn)[state.src_id]

    # Consumers

    @rule(behind=st.integers(0, 12), wanted=st.sampled_from(FILTERS), is_bypassed=st.booleans())
    def start_consumer(self, behind: int, wanted: EventFilter, is_bypassed: bool) -> None:
        since_scn = max(self.database.scn - behind, self.begin_scn) if behind <= 9 else 0
        tables: Tables = self.database.at(since_scn) if since_scn else {1: {}, 2: {}}
        held = {
            src_id: {key: value for key, value in rows.items() if wanted.matches(key)}
            for src_id, rows in tables.items()
        }
        consumer = Consumer(since_scn, held, wanted)
        states = self.store.sources()
        position_scn = self.store.position().scn
        if position_scn < since_scn or not all(map(is_active, states)):
            return
        floor_scn = max(max(s.floor_scn, s.log_floor_scn) for s in states)
        consumer.start_scn = position_scn
        if is_bypassed and since_scn >= max(floor_scn, 1):
            consumer.start_scn = since_scn
            consumer.left = []
        elif any(refuses_start(s, since_scn, position_scn) for s in states):
            return
        consumer.place = (consumer.start_scn, WHOLE_WINDOW)
        self.consumers.append(consumer)

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 3), pages=st.integers(1, 6))
    def read_pages(self, number: int, pages: int) -> None:
        consumer = self.consumers[number % len(self.consumers)]
        for _ in range(pages):
            if not self.read_page(consumer):
                self.consumers.remove(consumer)
                return

    def read_page(self, consumer: Consumer) -> bool:
        """Read one page; False when the consumer is done, or refused."""
        states = self.store.sources()
        if not all(map(is_active, states)):
            return False
        if consumer.left:
            return self.read_snapshot(consumer, self.store.source(consumer.left[0]))
        if consumer.target_scn < 0:
            consumer.target_scn = self.store.position().scn
            assert consumer.target_scn >= consumer.start_scn
        scn, index = consumer.place
        needed = scn if index == WHOLE_WINDOW else scn - 1
        if any(needed < s.log_floor_scn for s in states):
            return False
        page = self.store.log_page(
            LogRange(
                [1, 2],
                consumer.place,
                consumer.target_scn,
                dict.fromkeys((1, 2), consumer.wanted),
            ),
            500,
        )
        assert page.rows or page.is_last
        for row in page.rows:
            assert scn < row.scn <= consumer.target_scn or (
                row.scn == scn and row.row_index > index
            )
            consumer.take(row.src_id, row.key, row.event)
        consumer.place = page.last
        if page.is_last:
            self.finish(consumer)
        return not page.is_last

    def read_snapshot(self, consumer: Consumer, state: SourceState) -> bool:
        if refuses_start(state, consumer.since_scn, consumer.start_scn):
            return False
        page = self.store.snapshot_page(
            state.name,
            needed_rows(consumer.since_scn, consumer.start_scn, consumer.after_id, consumer.wanted),
            PAGE_BYTES,
        )
        for row in page.rows:
            assert row.id > consumer.after_id
            assert consumer.since_scn < row.scn <= consumer.start_scn
            assert not (row.is_deleted and not consumer.since_scn)
            consumer.take(state.src_id, row.key, row.event)
        consumer.after_id = page.last_id
        if page.is_last:
            consumer.after_id = 0
            consumer.left.pop(0)
        return True

    def finish(self, consumer: Consumer) -> None:
        self.finished += 1
        expected = {
            src_id: {key: value for key, value in rows.items() if consumer.wanted.matches(key)}
            for src_id, rows in self.database.at(consumer.target_scn).items()
        }
        assert consumer.rows == expected

    @rule(between=st.lists(CHANGES, max_size=10), is_anew=st.booleans())
    def fill(self, between: list[list[RowWrite]], is_anew: bool = False) -> None:
        """Let the producer and the seeder get to the end, while the source goes on."""
        for source in SRC_IDS:
            self.reset(source, is_anew)
        for step in range(12):
            self.database.commit(1, between[step] if step < len(between) else [])
            self.produce(100)
            for source in SRC_IDS:
                self.seed(source)
        self.produce(100)
        assert all(map(is_active, self.store.sources())), self.store.sources()

    def do_all(self) -> None:
        """Let everybody get to the end."""
        self.fill([])
        for consumer in list(self.consumers):
            while self.read_page(consumer):
                pass
            self.consumers.remove(consumer)


def is_active(state: SourceState) -> bool:
    return state.status is SourceStatus.ACTIVE


def refuses_start(state: SourceState, since_scn: int, start_scn: int) -> bool:
    if start_scn < max(state.floor_scn, state.log_floor_scn):
        return True
    if state.hole_begin_scn < since_scn < state.hole_end_scn:
        return True
    return 0 < since_scn < state.tombstone_floor_scn


def _settings(log_bytes: int) -> BootstrapSettings:
    made = build_settings(
        {
            "data_dir": "/nowhere",
            "relays": ("http://127.0.0.1:1",),
            "physical_sources": (
                {"name": "shop", "uri": "sqlite:/x", "sources": ("shop.person",)},
            ),
            "log_retention_s": 5 * HOUR_S,
            "deleted_retention_s": 2 * HOUR_S,
        },
        BootstrapSettings,
    )
    return made.model_copy(update={"log_retention_bytes": log_bytes})


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
