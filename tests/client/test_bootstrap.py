"""The way to a bootstrap server and back, from end to end, on real ports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from databus.client.checkpoints.store import MemoryCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent, Op, Result
from databus.client.puller.buffer_items import Phase
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import (
    BootstrapTooYoungError,
    SchemaNotFoundError,
    ScnNotFoundError,
    SettingsError,
)
from databus.schemas.event.event import Event
from databus.schemas.filters import ModFilter
from tests import PATIENCE_S
from tests.client.fake_bootstrap import FakeBootstrap, drop, refuse, too_old, too_young
from tests.client.fake_relay import FakeRelay
from tests.client.shop import (
    CUSTOMERS,
    ORDERS,
    WIDER_ORDERS,
    change,
    customer,
    order,
    registered,
    shop_bindings,
    wait_until,
)

SOURCES = ["shop.orders", "shop.customers"]
QUICK: dict[str, Any] = {
    "wait_ms": 500,
    "back_off": {"first_s": 0.001, "max_s": 0.01},
    "checkpoint_every_s": 0,
}


def deleted(scn: int, number: int) -> Event:
    return change(scn, {"id": number, "item": "gone"}, op=Op.DELETE)


# Orders 1 to 4 and customers 1 to 3; order 2 is deleted, customer 1 renamed.
HISTORY: list[list[Event]] = [
    [order(1, 1), order(1, 2)],
    [customer(2, 1), customer(2, 2)],
    [order(3, 3, "milk"), customer(3, 3, "Cleo")],
    [deleted(4, 2)],
    [customer(5, 1, "Anna"), order(5, 4), order(5, 1, "tea twice")],
]
LATER: list[list[Event]] = [
    [order(6, 5), order(6, 3, "no milk"), customer(6, 2, "Ben")],
    [deleted(7, 4), customer(7, 4, "Dora")],
    [order(8, 6)],
]
LAST = [order(9, 9)]  # no bootstrap server has it
ALL = [*HISTORY, *LATER, LAST]


class Copy(Consumer):
    """A copy of the tables, made as the documents say."""

    def __init__(self, rows: dict[tuple[str, Any], Any] | None = None) -> None:
        self.rows: dict[tuple[str, Any], Any] = {} if rows is None else rows
        self.calls: list[Any] = []
        self.checkpoints = 0
        self.stop_at: int | None = None  # fail for good at this page or window
        self.error: BaseException | None = None

    def on_start_bootstrap(self) -> None:
        self.calls.append("start")

    def on_stop_bootstrap(self) -> None:
        self.calls.append("stop")

    def on_start_bootstrap_sequence(self, scn: int) -> None:
        self.calls.append(("page", scn))

    def on_data_event(self, event: DataEvent) -> None:
        key = (event.source, event.wire_key)
        if event.is_delete:
            self.rows.pop(key, None)
        else:
            self.rows[key] = event.row

    def on_checkpoint(self, scn: int) -> Result | None:
        if self.checkpoints == self.stop_at:
            return Result.ERROR_FATAL
        self.checkpoints += 1
        self.calls.append(("done", scn))
        return None

    def on_bootstrap_rollback(self, scn: int) -> None:
        self.calls.append(("rollback", scn))
        if scn == -1:
            self.rows.clear()

    def on_error(self, error: BaseException) -> None:
        self.error = error


def copy_of(windows: Sequence[Sequence[Event]]) -> dict[tuple[str, Any], Any]:
    """Return the rows as they stand after these windows."""
    names = {40: "shop.orders", 41: "shop.customers"}
    bindings = shop_bindings()
    rows: dict[tuple[str, Any], Any] = {}
    for event in (event for window in windows for event in window):
        key = (names[event.src_id], event.key)
        rows.pop(key, None)
        if event.opcode != 2:
            codec = bindings[event.src_id].codecs[event.schema_id]
            rows[key] = codec.decode(event.value)
    return rows


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    """A relay that holds nothing before window 6."""
    with FakeRelay([*LATER, LAST]) as fake:
        fake.oldest_gone = 5
        yield fake


@pytest.fixture
def server() -> Iterator[FakeBootstrap]:
    with FakeBootstrap(HISTORY, page_events=2) as fake:
        yield fake


def make_client(
    relay: FakeRelay, *servers: FakeBootstrap, start: str = "beginning", **options: Any
) -> DatabusClient:
    urls = [server.url for server in servers]
    return DatabusClient([relay.url], start=start, bootstrap_servers=urls, **(QUICK | options))


def growing(server: FakeBootstrap) -> Callable[[], None]:
    """Return what lets the server learn of one more of the later windows."""
    later = iter(LATER)

    def grow() -> None:
        if (window := next(later, None)) is not None:
            server.windows.append(window)

    return grow


def consume(client: DatabusClient, copy: Copy, upto: int = 9) -> None:
    """Run the client until window `upto` has been consumed, or something needs somebody."""
    client.register(copy, SOURCES)
    with client:
        wait_until(lambda: ("done", upto) in copy.calls or client.error)


@pytest.mark.parametrize("bootstrap_order", ["linear", "classic"])
def test_a_client_from_nothing_ends_with_the_rows_of_the_source(
    relay: FakeRelay, server: FakeBootstrap, bootstrap_order: str
) -> None:
    copy = Copy()
    consume(make_client(relay, server, bootstrap_order=bootstrap_order), copy)
    assert copy.rows == copy_of(ALL)
    assert copy.error is None
    assert (copy.calls.count("start"), copy.calls.count("stop")) == (1, 1)
    after_stop = copy.calls[copy.calls.index("stop") + 1 :]
    assert after_stop == [("done", scn) for scn in (6, 7, 8, 9)]


@pytest.mark.parametrize("bootstrap_order", ["linear", "classic"])
def test_changes_made_during_the_bootstrap_are_caught_up(
    relay: FakeRelay, server: FakeBootstrap, bootstrap_order: str
) -> None:
    server.on_page = growing(server)
    copy = Copy()
    consume(make_client(relay, server, bootstrap_order=bootstrap_order), copy)
    assert copy.rows == copy_of(ALL)
    phases = [page.mode for page in server.pages()]
    assert ConsumptionMode.CATCHUP in phases


@pytest.mark.parametrize("bootstrap_order", ["linear", "classic"])
def test_a_bootstrap_goes_on_after_a_restart_at_any_page(
    relay: FakeRelay, tmp_path: Path, bootstrap_order: str
) -> None:
    stop_at = 0
    while True:
        with FakeBootstrap(HISTORY, page_events=2) as server:
            server.on_page = growing(server)
            options: dict[str, Any] = {
                "checkpoint_dir": tmp_path / str(stop_at),
                "bootstrap_order": bootstrap_order,
                "callback_retries": 0,
            }
            first = Copy()
            first.stop_at = stop_at
            consume(make_client(relay, server, **options), first)
            if first.error is None:
                assert stop_at > 8, "every page was the last one once"
                return
            before = len(relay.streams())
            second = Copy(first.rows)
            is_in_bootstrap = "start" in first.calls and "stop" not in first.calls
            consume(make_client(relay, server, **options), second)
            assert second.error is None
            assert second.rows == copy_of(ALL)
            assert ("start" in second.calls) == is_in_bootstrap
            asked = [Checkpoint.from_json(s["checkPoint"]) for s in relay.streams()[before:]]
            assert all(checkpoint.window_scn > 0 for checkpoint in asked)
            # It went on, and did not begin anew, once the start SCN had been kept.
            starts = [path for path, _ in server.requests].count("/startSCN")
            assert starts == (1 if stop_at else 2)
        stop_at += 1


class Remembering(MemoryCheckpoints):
    """Remembers every checkpoint saved."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[Checkpoint] = []

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        self.saved.append(Checkpoint.from_json(checkpoint.to_json()))
        super().save(name, sources, checkpoint)


