"""Random transactions into SQL tables, in each order with lanes (T41 to T45)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from databus.client.dispatcher.data_window import DataWindow
from databus.client.sinks.contract import Position
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.running.feed import Feed, SinkState
from databus.client.sinks.running.plan import make_plan
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from databus.testing import Change, change, make_window
from tests import PATIENCE_S
from tests.client.shop import wait_until
from tests.client.sinks.changes import ListedStream
from tests.client.sinks.ready.sql.conftest import NewTarget
from tests.client.sinks.ready.sql.targets import DIALECTS, Target

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

TABLES = ("a", "b", "c")
Rows = dict[str, dict[int, str]]
ORDERS: dict[str, dict[str, Any]] = {
    "transaction": {},
    "single-table": {"lanes": 3},
    "table": {"lanes": 3},
    "row": {"lanes": 4},
    "writeset": {"lanes": 4, "order": "row", "unique": "writeset"},
    "compact": {"flush": {"rows": 50, "compact": True}},
}


class Model:
    """The source: tables of `id` and `v`, which is unique in a transaction's end."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rows: Rows = {name: {} for name in TABLES}
        self.number = 0

    def transaction(self, scn: int) -> DataWindow:
        made = [one for _ in range(self.rng.randint(1, 6)) for one in self._some()]
        return make_window(*made, scn=scn)

    def _some(self) -> list[Change]:
        name = self.rng.choice(TABLES)
        rows, source, key = self.rows[name], f"shop.{name}", self.rng.randrange(30)
        chance = self.rng.random()
        if chance < 0.01:
            rows.clear()
            return [change(source, {}, "truncate")]
        if key not in rows:
            rows[key] = self._value()
            return [change(source, {"id": key, "v": rows[key]})]
        if chance < 0.2:
            return [change(source, {"id": key, "v": rows.pop(key)}, "delete")]
        if chance < 0.35 and (new := self.rng.randrange(30)) not in rows:
            return self._write(name, key, new, rows[key])
        if chance < 0.5 and (other := self.rng.choice(list(rows))) != key:
            # A swap of unique values by a third one, as MySQL has it.
            mine, theirs = rows[key], rows[other]
            steps = ((key, self._value()), (other, mine), (key, theirs))
            return [one for at, value in steps for one in self._write(name, at, at, value)]
        return self._write(name, key, key, self._value())

    def _write(self, name: str, old: int, new: int, value: str) -> list[Change]:
        before = {"id": old, "v": self.rows[name].pop(old)}
        self.rows[name][new] = value
        return [change(f"shop.{name}", {"id": new, "v": value}, "update", before=before)]

    def _value(self) -> str:
        self.number += 1
        return f"value {self.number}"


def feed_of(target: Target, stream: ListedStream, until: int, **settings: Any) -> Feed:
    options = {**target.options, "exactly_once": settings.get("lanes", 1) == 1}
    given: dict[str, Any] = {
        "name": "copy", "kind": "sql", "sources": ("shop.*",), "until": until,
        "options": options, "positions_every_s": 0, "flush": {"rows": 20, "seconds": 0.01},
        "failures": {"back_off": {"first_s": 0.01, "factor": 1}}, **settings,
    }  # fmt: skip
    made = build_settings(given, SinkSettings)
    return Feed(make_plan(made, sink_maker("sql", options)), stream)


def run(target: Target, stream: ListedStream, until: int, **settings: Any) -> None:
    feed = feed_of(target, stream, until, **settings)
    feed.start()
    try:
        assert feed.wait(PATIENCE_S), feed.status
        assert feed.state is SinkState.DONE, feed.status
    finally:
        feed.stop()


@pytest.mark.parametrize("order", ORDERS)
def test_random_transactions_end_as_the_source(target: Target, order: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    model = Model(seed)
    if order == "writeset":
        for name in TABLES:
            target.run(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, v VARCHAR(40) UNIQUE)")
    settings = {"order": order if order in ("single-table", "table", "row") else "transaction"}
    stream = ListedStream(
        *(model.transaction(scn) for scn in range(1, 121)),
        sources=[f"shop.{name}" for name in TABLES],
    )
    for until in (40, 80, 120):
        run(target, stream, until, **(settings | ORDERS[order]))
        if order != "transaction":
            # As after a crash: some transactions come again.
            earlier = [scn for scn in stream.stored if scn <= until - 5]
            if earlier:
                stream.position = Position("shop", Checkpoint.at(earlier[-1]))
    for name, rows in model.rows.items():
        held = dict(target.table(name, "id", "v"))
        assert held == rows, name


def test_order_row_stops_for_a_table_with_a_second_unique_key(target: Target) -> None:
    target.run("CREATE TABLE a (id BIGINT PRIMARY KEY, v VARCHAR(40) UNIQUE)")
    stream = ListedStream(make_window(change("shop.a", {"id": 1, "v": "x"}), scn=1))
    feed = feed_of(target, stream, 1, order="row", lanes=2)
    feed.start()
    try:
        wait_until(lambda: feed.state is SinkState.STOPPED)
        assert isinstance(feed.error, SettingsError)
        assert "shop.a has another unique key (v)" in str(feed.error)
    finally:
        feed.stop()
    assert target.table("a") == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_row_that_a_database_refuses_is_the_dead_letter(
    new_target: NewTarget, dialect: str
) -> None:
    target = new_target(dialect)
    target.run("CREATE TABLE a (id BIGINT PRIMARY KEY, v VARCHAR(40) NOT NULL CHECK (v <> 'bad'))")
    values = ["x", "bad", "y"]
    windows = [
        make_window(change("shop.a", {"id": at, "v": value}), scn=at)
        for at, value in enumerate(values, 1)
    ]
    failures = {"refused": {"retries": 0, "then": "skip"}}
    run(target, ListedStream(*windows), 3, failures=failures)
    assert target.table("a") == [(1, "x"), (3, "y")]


def test_lanes_need_a_sink_that_keeps_no_position(target: Target) -> None:
    given = {"name": "c", "kind": "sql", "sources": ("shop.*",), "lanes": 2, "order": "row"}
    settings = build_settings({**given, "options": target.options}, SinkSettings)
    with pytest.raises(SettingsError, match="exactly_once = false"):
        make_plan(settings, sink_maker("sql", target.options))
