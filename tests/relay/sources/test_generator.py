"""The generator says the same for the same seed, at the rate it is told."""

from __future__ import annotations

from itertools import pairwise
from threading import Event

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.generator import GeneratorSource
from databus.relay.sources.kind import open_source
from databus.relay.sources.source import Transaction
from databus.schemas.avro_rows import RowCodec
from databus.schemas.errors import SettingsError
from databus.schemas.event.keys import event_key
from databus.schemas.event.metadata import Op
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema
from databus.schemas.windows import EmptyWindow


class Clock:
    """A clock that stands until it is moved; waiting moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Waiter(Event):
    """An event whose wait moves the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self.clock.now += timeout or 0
        return self.is_set()


def settings(uri: str, start: str = "latest") -> PhysicalSourceSettings:
    return PhysicalSourceSettings(name="made", uri=uri, sources=("a.one", "a.two"), start=start)


def generator(uri: str = "generator:?rate=0", clock: Clock | None = None) -> GeneratorSource:
    clock = clock or Clock()
    return GeneratorSource(settings(uri), lambda: 7, clock, Waiter(clock))


def first(source: GeneratorSource, count: int, after_scn: int | None = None) -> list[Transaction]:
    source.open(after_scn)
    found: list[Transaction] = []
    while len(found) < count:
        found += source.read_transactions()
    source.close()
    return found[:count]


def test_the_same_seed_gives_the_same_transactions() -> None:
    assert first(generator(), 50) == first(generator(), 50)


def test_another_seed_gives_others() -> None:
    assert first(generator(), 5) != first(generator("generator:?rate=0&seed=2"), 5)


@pytest.mark.parametrize("scn", [1, 7, 40])
def test_a_restart_goes_on_with_the_next_scn_and_the_same_content(scn: int) -> None:
    assert first(generator(), 20, after_scn=scn) == first(generator(), 20 + scn)[scn:]


def test_the_scn_is_the_number_of_the_transaction() -> None:
    assert [t.scn for t in first(generator(), 300)] == list(range(1, 301))


def test_rows_fit_their_schema_and_come_back_as_they_were() -> None:
    codecs: dict[Table, RowCodec] = {}
    for transaction in first(generator(), 200):
        for change in transaction.changes:
            codec = codecs.setdefault(change.table, RowCodec(avro_schema(change.table)))
            assert codec.decode(codec.encode(change.row)) == change.row
    assert {table.source for table in codecs} == {"a.one", "a.two"}


def test_updates_and_deletes_are_of_rows_as_they_were_left() -> None:
    held: dict[tuple[str, int | bytes], object] = {}
    seen = set()
    for transaction in first(generator(), 400):
        for change in transaction.changes:
            key = (change.table.source, event_key(change.table, change.row))
            seen.add(change.op)
            assert (key in held) == (change.op is not Op.INSERT)
            if change.op is Op.UPDATE:
                assert held[key] == change.before
            if change.op is Op.DELETE:
                assert held.pop(key) == change.row
            else:
                held[key] = change.row
    assert seen == {Op.INSERT, Op.UPDATE, Op.DELETE}


def test_transactions_come_at_the_rate_set() -> None:
    clock = Clock()
    source = generator("generator:?rate=10", clock)
    source.open(None)
    assert source.read_transactions()[0].scn == 1
    assert clock.now == pytest.approx(100.1, abs=0.01)
    clock.now += 2
    assert [t.scn for t in source.read_transactions()] == list(range(2, 22))


def test_a_slow_rate_does_not_keep_read_from_coming_back() -> None:
    clock = Clock()
    source = generator("generator:?rate=0.1", clock)
    source.open(None)
    assert source.read_transactions() == []
    assert clock.now == pytest.approx(100.5)


def test_most_rows_and_tables_are_as_set() -> None:
    found = first(generator("generator:?rate=0&rows=1&tables=1"), 30)
    inserts = [[c for c in t.changes if c.op is Op.INSERT] for t in found]
    assert {len(changes) for changes in inserts} == {1}
    assert {c.table.source for t in found for c in t.changes} == {"a.one"}
    assert all(a.scn + 1 == b.scn for a, b in pairwise(found))


def test_a_first_start_begins_after_the_scn_of_the_settings() -> None:
    source = open_source(settings("generator:?rate=0", start="41"))
    source.open(None)
    first, *_ = source.read()
    assert isinstance(first, EmptyWindow)  # without an encoder, windows have no rows
    assert first.scn == 42
    source.close()


@pytest.mark.parametrize(
    ("uri", "start", "says"),
    [
        ("generator:?rate=fast", "latest", "rate = 'fast': must be a number"),
        ("generator:?rows=0", "latest", "rows = '0'"),
        ("generator:?tables=3", "latest", "tables = '3'"),
        ("generator:?speed=3", "latest", "'speed' is not a parameter"),
        ("generator:", "gtid:1-1-1", "start = 'gtid:1-1-1'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(uri: str, start: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        open_source(settings(uri, start))