def test_checkpoints_are_written_in_the_order_of_the_protocol(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    store, copy = Remembering(), Copy()
    # However seldom they are written, each phase's first one is.
    consume(make_client(relay, server, checkpoints=store, checkpoint_every_s=1000), copy)
    modes = [checkpoint.mode for checkpoint in store.saved]
    assert list(dict.fromkeys(modes)) == [
        ConsumptionMode.SNAPSHOT,
        ConsumptionMode.CATCHUP,
        ConsumptionMode.ONLINE,
    ]
    first, second = store.saved[:2]
    assert (first.bootstrap_since_scn, first.bootstrap_start_scn) == (0, -1)
    # Before any row: a new start SCN would miss the rows deleted in between.
    assert (second.bootstrap_start_scn, second.snapshot_offset) == (5, 0)
    assert second.extra["bootstrap_store_id"] == "one"
    online = next(c for c in store.saved if c.mode is ConsumptionMode.ONLINE)
    assert (online.window_scn, online.prev_scn, online.extra) == (5, 5, {})


def test_a_client_that_fell_behind_is_told_of_deletes_too(relay: FakeRelay) -> None:
    with FakeBootstrap([*HISTORY, *LATER[:2]], page_events=2) as server:
        relay.oldest_gone = 6
        copy = Copy(copy_of(HISTORY[:3]))
        consume(make_client(relay, server, start="3"), copy)
        assert copy.rows == copy_of(ALL)
        assert server.pages()[0].bootstrap_since_scn == 3


def test_the_source_is_begun_from_the_beginning_without_a_bootstrap_while_the_relay_has_it_all(
    server: FakeBootstrap,
) -> None:
    with FakeRelay(ALL) as relay:
        copy = Copy()
        consume(make_client(relay, server), copy)
        assert copy.rows == copy_of(ALL)
        assert not server.requests


def test_without_bootstrap_servers_the_client_stops_with_the_scns(relay: FakeRelay) -> None:
    copy = Copy()
    consume(make_client(relay), copy)
    assert isinstance(copy.error, ScnNotFoundError)
    assert "bootstrap_servers" in str(copy.error)


def test_a_server_that_is_not_as_far_yet_is_waited_for(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    server.acts["/startSCN"].extend([too_old("shop.orders is being seeded: 40 %")] * 3)
    copy = Copy()
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)
    assert [path for path, _ in server.requests].count("/startSCN") == 4


def test_waiting_for_a_server_is_shown_as_what_it_says(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    server.acts["/startSCN"].extend([too_old("shop.orders is being seeded: 40 %")] * 100_000)
    client = make_client(relay, server)
    client.register(Copy(), SOURCES)
    with client:
        wait_until(lambda: "40 %" in str(client.status()[0].problem))


def test_when_no_server_reaches_back_the_client_stops_with_the_servers_text(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    with FakeBootstrap(HISTORY) as other:
        for one in (server, other):
            one.acts["/startSCN"].extend([too_young("deleted rows are known from 4 on")] * 9)
        copy = Copy()
        consume(make_client(relay, server, other), copy)
        assert isinstance(copy.error, BootstrapTooYoungError)
        assert "deleted rows are known from 4 on" in str(copy.error)
        for one in (server, other):
            assert [path for path, _ in one.requests].count("/startSCN") == 1


def test_another_server_that_reaches_back_is_taken(relay: FakeRelay, server: FakeBootstrap) -> None:
    with FakeBootstrap(HISTORY) as other:
        other.acts["/startSCN"].extend([too_young("no")] * 9)
        copy = Copy()
        consume(make_client(relay, other, server), copy)
        assert copy.rows == copy_of(ALL)


def test_a_server_that_forgets_its_rows_makes_the_bootstrap_begin_anew(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    def forget(handler: Any) -> None:
        server.store = "two"
        handler.bootstrap({k: v[-1].decode() for k, v in handler.request.arguments.items()})

    pages = 0

    def after_two() -> None:
        nonlocal pages
        pages += 1
        if pages == 2:
            server.acts["/bootstrap"].append(forget)

    server.on_page = after_two
    copy = Copy()
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)
    assert copy.calls.count("start") == 1
    assert copy.calls.count(("rollback", -1)) == 1


def test_a_bootstrap_that_never_ends_stops_the_client(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    server.acts["/bootstrap"].extend([too_young("seeded again")] * 99)
    copy = Copy()
    consume(make_client(relay, server), copy)
    assert "seeded again" in str(copy.error)


def test_a_snapshot_waits_for_its_server_and_is_begun_anew_on_another(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    with FakeBootstrap(HISTORY, page_events=1, store="two") as other:
        copy = Copy()
        for one, another in ((server, other), (other, server)):
            # Whichever is taken first: after two pages it is dead.
            def die(one: FakeBootstrap = one, another: FakeBootstrap = another) -> None:
                if len(one.pages()) == 2 and not another.pages():
                    one.acts["/register"].extend([drop] * 99)
                    one.acts["/bootstrap"].extend([drop] * 99)

            one.on_page = die
        consume(make_client(relay, server, other), copy)
        assert copy.rows == copy_of(ALL)
        assert copy.calls.count(("rollback", -1)) == 1
        dead = next(one for one in (server, other) if one.acts["/register"])
        assert [p for p, _ in dead.requests].count("/register") >= 3


def test_a_catch_up_goes_on_at_another_server(relay: FakeRelay, server: FakeBootstrap) -> None:
    with FakeBootstrap(HISTORY, page_events=2, store="two") as other:
        both = (server, other)

        def grow_and_die(one: FakeBootstrap) -> None:
            if done:
                return
            if len(one.windows) < 8:
                for each in both:
                    each.windows = HISTORY + LATER
            elif any(p.mode is ConsumptionMode.CATCHUP for p in one.pages()):
                one.acts["/bootstrap"].extend([drop] * 99)

        done: list[bool] = []
        for one in both:
            one.on_page = partial(grow_and_die, one)
        copy = Copy()
        client = make_client(relay, server, other)
        client.register(copy, SOURCES)
        with client:
            wait_until(lambda: any(one.acts["/bootstrap"] for one in both))
            done.append(True)
            wait_until(lambda: ("done", 9) in copy.calls or client.error)
        assert copy.rows == copy_of(ALL)
        assert not [call for call in copy.calls if call[0] == "rollback"]
        starts = [path for one in both for path, _ in one.requests if path == "/startSCN"]
        assert len(starts) == 1


def test_a_relay_that_has_moved_on_meanwhile_is_bootstrapped_over_again(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    def overtake() -> None:
        if len(server.pages()) == 3:
            relay.oldest_gone = 7
            server.windows.extend(LATER[:2])

    server.on_page = overtake
    copy = Copy()
    # The target is asked for before the server knows of it.
    server.acts["/targetSCN"].append(lambda handler: handler.write('"5"'))
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)
    assert {page.bootstrap_since_scn for page in server.pages()} == {0, 5}
    assert (copy.calls.count("start"), copy.calls.count("stop")) == (2, 2)


def test_a_schema_that_only_the_bootstrap_server_has_is_asked_of_it(relay: FakeRelay) -> None:
    wide = change(3, {"id": 3, "item": "x", "note": "old"}, WIDER_ORDERS)
    with FakeBootstrap([*HISTORY[:2], [wide]]) as server:
        relay.oldest_gone = 3
        server.schemas = list(registered(ORDERS, CUSTOMERS))

        def learn(handler: Any) -> None:
            server.schemas = list(registered(ORDERS, CUSTOMERS, WIDER_ORDERS))
            handler.bootstrap({k: v[-1].decode() for k, v in handler.request.arguments.items()})

        server.acts["/bootstrap"].append(learn)
        copy = Copy()
        consume(make_client(relay, server), copy)
        assert copy.rows["shop.orders", 3] == {"id": 3, "item": "no milk"}
        assert [path for path, _ in server.requests].count("/register") == 2


def test_a_schema_that_nobody_has_stops_the_client(relay: FakeRelay) -> None:
    wide = change(3, {"id": 3, "item": "x", "note": "old"}, WIDER_ORDERS)
    with FakeBootstrap([*HISTORY[:2], [wide]]) as server:
        copy = Copy()
        consume(make_client(relay, server), copy)
        assert isinstance(copy.error, SchemaNotFoundError)
        assert [path for path, _ in server.requests].count("/register") == 2


def test_a_server_that_has_no_register_is_read_with_the_relays_schemas(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    server.knows_register = False
    copy = Copy()
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)


def test_an_event_larger_than_a_page_is_fetched_all_the_same(relay: FakeRelay) -> None:
    with FakeBootstrap([[order(1, 1, "x" * 50_000)], [order(2, 2)]]) as server:
        relay.oldest_gone = 2
        copy = Copy()
        consume(make_client(relay, server, fetch_bytes=2048), copy)
        assert len(copy.rows["shop.orders", 1]["item"]) == 50_000
        sizes = [int(p["batchSize"]) for path, p in server.requests if path == "/bootstrap"]
        assert max(sizes) > 50_000
        assert sizes[-1] == 2048


def test_an_event_larger_than_may_be_held_names_the_setting(relay: FakeRelay) -> None:
    with FakeBootstrap([[order(1, 1, "x" * 50_000)]]) as server:
        copy = Copy()
        consume(make_client(relay, server, fetch_bytes=2048, max_window_bytes=4096), copy)
        assert isinstance(copy.error, SettingsError)
        assert "max_window_bytes" in str(copy.error)


def test_requests_say_what_the_protocol_wants(relay: FakeRelay, server: FakeBootstrap) -> None:
    copy = Copy()
    client = make_client(relay, server, fetch_bytes=4096)
    client.register(copy, SOURCES, filters={"shop.orders": ModFilter(2, 1, 2)})
    with client:
        wait_until(lambda: ("done", 9) in copy.calls)
    assert {key[1] for key in copy.rows if key[0] == "shop.orders"} == {1, 3, 5, 9}
    by_path = dict(server.requests[::-1])
    assert by_path["/startSCN"]["sources"] == "shop.orders,shop.customers"
    assert by_path["/targetSCN"] == {"source": "shop.customers"}
    first, *_, last = [p for path, p in server.requests if path == "/bootstrap"]
    assert (first["sources"], first["output"], first["maxev"]) == ("40", "binary", "2")
    assert (first["batchSize"], "MOD" in first["filter"]) == ("4096", True)
    assert (last["sources"], "filter" in last) == ("41", False)


@pytest.mark.parametrize("damage", [b"\x02\xca\xfe", b"not events at all"])
def test_damage_is_not_handed_over_and_the_page_is_read_again(
    relay: FakeRelay, server: FakeBootstrap, damage: bytes
) -> None:
    server.acts["/bootstrap"].extend([lambda handler: handler.write(damage)] * 2)
    copy = Copy()
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)


def test_an_empty_answer_is_not_the_end_of_anything(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    server.acts["/bootstrap"].append(lambda handler: handler.set_header("PhaseCompleted", "TRUE"))
    copy = Copy()
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)


def test_a_page_that_fails_is_rolled_back_and_comes_again(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    class Failing(Copy):
        failures = 2

        def on_bootstrap_event(self, event: DataEvent) -> None:
            if event.wire_key == 3 and self.failures:
                self.failures -= 1
                raise OSError("disk full")
            self.on_data_event(event)

    copy = Failing()
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)
    # To where the page began: what is checkpointed does not come again.
    assert [call for call in copy.calls if call[0] == "rollback"] == [("rollback", 5)] * 2


def test_a_slow_consumer_stops_the_reading_of_pages(relay: FakeRelay) -> None:
    rows = [[order(n, n, "x" * 200)] for n in range(1, 200)]
    with FakeBootstrap(rows) as server:
        relay.oldest_gone = 199
        relay.windows = [[order(200, 200)]]
        go_on = threading.Event()

        class Slow(Copy):
            def on_bootstrap_event(self, event: DataEvent) -> None:
                assert go_on.wait(PATIENCE_S)
                self.on_data_event(event)

        copy = Slow()
        client = make_client(relay, server, fetch_bytes=2048, buffer_bytes=8192)
        client.register(copy, ["shop.orders"])
        with client:
            wait_until(lambda: client.status()[0].buffered_bytes > 8192 - 2048)
            assert client.status()[0].buffered_bytes <= 8192
            go_on.set()
            wait_until(lambda: ("done", 200) in copy.calls)
        assert len(copy.rows) == 200


def test_a_loop_is_given_pages_with_their_phase(relay: FakeRelay, server: FakeBootstrap) -> None:
    server.on_page = lambda: server.windows.append(LATER[0]) if len(server.windows) == 5 else None
    seen = []
    with make_client(relay, server) as client:
        for window in client.windows(*SOURCES):
            seen.append((window.phase, window.scn, window.begins_bootstrap))
            if window.scn == 9:
                break
    assert seen[0] == (Phase.SNAPSHOT, 5, True)
    assert not any(begins for _, _, begins in seen[1:])
    assert [phase for phase, *_ in seen if phase is not Phase.SNAPSHOT] == [
        Phase.CATCH_UP,
        Phase.CATCH_UP,
        Phase.LIVE,
        Phase.LIVE,
        Phase.LIVE,
    ]


def test_a_loop_in_asyncio_is_given_pages_too(
    relay: FakeRelay, server: FakeBootstrap, tmp_path: Path
) -> None:
    async def follow(client: DatabusClient, until: Phase) -> list[Phase]:
        seen = []
        windows = client.windows_async(*SOURCES)
        async for window in windows:
            seen.append(window.phase)
            if window.phase is until:
                await windows.aclose()
        return seen

    with make_client(relay, server, checkpoint_dir=tmp_path) as client:
        assert set(asyncio.run(follow(client, Phase.LIVE))) == {Phase.SNAPSHOT, Phase.LIVE}


def test_a_checkpoint_in_a_bootstrap_is_no_use_without_a_bootstrap_server(
    relay: FakeRelay, server: FakeBootstrap, tmp_path: Path
) -> None:
    first = Copy()
    first.stop_at = 2
    options: dict[str, Any] = {"checkpoint_dir": tmp_path, "callback_retries": 0}
    consume(make_client(relay, server, **options), first)
    second = Copy()
    consume(make_client(relay, **options), second)
    assert isinstance(second.error, SettingsError)
    assert "bootstrap_servers" in str(second.error)


def test_reading_that_failed_in_a_bootstrap_goes_on_where_it_was(
    relay: FakeRelay, server: FakeBootstrap
) -> None:
    def refuse_from_now_on() -> None:
        if len(server.pages()) == 2:
            server.acts["/bootstrap"].extend([too_young("seeded again")] * 99)
            server.acts["/startSCN"].extend([too_young("not now")] * 99)

    server.on_page = refuse_from_now_on
    copy = Copy()
    client = make_client(relay, server)
    client.register(copy, SOURCES)
    with client:
        wait_until(lambda: client.error)
        server.acts.clear()
        server.on_page = lambda: None
        client.resume()
        wait_until(lambda: ("done", 9) in copy.calls)
    assert copy.rows == copy_of(ALL)
    assert copy.calls.count("start") == 1


def test_seeded_rows_say_that_they_are_a_snapshot(relay: FakeRelay) -> None:
    seeded = change(5, {"id": 1, "item": "x"}, op=Op.SNAPSHOT)
    with FakeBootstrap([[seeded]]) as server:
        seen = []
        client = make_client(relay, server)

        @client.on("shop.orders")
        def look(event: DataEvent) -> None:
            seen.append((event.wire_key, event.op))

        with client:
            wait_until(lambda: (6, Op.INSERT) in seen)
        assert seen[0] == (1, Op.SNAPSHOT)


@pytest.mark.parametrize("path", ["/register", "/startSCN", "/targetSCN", "/bootstrap"])
def test_a_bootstrap_server_that_says_that_a_point_is_gone_is_asked_again(
    relay: FakeRelay, server: FakeBootstrap, path: str
) -> None:
    server.acts[path].append(refuse("ScnNotFoundException", "oldest held is 5", 404))
    copy = Copy()
    consume(make_client(relay, server), copy)
    assert copy.rows == copy_of(ALL)
