"""The producer: what a relay has is in the store, each window once, whatever happens."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbits
from typing import Any
from unittest.mock import patch

import pytest

from databus.bootstrap.producer.producer import Producer, WindowWriter
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import SourceStatus, Store
from databus.bootstrap.store.values import WHOLE_WINDOW
from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.client.machines.states import Lifecycle
from databus.client.subscription import RegisteredSchema
from databus.demo.processes import Child, python_module
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import BootstrapError
from databus.schemas.event.control import ddl_event
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import Op
from databus.schemas.event.v2 import decode, encode
from databus.schemas.stream.row_event import row_event
from databus.schemas.table import Table
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S
from tests.bootstrap.producer.child import settings_for
from tests.client.fake_relay import FakeRelay, status
from tests.client.shop import (
    CUSTOMERS,
    ORDERS,
    ORDERS_ID,
    SCHEMAS,
    SRC_IDS,
    WIDER_ORDERS,
    change,
    customer,
    order,
    orders,
    registered,
    shop_bindings,
    wait_until,
)
from tests.promises.running import RunningRelay, Shop, running, wait_until as wait_long

BOTH = ("shop.orders", "shop.customers")


@contextmanager
def producing(path: Path, *relays: str, sources: tuple[str, ...] = BOTH) -> Iterator[Producer]:
    producer = Producer(*settings_for(path, *relays, sources=sources), path)
    producer.start()
    try:
        yield producer
    finally:
        assert producer.stop(PATIENCE_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay() as made:
        yield made


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    with closing(Store.open(path)) as store:
        yield store


def is_another_paused(client: DatabusClient | None, known: DatabusClient) -> bool:
    """Say whether a client was made anew, and rests."""
    return client is not None and client is not known and client.state is Lifecycle.PAUSED


def at(store: Store, scn: int) -> None:
    wait_until(lambda: store.position().scn == scn)


def log_of(store: Store, *src_ids: int) -> list[bytes]:
    log_range = LogRange(src_ids or [40, 41], (0, WHOLE_WINDOW), 1 << 40, {})
    page = store.log_page(log_range, 1 << 30)
    assert page.is_last
    return [row.event for row in page.rows]


def rows_of(store: Store, source: str = "shop.orders") -> dict[Any, dict[str, Any]]:
    page = store.snapshot_page(source, needed_rows(0, 1 << 62, 0, None), 1 << 30)
    texts = {schema_id(text): text for _, _, text in store.schemas(SRC_IDS.values())}
    events = [decode(row.event)[0] for row in page.rows]
    return {event.key: row_codec(texts[event.schema_id]).decode(event.value) for event in events}


def test_the_store_has_each_event_as_the_relay_sent_it(path: Path, relay: FakeRelay) -> None:
    byte_key = order(9)._replace(key=b"\xff,1")
    deleted = change(8, {"id": 1, "item": "tea"}, op=Op.DELETE)
    sent = [[order(7, 1), customer(7, 1), order(7, 2)], [deleted], [byte_key]]
    relay.windows = sent
    with producing(path, relay.url) as producer, opened(path) as store:
        at(store, 9)
        assert log_of(store) == [encode(event) for window in sent for event in window]
        assert set(rows_of(store)) == {2, b"\xff,1"}
        assert set(rows_of(store, "shop.customers")) == {1}
        assert store.position().timestamp_ns == byte_key.timestamp_ns
        wait_until(lambda: producer.status().windows == 3)
        status = producer.status()
        assert (status.scn, status.events, status.server) == (9, 5, relay.url)
        assert producer.is_healthy
        assert producer.problem == ""
    assert not producer.status().is_running


def test_sources_and_schemas_are_there_before_any_event(path: Path, relay: FakeRelay) -> None:
    with producing(path, relay.url), opened(path) as store:
        wait_until(lambda: len(store.schemas([40, 41])) == 2)
        found = {state.name: (state.src_id, state.status) for state in store.sources()}
        assert found == {name: (src_id, SourceStatus.NEW) for name, src_id in SRC_IDS.items()}
        assert store.position().scn == -1


def test_a_schema_that_comes_later_is_there_with_its_first_event(
    path: Path, relay: FakeRelay
) -> None:
    relay.windows = orders([7])
    with producing(path, relay.url), opened(path) as store:
        at(store, 7)
        relay.schemas = list(registered(ORDERS, CUSTOMERS, WIDER_ORDERS))
        relay.append([change(8, {"id": 5, "item": "x", "note": "wide"}, WIDER_ORDERS)])
        at(store, 8)
        assert rows_of(store)[5]["note"] == "wide"
        texts = [text for _, _, text in store.schemas([ORDERS_ID])]
        assert texts == [SCHEMAS[ORDERS], SCHEMAS[WIDER_ORDERS]]


BY_ITEM = replace(
    ORDERS,
    columns=tuple(
        replace(column, key_position=0 if column.name == "item" else None)
        for column in ORDERS.columns
    ),
)


@pytest.mark.parametrize(
    "altered", [BY_ITEM, replace(ORDERS, table="shop.other")], ids=["key", "table"]
)
def test_a_source_whose_rows_have_another_key_or_table_now_is_seeded_anew(
    path: Path, relay: FakeRelay, altered: Table
) -> None:
    relay.windows = orders([5])
    with producing(path, relay.url), opened(path) as store:
        at(store, 5)
        for source in BOTH:
            store.begin_seeding(source, 5, 0)
            store.end_seeding(source, 5)
        assert store.activate_caught_up() == [*sorted(BOTH)]
        texts = (
            *registered(ORDERS, CUSTOMERS),
            RegisteredSchema(ORDERS_ID, 2, avro_schema(altered)),
        )
        relay.schemas = list(texts)
        relay.append([change(8, {"id": 5, "item": "x"}, altered)])
        at(store, 8)
        assert store.source("shop.orders").status is SourceStatus.NEW
        assert store.source("shop.customers").status is SourceStatus.ACTIVE


def test_ddl_events_do_no_harm_and_are_not_kept(path: Path, relay: FakeRelay) -> None:
    ddl = ddl_event(8, 1008, 0, ["shop.orders"], "shop", "ALTER TABLE orders ADD x INT")
    relay.windows = [[order(7, 1)], [ddl], [order(9, 2), ddl._replace(scn=9), order(9, 3)]]
    with producing(path, relay.url) as producer, opened(path) as store:
        at(store, 9)
        assert set(rows_of(store)) == {1, 2, 3}
        assert len(log_of(store)) == 3
        assert producer.is_healthy


def test_windows_of_other_tables_move_the_position(path: Path, relay: FakeRelay) -> None:
    relay.windows = [[customer(scn)] for scn in range(5, 50)]
    with producing(path, relay.url, sources=("shop.orders",)), opened(path) as store:
        at(store, 49)
        assert store.source("shop.orders").log_floor_scn == 4
        assert log_of(store, ORDERS_ID) == []


def test_it_goes_on_where_it_ended(path: Path, relay: FakeRelay) -> None:
    relay.windows = orders(range(5, 20))
    with producing(path, relay.url), opened(path) as store:
        at(store, 19)
    relay.append(*orders(range(20, 30)))
    with producing(path, relay.url), opened(path) as store:
        at(store, 29)
        assert len(log_of(store)) == 25
        assert store.source("shop.orders").log_floor_scn == 4


def test_it_proves_its_place_when_it_goes_on(path: Path, relay: FakeRelay) -> None:
    """By a window of a table that the store does not keep, if there is none of its own."""
    relay.windows = [[order(5)], *([customer(scn)] for scn in (6, 7, 8))]
    relay.log_window = "8,1008,shop.customers"
    with producing(path, relay.url, sources=BOTH[:1]), opened(path) as store:
        wait_until(lambda: store.log_window() == (8, 1008, "shop.customers"))
        assert (store.position().scn, store.mark()) == (8, (5, 1005))
    asked = len(relay.streams())
    with producing(path, relay.url, sources=BOTH[:1]):
        wait_until(lambda: len(relay.streams()) > asked)
        checkpoint = Checkpoint.from_json(relay.streams()[asked]["checkPoint"])
    assert checkpoint.log_window == (8, 1008, "shop.customers")
    assert checkpoint.mark == (5, 1005)


def test_only_a_newer_window_of_the_log_is_written(path: Path) -> None:
    with opened(path) as store:
        store.add_sources(SRC_IDS)
        writer = WindowWriter(store)
        at_6 = Checkpoint.at(6, 1006)
        writer.save("", BOTH, at_6.with_log_window((6, 1006, "shop.other")))
        assert (store.position(), store.log_window()) == ((6, 1006), (6, 1006, "shop.other"))
        with patch.object(Store, "prove", side_effect=AssertionError("a write for nothing")):
            writer.save("", BOTH, at_6.with_log_window((6, 1006, "shop.other")))
            writer.save("", BOTH, at_6.with_log_window((5, 1005, "shop.other")))
            writer.save("", BOTH, Checkpoint.at(7, 1007))
            again = WindowWriter(store)
            loaded = again.load("", BOTH)
            assert loaded is not None
            assert (loaded.window_scn, loaded.log_window) == (7, (6, 1006, "shop.other"))
            again.save("", BOTH, loaded)
        again.save("", BOTH, loaded.with_log_window((7, 1007, "shop.more")))
        assert store.log_window() == (7, 1007, "shop.more")


def test_a_log_that_begins_anew_is_not_held_to_the_one_before(path: Path, relay: FakeRelay) -> None:
    relay.windows = [[customer(scn)] for scn in (6, 7, 8)]
    relay.log_window = "8,1008,shop.customers"
    with producing(path, relay.url, sources=BOTH[:1]), opened(path) as store:
        wait_until(lambda: store.log_window() == (8, 1008, "shop.customers"))
    relay.windows, relay.oldest_gone, relay.log_window = orders([50, 51]), 49, ""
    with producing(path, relay.url, sources=BOTH[:1]), opened(path) as store:
        at(store, 51)
        assert store.log_window() == (51, 1051, "shop.orders")


def test_a_seeded_source_is_served_when_the_log_is_as_far(path: Path, relay: FakeRelay) -> None:
    relay.windows = orders([5])
    with producing(path, relay.url), opened(path) as store:
        at(store, 5)
        store.begin_seeding("shop.orders", 5, 0)
        store.end_seeding("shop.orders", 6)
        relay.append([customer(7)])
        wait_until(lambda: store.source("shop.orders").status is SourceStatus.ACTIVE)


def test_falling_off_the_relay_is_noted_and_the_reading_begins_anew(
    path: Path, relay: FakeRelay
) -> None:
    relay.windows = orders([5, 6])
    with producing(path, relay.url), opened(path) as store:
        at(store, 6)
        store.begin_seeding("shop.orders", 6, 0)
        store.end_seeding("shop.orders", 6)
        store.activate_caught_up()
    relay.windows = orders([50, 51])
    relay.oldest_gone = 49
    with producing(path, relay.url) as producer, opened(path) as store:
        at(store, 51)
        assert "after scn 6; the oldest held was 50" in producer.status().fell_off
        state = store.source("shop.orders")
        assert (state.status, state.log_floor_scn, state.floor_scn) == ("new", 49, -1)
        assert "no relay holds what follows scn 6" in state.problem
        assert len(log_of(store)) == 2
        assert set(rows_of(store)) == {600, 5000, 5100}  # the seeding will find out


def test_a_source_that_the_relay_has_only_now_costs_the_others_nothing(
    path: Path, relay: FakeRelay
) -> None:
    relay.windows = orders([5, 6])
    with producing(path, relay.url, sources=BOTH[:1]), opened(path) as store:
        at(store, 6)
        store.begin_seeding("shop.orders", 6, 0)
        store.end_seeding("shop.orders", 6)
        store.activate_caught_up()
    relay.windows += [*orders([7, 8]), [order(9), customer(9, 9)]]
    relay.first_scns = {41: 8}
    with producing(path, relay.url) as producer, opened(path) as store:
        at(store, 9)
        assert producer.status().fell_off == producer.problem == ""
        assert len(log_of(store)) == 6
        assert (store.source("shop.orders").status, store.source("shop.orders").floor_scn) == (
            SourceStatus.ACTIVE,
            6,
        )
        # It is seeded as of its first SCN or later: before that its log has a gap.
        new = store.source("shop.customers")
        assert (new.status, new.log_floor_scn >= 8) == (SourceStatus.NEW, True)


def test_a_seeded_source_that_the_relay_did_not_have_for_a_time_is_seeded_anew(
    path: Path, relay: FakeRelay
) -> None:
    relay.windows = orders([5, 6])
    with producing(path, relay.url), opened(path) as store:
        at(store, 6)
        for name in BOTH:
            store.begin_seeding(name, 6, 0)
            store.end_seeding(name, 6)
        store.activate_caught_up()
    relay.windows += orders([7, 8, 9])
    relay.first_scns = {41: 8}
    with producing(path, relay.url) as producer, opened(path) as store:
        at(store, 9)
        assert "after scn 6; the oldest held was 9" in producer.status().fell_off
        assert store.source("shop.customers").status is SourceStatus.NEW


def test_a_relay_that_is_down_is_a_problem_until_it_is_up(path: Path) -> None:
    with FakeRelay() as relay:
        relay.windows = orders([5])
        url, port = relay.url, int(relay.url.rsplit(":", 1)[1])
        with producing(path, url), opened(path) as store:
            at(store, 5)
    with producing(path, url) as producer:
        wait_until(lambda: producer.problem)
        assert not producer.is_healthy
        with FakeRelay(orders([5, 6]), port=port) as relay, opened(path) as store:
            at(store, 6)
            wait_until(lambda: producer.is_healthy)


def test_a_relay_that_refuses_is_named(path: Path, relay: FakeRelay) -> None:
    relay.script.extend([status(500, "SomethingException", "it does not work")] * 100_000)
    with producing(path, relay.url) as producer:
        wait_until(lambda: "it does not work" in producer.problem)
        relay.script.clear()
        wait_until(lambda: producer.is_healthy)


def test_a_window_that_cannot_be_written_is_tried_again(
    path: Path, relay: FakeRelay, caplog: pytest.LogCaptureFixture
) -> None:
    relay.windows = orders(range(5, 9), per_window=3)
    failing = [BootstrapError("store shop.db: the disk is full: make room")] * 3
    real = Store.apply_window

    def apply(self: Store, scn: int, *rest: Any) -> bool:
        if scn == 7 and failing:
            raise failing.pop()
        return real(self, scn, *rest)

    with patch.object(Store, "apply_window", apply), producing(path, relay.url) as producer:
        with opened(path) as store:
            at(store, 8)
            assert len(log_of(store)) == 12
        assert not failing
        wait_until(lambda: producer.is_healthy)
    said = [
        r.getMessage() for r in caplog.records if r.name == "databus.bootstrap.producer.producer"
    ]
    assert len([text for text in said if text.endswith("make room; trying again")]) == 1


def test_a_window_that_fails_in_an_unknown_way_is_named(path: Path, relay: FakeRelay) -> None:
    relay.windows = orders([5])
    with (
        patch.object(Store, "apply_window", side_effect=ValueError("odd")),
        producing(path, relay.url) as producer,
    ):
        wait_until(lambda: "window 5" in producer.problem)
        assert "odd" in producer.problem


def test_a_full_disk_is_one_line_of_the_log_and_no_traceback(
    path: Path, relay: FakeRelay, caplog: pytest.LogCaptureFixture
) -> None:
    full = BootstrapError("store shop.db: the disk is full: make room")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    relay.windows = orders([5])
    settings, physical = settings_for(path, relay.url, sources=BOTH)
    producer = Producer(settings.model_copy(update={"retention_every_s": 0.1}), physical, path)
    try:
        with (
            patch.object(Store, "apply_window", side_effect=full),
            patch.object(Retention, "step", side_effect=full),
        ):
            producer.start()
            wait_until(lambda: "make room; trying again" in caplog.text)
            wait_until(lambda: "deleting old data failed: store shop.db" in caplog.text)
    finally:
        assert producer.stop(PATIENCE_S)
    assert "Traceback" not in caplog.text


def test_a_retention_that_fails_without_a_word_is_a_problem_all_the_same(
    path: Path, relay: FakeRelay
) -> None:
    settings, physical = settings_for(path, relay.url, sources=BOTH)
    settings = settings.model_copy(update={"retention_every_s": 0.1})
    producer = Producer(settings, physical, path)
    try:
        with patch.object(Retention, "step", side_effect=RuntimeError()):
            producer.start()
            wait_until(lambda: producer.status().problem == "RuntimeError()")
        # And one no longer, once a later round has gone well.
        wait_until(lambda: producer.is_healthy)
    finally:
        assert producer.stop(PATIENCE_S)


def test_a_producer_that_has_not_begun_has_applied_nothing(path: Path, relay: FakeRelay) -> None:
    status = Producer(*settings_for(path, relay.url, sources=BOTH), path).status()
    assert (status.windows, status.events, status.is_running) == (0, 0, False)


def test_a_source_that_is_seeded_anew_because_of_a_statement_is_logged_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as store:
        store.add_sources(SRC_IDS)
        writer = WindowWriter(store)
        for scn in (5, 6):
            if scn == 5:
                store.notes.append(("shop.orders", 5, "altered: its rows are read again"))
            writer.on_end_data_event_sequence(scn)
    said = [r.getMessage() for r in caplog.records if "read again" in r.getMessage()]
    assert said == ["shop.orders: altered: its rows are read again"]


def test_a_source_that_is_seeded_anew_because_of_a_schema_is_logged(
    path: Path, relay: FakeRelay, caplog: pytest.LogCaptureFixture
) -> None:
    relay.windows = orders([7, 8, 9])
    with producing(path, relay.url), opened(path) as store:
        at(store, 9)
    with opened(path) as store:
        store.begin_seeding("shop.orders", 7, 1)
    # Of a statement that was passed with a relay that did not tell of it.
    change_at_8 = TableChange.unknown(8, shape_id(SCHEMAS[ORDERS]))
    altered = RegisteredSchema(ORDERS_ID, 2, with_change(SCHEMAS[WIDER_ORDERS], change_at_8))
    relay.schemas = [*registered(ORDERS, CUSTOMERS), altered]
    with producing(path, relay.url):
        wait_until(lambda: "shop.orders: altered at scn 8 while it was seeded" in caplog.text)


def test_a_window_that_is_rolled_back_or_applied_leaves_nothing_to_the_next(path: Path) -> None:
    with opened(path) as store:
        store.add_sources(SRC_IDS)
        writer = WindowWriter(store)
        applied: list[int] = []

        def apply(_self: Store, scn: int, _ns: int, events: Any, _window: Any) -> bool:
            applied.append(len(events))
            return True

        event = DataEvent(row_event(order(5)), shop_bindings()[ORDERS_ID], 0)
        with patch.object(Store, "apply_window", apply):
            writer.on_data_event(event)
            writer.on_rollback(5)
            writer.on_data_event(event)
            writer.on_end_data_event_sequence(5)
            writer.on_data_event(event)
            writer.on_end_data_event_sequence(6)
        assert applied == [1, 1]


def test_what_is_wrong_with_the_store_is_said(path: Path, relay: FakeRelay) -> None:
    path.write_bytes(b"this is no database" * 300)
    with producing(path, relay.url) as producer:
        wait_until(lambda: "the file is damaged: move it away" in producer.problem)
        assert not producer.is_healthy
        path.unlink()
        wait_until(lambda: producer.is_healthy)


def test_a_source_that_has_another_id_now_is_a_problem(path: Path, relay: FakeRelay) -> None:
    relay.windows = orders([5])
    with producing(path, relay.url), opened(path) as store:
        at(store, 5)
    relay.sources = {**SRC_IDS, "shop.orders": 77}
    relay.schemas = [s._replace(src_id=77 if s.src_id == 40 else 41) for s in relay.schemas]
    with producing(path, relay.url) as producer:
        wait_until(lambda: "has src_id 40 here" in producer.problem)


def test_what_is_too_old_is_deleted_in_the_background(path: Path, relay: FakeRelay) -> None:
    relay.windows = orders(range(5, 50))
    settings, physical = settings_for(path, relay.url, sources=BOTH)
    quick = {"retention_every_s": 0.1, "log_retention_s": 0.01}
    producer = Producer(settings.model_copy(update=quick), physical)
    producer.start()
    try:
        wait_until(path.exists)
        with opened(path) as store:
            at(store, 49)
            wait_until(lambda: store.source("shop.orders").log_floor_scn == 49)
            assert len(rows_of(store)) == 45
    finally:
        assert producer.stop(PATIENCE_S)


def test_one_round_of_deletion_takes_all_its_steps(path: Path, relay: FakeRelay) -> None:
    rounds: list[int] = []

    class ThreeSteps:
        def __init__(self, *_: object) -> None:
            rounds.append(0)

        def step(self) -> bool:
            rounds[-1] += 1
            return rounds[-1] < 3

    settings, physical = settings_for(path, relay.url, sources=BOTH)
    producer = Producer(settings.model_copy(update={"retention_every_s": 0.1}), physical)
    with patch("databus.bootstrap.producer.producer.Retention", ThreeSteps):
        producer.start()
        try:
            wait_until(lambda: len(rounds) > 2)
        finally:
            assert producer.stop(PATIENCE_S)
    assert rounds[:2] == [3, 3]


def test_a_paused_producer_stays_paused_when_its_client_is_made_anew(
    path: Path, relay: FakeRelay
) -> None:
    relay.windows = orders(range(5, 9))
    real = Store.apply_window
    clients: list[Any] = []

    def apply(self: Store, scn: int, *rest: Any) -> bool:
        if scn == 7 and not clients:
            clients.append(producer._client)
            producer.pause()
            raise BootstrapError("store shop.db: the disk is full: make room")
        return real(self, scn, *rest)

    producer = Producer(*settings_for(path, relay.url, sources=BOTH), path)
    with patch.object(Store, "apply_window", apply):
        producer.start()
        try:
            wait_until(lambda: bool(clients) and is_another_paused(producer._client, clients[0]))
            with opened(path) as store:
                assert store.position().scn == 6
                assert producer.is_paused
                producer.resume()
                wait_until(lambda: not producer.is_paused)
                at(store, 8)
        finally:
            assert producer.stop(PATIENCE_S)


def test_stopping_one_that_never_began_is_no_error(path: Path) -> None:
    producer = Producer(*settings_for(path, "http://127.0.0.1:9"), path)
    assert producer.stop(1)
    assert not producer.is_healthy


# Killed


def write_some(shop: Shop, random: Random, count: int) -> None:
    """Make so many transactions of inserts, updates and deletes."""
    for _ in range(count):
        with shop.transaction():
            for _ in range(random.randint(1, 4)):
                number, note = random.randint(1, 60), f"{random.getrandbits(40):x}"
                statement = random.choice(
                    (
                        "INSERT OR REPLACE INTO orders VALUES (?1, ?2)",
                        "UPDATE orders SET note = ?2 WHERE id = ?1",
                        "DELETE FROM orders WHERE id = ?1 AND ?2 != ''",
                    )
                )
                shop.connection.execute(statement, (number, note))


def test_killed_at_any_moment_the_store_has_each_window_once(tmp_path: Path) -> None:
    seed = randbits(32)
    print("seed", seed)
    random = Random(seed)
    path = tmp_path / "store" / "shop.db"
    with (
        closing(Shop(tmp_path / "shop.sqlite")) as shop,
        running(RunningRelay(tmp_path, shop.settings())) as relay,
    ):
        relay.start()
        arguments = python_module("tests.bootstrap.producer.child", path, relay.url, "shop.orders")
        child = Child("producer", arguments, tmp_path)
        try:
            for _ in range(6):
                child.start()
                wait_long(path.exists, "the store", child.log_tail)
                before = position_in(path)
                write_some(shop, random, 60)
                wait_long(partial(is_beyond, path, before), "a window", child.log_tail)
                write_some(shop, random, random.randint(0, 60))
                child.kill()
            child.start()
            newest = relay.max_scn()
            relay.wait_for_scn(newest)
            wait_long(lambda: position_in(path) >= relay.max_scn(), "the end", child.log_tail)
        finally:
            child.kill()
        sent = relay.windows()
        with opened(path) as store:
            (src_id,) = [state.src_id for state in store.sources()]
            found: dict[int, bytes] = {}
            for event in log_of(store, src_id):
                scn = decode(event)[0].scn
                found[scn] = found.get(scn, b"") + event
            expected = {scn: b"".join(rows_in(body)) for scn, body in sent.items()}
            assert found == {scn: body for scn, body in expected.items() if body}
            page = store.snapshot_page("shop.orders", needed_rows(0, 1 << 62, 0, None), 1 << 30)
            texts = {schema_id(text): text for _, _, text in store.schemas([src_id])}
            rows = {}
            for row in page.rows:
                event_read, _ = decode(row.event)
                rows[row.key] = row_codec(texts[event_read.schema_id]).decode(event_read.value)
            assert rows == shop.rows()


def rows_in(body: bytes) -> Iterator[bytes]:
    """Yield the bytes of a window's rows."""
    offset = 0
    while offset < len(body):
        event: Event
        event, end = decode(body, offset)
        if not event.is_control:
            yield body[offset:end]
        offset = end


def is_beyond(path: Path, scn: int) -> bool:
    return position_in(path) > scn


def position_in(path: Path) -> int:
    try:
        with closing(Store.open(path, is_read_only=True)) as store:
            return store.position().scn
    except (BootstrapError, sqlite3.Error):
        return -1
