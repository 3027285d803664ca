"""The client from end to end, against a scripted relay on a real port."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import databus.client
from databus.client.checkpoints.store import FileCheckpoints, MemoryCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.impatient_client import ImpatientClient
from databus.client.machines.connection_messages import PageAnswered
from databus.client.machines.states import Lifecycle
from databus.client.monitoring.http import health_of
from databus.client.puller.buffer_items import BufferItem
from databus.client.puller.requests import Request, ServerRequests
from databus.client.puller.window_decoder import WindowDecoder
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    CheckpointError,
    ConsumerError,
    DatabusError,
    IncompatibleSchemaError,
    ScnNotFoundError,
    SettingsError,
    UnknownSourceError,
)
from databus.schemas.event.v2 import encode
from databus.schemas.filters import ModFilter
from tests import PATIENCE_S
from tests.client.fake_relay import (
    FakeRelay,
    StreamHandler,
    cut_after,
    not_found,
    not_http,
    raw_body,
    status,
)
from tests.client.shop import (
    ORDERS,
    SCHEMAS,
    WIDER_ORDERS,
    change,
    customer,
    order,
    orders,
    registered,
    wait_until,
    window,
)
from tests.full_disk import Disk, small_disk

QUICK: dict[str, Any] = {
    "wait_ms": 500,
    "back_off": {"first_s": 0.001, "max_s": 0.01},
    "checkpoint_every_s": 0,
}


class Keeper(Consumer):
    """Keeps what it is told, and says when there is something new."""

    def __init__(self) -> None:
        self.scns: list[int] = []
        self.keys: list[int | bytes] = []
        self.rows: list[dict[str, Any]] = []
        self.rollbacks: list[int] = []
        self.calls: list[str] = []

    def on_start_consumption(self) -> None:
        self.calls.append("start")

    def on_stop_consumption(self) -> None:
        self.calls.append("stop")

    def on_data_event(self, event: DataEvent) -> Result | None:
        self.keys.append(event.wire_key)
        self.rows.append(event.row)
        return None

    def on_end_data_event_sequence(self, scn: int) -> None:
        self.scns.append(scn)

    def on_rollback(self, scn: int) -> None:
        self.rollbacks.append(scn)

    def on_error(self, error: BaseException) -> None:
        self.calls.append(f"error {type(error).__name__}")


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay(orders(range(1, 6))) as fake:
        yield fake


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def make_client(*relays: FakeRelay, **options: Any) -> DatabusClient:
    return DatabusClient([r.url for r in relays], **(QUICK | options))


def consume(
    client: DatabusClient, keeper: Keeper, upto: int, sources: Sequence[str] = ("shop.orders",)
) -> None:
    """Run the client until the window `upto` has been consumed."""
    client.register(keeper, list(sources))
    with client:
        wait_until(lambda: upto in keeper.scns or client.error)
    assert client.error is None


def test_every_change_reaches_the_callback_in_order(relay: FakeRelay, keeper: Keeper) -> None:
    consume(make_client(relay), keeper, 5)
    assert keeper.scns == [1, 2, 3, 4, 5]
    assert keeper.rows[0] == {"id": 100, "item": "tea"}
    assert keeper.calls == ["start", "stop"]
    assert keeper.rollbacks == []


def test_changes_made_later_come_without_polling(relay: FakeRelay, keeper: Keeper) -> None:
    client = make_client(relay)
    client.register(keeper, ["shop.orders"])
    with client:
        wait_until(lambda: 5 in keeper.scns)
        relay.append(*orders([6]))
        wait_until(lambda: 6 in keeper.scns)
        assert relay.connections == 1, "one connection is kept for all requests"
    assert keeper.scns == [1, 2, 3, 4, 5, 6]


def test_requests_say_what_the_protocol_wants(relay: FakeRelay, keeper: Keeper) -> None:
    client = make_client(relay, fetch_bytes=4096, wait_ms=321)
    client.register(keeper, ["shop.orders"], filters={"shop.orders": ModFilter(2, 0, 2)})
    with client:
        wait_until(lambda: 5 in keeper.scns)
    first = relay.streams()[0]
    assert relay.paths()[:2] == ["/sources", "/register"]
    assert (first["sources"], first["size"], first["maxev"]) == ("40", "4096", "2")
    assert (first["wait"], first["follow"], first["output"]) == ("321", "true", "binary")
    assert Checkpoint.from_json(first["checkPoint"]).is_flexible
    assert json.loads(first["filters"])["40"]["partitionType"] == "MOD"


def test_server_side_filters_leave_out_what_they_say(relay: FakeRelay, keeper: Keeper) -> None:
    relay.append(*orders([6], per_window=4))
    client = make_client(relay)
    client.register(keeper, ["shop.orders"], filters={"shop.orders": ModFilter(2, 1, 2)})
    with client:
        wait_until(lambda: 6 in keeper.scns)
    assert keeper.keys == [601, 603]


def test_a_window_larger_than_size_arrives_whole(keeper: Keeper) -> None:
    with FakeRelay(orders([1, 2, 3], per_window=100)) as relay:
        consume(make_client(relay, fetch_bytes=2048), keeper, 3)
        assert len(relay.streams()) > 10
    assert keeper.scns == [1, 2, 3]
    assert keeper.keys == [s * 100 + n for s in (1, 2, 3) for n in range(100)]


@pytest.mark.parametrize("sources", [["shop.orders"], ["shop.orders", "shop.customers"]])
def test_a_window_larger_than_size_arrives_whole_from_a_relay_that_does_not_say_where_to_resume(
    keeper: Keeper, sources: list[str]
) -> None:
    mixed = [[e for n in range(50) for e in (customer(1, n), order(1, n))], [order(2, 7)]]
    with FakeRelay(mixed, says_where_to_resume=False) as relay:
        consume(make_client(relay, fetch_bytes=2048), keeper, 2, sources)
    expected = 50 * len(sources) + 1
    assert len(keeper.keys) == expected
    assert keeper.scns == [1, 2]


def test_an_event_larger_than_size_is_fetched_all_the_same(keeper: Keeper) -> None:
    with FakeRelay([[order(1)], [order(2, item="x" * 50_000)], [order(3)]]) as relay:
        consume(make_client(relay, fetch_bytes=2048), keeper, 3)
        sizes = [int(s["size"]) for s in relay.streams()]
    assert max(sizes) > 50_000
    assert len(keeper.rows[1]["item"]) == 50_000


def test_a_window_larger_than_may_be_held_stops_the_client_naming_the_setting(
    keeper: Keeper,
) -> None:
    with FakeRelay([[order(1)], *orders([2], per_window=200)]) as relay:
        client = make_client(relay, max_window_bytes=4096)
        client.register(keeper, ["shop.orders"])
        with pytest.raises(SettingsError, match="max_window_bytes"):
            client.run()


@pytest.mark.parametrize("place", [f"{1 << 62},-1", f"{1 << 62},7", "3,-5", "9" * 30 + ",-1", "x"])
def test_a_forged_place_to_go_on_at_holds_a_client_up_for_a_request(
    keeper: Keeper, tmp_path: Path, place: str
) -> None:
    with FakeRelay(orders([1, 2, 3])) as relay:
        relay.script.append(raw_body(b"", x_databus_resume=place))
        client = make_client(relay, checkpoint_dir=tmp_path, wait_ms=50)
        consume(client, keeper, 3)
        relay.append(*orders([4]))
        consume(make_client(relay, checkpoint_dir=tmp_path), keeper, 4)
    assert keeper.scns == [1, 2, 3, 4]


@pytest.mark.parametrize("bit", range(17 * 8, 21 * 8))  # where the event's length is
def test_a_flipped_bit_of_a_length_holds_a_client_up_for_a_request(
    keeper: Keeper, bit: int
) -> None:
    damaged = bytearray(encode(order(1)))
    damaged[bit // 8] ^= 0x80 >> bit % 8
    with FakeRelay(orders([1, 2, 3])) as relay:
        relay.script.append(raw_body(bytes(damaged)))
        consume(make_client(relay), keeper, 3)
    assert keeper.scns == [1, 2, 3]


def test_a_checkpoint_is_where_the_next_client_goes_on(relay: FakeRelay, tmp_path: Path) -> None:
    first, second = Keeper(), Keeper()
    consume(make_client(relay, checkpoint_dir=tmp_path), first, 5)
    relay.append(*orders([6, 7]))
    consume(make_client(relay, checkpoint_dir=tmp_path), second, 7)
    assert (first.scns, second.scns) == ([1, 2, 3, 4, 5], [6, 7])


def test_a_checkpoint_never_runs_ahead_of_what_was_consumed(
    relay: FakeRelay, tmp_path: Path
) -> None:
    store, seen = FileCheckpoints(tmp_path), []
    client = make_client(relay, checkpoints=store)

    @client.on("shop.orders")
    def look(event: DataEvent) -> None:
        kept = store.load("default", ["shop.orders"])
        seen.append((event.scn, -1 if kept is None else kept.window_scn))

    with client:
        wait_until(lambda: len(seen) == 5)
    assert seen == [(1, -1), (2, 1), (3, 2), (4, 3), (5, 4)]


def test_a_damaged_checkpoint_stops_the_start(relay: FakeRelay, tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path)
    store.path("default", ["shop.orders"]).write_text("damaged")
    client = make_client(relay, checkpoint_dir=tmp_path)
    client.register(Keeper(), ["shop.orders"])
    with pytest.raises(CheckpointError, match="cannot be read"):
        client.run()


def test_a_client_that_could_not_start_does_not_seem_to_run(
    relay: FakeRelay, tmp_path: Path
) -> None:
    store = FileCheckpoints(tmp_path)
    store.path("second", ["shop.orders"]).write_text("damaged")
    client = make_client(relay, checkpoint_dir=tmp_path)
    client.register(Keeper(), ["shop.orders"], name="first")
    client.register(Keeper(), ["shop.orders"], name="second")
    with pytest.raises(CheckpointError, match="cannot be read"):
        client.start()
    assert not client.is_healthy
    with pytest.raises(SettingsError, match="was stopped"):
        client.start()


def test_a_checkpoint_that_cannot_be_written_stops_the_client(
    relay: FakeRelay, tmp_path: Path, keeper: Keeper
) -> None:
    (tmp_path / "state").write_text("not a directory")
    store = FileCheckpoints(tmp_path / "state")
    client = make_client(relay, checkpoints=_Writing(store))
    client.register(keeper, ["shop.orders"])
    with pytest.raises(CheckpointError, match="cannot be written"):
        client.run()
    assert keeper.scns == [1]


@pytest.fixture(params=[errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM])
def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", monkeypatch, request.param) as disk:
        yield disk


def kept_in(disk: Disk) -> int:
    kept = FileCheckpoints(disk.folder).load("default", ["shop.orders"])
    return -1 if kept is None else kept.window_scn


def test_a_disk_that_cannot_be_written_under_the_checkpoints_is_waited_for_and_windows_go_on(
    relay: FakeRelay, keeper: Keeper, disk: Disk
) -> None:
    client = make_client(relay, checkpoint_dir=disk.folder)
    client.register(keeper, ["shop.orders"])
    client.on("shop.orders")(lambda event: disk.spoil() if event.scn == 2 else None)
    with client:
        wait_until(lambda: 5 in keeper.scns)
        wait_until(lambda: client.registrations[0].unsaved)
        assert kept_in(disk) == 1
        assert client.error is None
        assert disk.says in str(client.status()[0].problem)
        assert disk.says in client.report().registrations[0].problem
        health = health_of(client)
        assert (health.is_ok, health.word) == (False, "retrying")
        disk.mend()
        wait_until(lambda: kept_in(disk) == 5)
        wait_until(lambda: client.status()[0].problem is None)
        assert health_of(client).is_ok
    assert keeper.scns == [1, 2, 3, 4, 5]


def test_a_loop_over_windows_goes_on_over_a_disk_that_cannot_be_written(
    relay: FakeRelay, disk: Disk
) -> None:
    with make_client(relay, checkpoint_dir=disk.folder) as client:
        scns = []
        for one in client.windows("shop.orders"):
            scns.append(one.scn)
            if one.scn == 1:
                disk.spoil()
            if one.scn == 3:
                assert disk.says in client.registrations[0].unsaved
                disk.mend()
            if one.scn == 5:
                break
    assert scns == [1, 2, 3, 4, 5]
    assert kept_in(disk) == 4, "the window that the loop left is not consumed"


def test_an_asynchronous_loop_goes_on_over_a_disk_that_cannot_be_written(
    relay: FakeRelay, disk: Disk
) -> None:
    async def read(client: DatabusClient) -> list[int]:
        scns = []
        async for one in client.windows_async("shop.orders"):
            scns.append(one.scn)
            if one.scn == 1:
                disk.spoil()
            if one.scn == 5:
                break
        return scns

    with make_client(relay, checkpoint_dir=disk.folder) as client:
        assert asyncio.run(read(client)) == [1, 2, 3, 4, 5]
    assert kept_in(disk) == -1
    disk.mend()
    with make_client(relay, checkpoint_dir=disk.folder) as client:
        assert asyncio.run(read(client)) == [1, 2, 3, 4, 5], "nothing was kept: it comes again"


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start_that_says_what_to_do(
    relay: FakeRelay, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", monkeypatch, errno.EROFS) as disk:
        for _ in range(2):  # without a file in it, then with those of the first
            disk.spoil()
            client = make_client(relay, checkpoint_dir=disk.folder)
            client.register(keeper, ["shop.orders"])
            with pytest.raises(CheckpointError, match=r"make its folder writable.*checkpoint_dir"):
                client.run()
            disk.mend()
            with make_client(relay, checkpoint_dir=disk.folder) as allowed:
                allowed.register(keeper, ["shop.orders"])
                allowed.start()
                wait_until(lambda: kept_in(disk) == 5)


def test_a_store_that_fails_in_its_own_way_stops_the_client_until_it_is_resumed(
    relay: FakeRelay, keeper: Keeper
) -> None:
    broken = [OSError("the store is down")]

    class Store(MemoryCheckpoints):
        def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
            if broken:
                raise broken[0]
            super().save(name, sources, checkpoint)

    client = make_client(relay, checkpoints=Store())
    client.register(keeper, ["shop.orders"])
    with client:
        wait_until(lambda: client.error)
        assert "the store is down" in str(client.error)
        broken.clear()
        client.resume()
        wait_until(lambda: 5 in keeper.scns)
    assert keeper.scns == [1, 2, 3, 4, 5]


class _Writing(MemoryCheckpoints):
    """Loads from memory, writes to a store."""

    def __init__(self, store: FileCheckpoints) -> None:
        super().__init__()
        self._store = store

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        self._store.save(name, sources, checkpoint)


def test_a_failing_callback_is_rolled_back_and_its_window_replayed(
    relay: FakeRelay,
) -> None:
    class Shaky(Keeper):
        failures = 2

        def on_data_event(self, event: DataEvent) -> Result | None:
            super().on_data_event(event)
            if event.scn == 3 and self.failures:
                self.failures -= 1
                raise OSError("target is down")
            return None

    shaky = Shaky()
    consume(make_client(relay), shaky, 5)
    assert shaky.scns == [1, 2, 3, 4, 5]
    assert shaky.keys == [100, 200, 300, 300, 300, 400, 500]
    assert shaky.rollbacks == [2, 2]


def test_a_callback_that_keeps_failing_stops_the_client_with_its_position(
    relay: FakeRelay, tmp_path: Path
) -> None:
    class Broken(Keeper):
        def on_data_event(self, event: DataEvent) -> Result | None:
            return Result.ERROR if event.scn == 3 else super().on_data_event(event)

    broken = Broken()
    client = make_client(relay, callback_retries=1, checkpoint_dir=tmp_path)
    client.register(broken, ["shop.orders"])
    with pytest.raises(ConsumerError, match="window 3") as caught:
        client.run()
    assert caught.value.scn == 3
    assert broken.calls == ["start", "error ConsumerError", "stop"]
    kept = FileCheckpoints(tmp_path).load("default", ["shop.orders"])
    assert kept is not None
    assert kept.window_scn == 2


def test_after_an_error_the_client_can_be_resumed_where_it_was(relay: FakeRelay) -> None:
    class Fatal(Keeper):
        is_ready = False

        def on_data_event(self, event: DataEvent) -> Result | None:
            if event.scn == 3 and not self.is_ready:
                return Result.ERROR_FATAL
            return super().on_data_event(event)

    fatal = Fatal()
    client = make_client(relay)
    client.register(fatal, ["shop.orders"])
    with client:
        wait_until(lambda: client.state is Lifecycle.SUSPENDED)
        assert isinstance(client.error, ConsumerError)
        was_healthy = client.is_healthy
        fatal.is_ready = True
        client.resume()
        wait_until(lambda: 5 in fatal.scns)
        assert (was_healthy, client.is_healthy) == (False, True)
    assert fatal.scns == [1, 2, 3, 4, 5]
    assert fatal.rollbacks == [2]


def test_after_a_defect_within_a_window_that_window_is_read_from_its_beginning(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, breaks = WindowDecoder.receive, [True]

    def take_and_break(decoder: WindowDecoder, chunk: bytes) -> list[BufferItem]:
        items = take(decoder, chunk)
        if breaks and decoder.progress.half is not None:
            breaks.clear()
            raise RuntimeError("a defect")
        return items

    monkeypatch.setattr(WindowDecoder, "receive", take_and_break)
    events = [order(1, number) for number in range(3)]
    with FakeRelay([events]) as relay:
        relay.script.append(raw_body(b"".join(map(encode, events[:2]))))
        client = make_client(relay)
        client.register(keeper, ["shop.orders"])
        with client:
            wait_until(lambda: client.error)
            client.resume()
            wait_until(lambda: keeper.scns)
    assert keeper.keys == [0, 1, 2]


def test_resume_deals_with_an_error_of_the_reading_that_came_meanwhile(relay: FakeRelay) -> None:
    class Fatal(Keeper):
        is_ready = False

        def on_data_event(self, event: DataEvent) -> Result | None:
            return super().on_data_event(event) if self.is_ready else Result.ERROR_FATAL

    relay.script += [raw_body(window(1, order(1))), not_found(1, 6)]
    fatal, client = Fatal(), make_client(relay)
    client.register(fatal, ["shop.orders"])
    with client:
        wait_until(lambda: client.state is Lifecycle.SUSPENDED)
        wait_until(lambda: "gone" in (client.status()[0].problem or ""))
        fatal.is_ready = True
        client.resume()
        wait_until(lambda: 5 in fatal.scns)
        assert client.is_healthy
    assert fatal.scns == [1, 2, 3, 4, 5]
    assert fatal.calls == ["start", "error ConsumerError", "stop"]


def test_new_servers_are_taken_while_the_reading_waits_for_the_callbacks(keeper: Keeper) -> None:
    let_go = threading.Event()
    windows = orders(range(1, 100), item="x" * 200)
    with FakeRelay(windows) as relay, FakeRelay(windows) as other:
        client = make_client(relay, fetch_bytes=2048, buffer_bytes=4096)
        client.register(keeper, ["shop.orders"])

        @client.on("shop.orders", name="slow")
        def wait(_event: DataEvent) -> None:
            assert let_go.wait(PATIENCE_S)

        with client:
            # One waits for news, and one for room.
            wait_until(lambda: any('"windowScn":99' in s["checkPoint"] for s in relay.streams()))
            wait_until(lambda: max(s.buffered_bytes for s in client.status()) > 4096 - 2048)
            before = len(relay.streams())
            client.use_servers([other.url])
            wait_until(lambda: other.paths().count("/sources") == 2)
            assert len(relay.streams()) == before
            let_go.set()
            wait_until(lambda: all(status.scn == 99 for status in client.status()))


def test_a_stuck_callback_stops_the_client_after_its_budget(relay: FakeRelay) -> None:
    let_go = threading.Event()
    client = make_client(relay, callback_budget_s=0.05)

    @client.on("shop.orders")
    def hang(event: DataEvent) -> None:
        let_go.wait(PATIENCE_S)

    try:
        with client:
            wait_until(lambda: client.error)
            assert isinstance(client.error, ConsumerError)
            assert "has not returned" in str(client.error)
            assert "hang" in str(client.error)
            assert not client.is_healthy
            let_go.set()
    finally:
        let_go.set()


def test_several_consumers_of_one_registration_each_get_every_event(relay: FakeRelay) -> None:
    one, other = Keeper(), Keeper()
    client = make_client(relay)
    client.register(one, ["shop.orders"])
    client.register(other, ["shop.orders"])
    with client:
        wait_until(lambda: 5 in one.scns and 5 in other.scns)
        assert relay.connections == 1
    assert one.scns == other.scns == [1, 2, 3, 4, 5]


def test_registrations_of_two_names_read_each_for_itself(relay: FakeRelay) -> None:
    one, other = Keeper(), Keeper()
    client = make_client(relay)
    client.register(one, ["shop.orders"], name="one")
    client.start()
    wait_until(lambda: 5 in one.scns)
    client.register(other, ["shop.orders"], name="other")
    wait_until(lambda: 5 in other.scns)
    names = sorted(s.name for s in client.status())
    client.stop()
    assert names == ["one", "other"]


def test_a_slow_consumer_stops_the_reading_and_no_more_than_the_buffer_is_held() -> None:
    gate, capacity = threading.Event(), 64 << 10
    # The relay has fifty times as much as the buffer takes.
    with FakeRelay(orders(range(1, 600), item="x" * 5_000)) as relay:
        client = make_client(relay, buffer_bytes=capacity, fetch_bytes=32 << 10)
        keys = []

        @client.on("shop.orders")
        def wait(event: DataEvent) -> None:
            gate.wait(PATIENCE_S)
            keys.append(event.wire_key)

        with client:
            wait_until(lambda: client.status()[0].buffered_bytes > capacity // 2)
            asked, held = 0, []
            while asked != len(relay.streams()):  # until it asks no more
                asked = len(relay.streams())
                held.append(client.status()[0].buffered_bytes)
                threading.Event().wait(0.2)
            assert max(held) <= capacity
            assert asked < 10
            gate.set()
            wait_until(lambda: len(keys) == 599)
        assert keys == [s * 100 for s in range(1, 600)]


def test_when_a_relay_dies_the_client_goes_on_at_another_and_misses_nothing() -> None:
    keeper = Keeper()
    with FakeRelay(orders(range(1, 4))) as one, FakeRelay(orders(range(1, 4))) as other:
        client = make_client(one, other)
        client.register(keeper, ["shop.orders"])
        with client:
            wait_until(lambda: 3 in keeper.scns)
            here, there = (one, other) if client.status()[0].server == one.url else (other, one)
            here.stop()
            there.append(*orders([4, 5]))
            wait_until(lambda: 5 in keeper.scns)
            assert client.status()[0].server == there.url
    assert keeper.scns == [1, 2, 3, 4, 5]


def test_a_client_waits_for_a_relay_that_is_not_up_yet(keeper: Keeper) -> None:
    with FakeRelay() as finder:
        port = int(finder.url.rpartition(":")[2])
    client = DatabusClient([f"http://127.0.0.1:{port}"], **QUICK)
    client.register(keeper, ["shop.orders"])
    with client:
        wait_until(lambda: client.status()[0].problem)
        assert "cannot connect" in str(client.status()[0].problem)
        with FakeRelay(orders([1, 2]), port=port):
            wait_until(lambda: 2 in keeper.scns)


def test_a_relay_that_is_added_while_the_client_runs_is_used(keeper: Keeper) -> None:
    with FakeRelay(orders([1])) as one, FakeRelay(orders([1, 2])) as other:
        client = make_client(one)
        client.register(keeper, ["shop.orders"])
        with client:
            wait_until(lambda: 1 in keeper.scns)
            client.use_servers([other.url])
            wait_until(lambda: 2 in keeper.scns)
        assert keeper.scns == [1, 2]


HALF = window(6, order(6, 1)) + encode(order(7, 1))


@pytest.mark.parametrize(
    "act",
    [
        raw_body(b"this is no event at all, but more than long enough to be looked at" * 9),
        raw_body(window(6, order(6))[:-1]),
        raw_body(bytes([2]) + bytes(200)),
        cut_after(HALF),
        cut_after(HALF[:-5]),
        cut_after(b""),
        not_http,
        status(500, "RequestProcessingException", "boom"),
        status(503),
        status(204),
        raw_body(b"x", x_databus_resume="here"),
    ],
)
def test_a_bad_answer_is_asked_for_again_and_nothing_is_lost_or_doubled(
    relay: FakeRelay, keeper: Keeper, act: Any
) -> None:
    client = make_client(relay)
    client.register(keeper, ["shop.orders"])
    with client:
        wait_until(lambda: 5 in keeper.scns)
        relay.script.append(act)
        wait_until(lambda: not relay.script)
        relay.append(*orders([6, 7, 8]))
        wait_until(lambda: 8 in keeper.scns)
        assert client.is_healthy
    assert keeper.scns == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_half_window_that_breaks_off_is_announced_as_a_rollback(
    relay: FakeRelay, keeper: Keeper
) -> None:
    relay.script.append(cut_after(window(1, order(1, 100)) + encode(order(2, 200))))
    consume(make_client(relay), keeper, 5)
    assert keeper.rollbacks == [1]
    assert keeper.scns == [1, 2, 3, 4, 5]


def test_more_bytes_than_were_asked_for_are_not_taken(relay: FakeRelay, keeper: Keeper) -> None:
    relay.script.append(raw_body(b"\2" * (4 << 20)))
    consume(make_client(relay, fetch_bytes=4096), keeper, 5)
    assert keeper.scns == [1, 2, 3, 4, 5]


def test_scn_not_found_on_every_relay_stops_the_client_naming_both_scns(keeper: Keeper) -> None:
    with FakeRelay(orders([50])) as one, FakeRelay(orders([40, 50])) as other:
        one.oldest_gone, other.oldest_gone = 49, 39
        client = make_client(one, other, start="7")
        client.register(keeper, ["shop.orders"])
        with pytest.raises(ScnNotFoundError, match="scn 7 is gone; the oldest held is 40"):
            client.run()
    assert keeper.calls == ["start", "error ScnNotFoundError", "stop"]


def test_scn_not_found_on_one_relay_is_no_reason_to_stop(keeper: Keeper) -> None:
    with FakeRelay(orders([5, 6])) as one, FakeRelay(orders([5, 6])) as other:
        one.script.append(not_found(4, 6))
        other.script.append(not_found(4, 6))
        one.script.clear()
        consume(make_client(one, other, start="4"), keeper, 6)
    assert keeper.scns == [5, 6]


def test_a_schema_that_comes_with_the_stream_is_registered_on_the_way(
    relay: FakeRelay, keeper: Keeper
) -> None:
    client = make_client(relay)
    client.register(keeper, ["shop.orders"])
    with client:
        wait_until(lambda: 5 in keeper.scns)
        relay.schemas = list(registered(ORDERS, WIDER_ORDERS))
        relay.append([change(6, {"id": 600, "item": "tea", "note": "hot"}, WIDER_ORDERS)])
        wait_until(lambda: 6 in keeper.scns)
    assert keeper.rows[-1] == {"id": 600, "item": "tea", "note": "hot"}
    assert keeper.rollbacks == []
    assert relay.paths().count("/sources") == 1


def test_of_an_answer_given_up_for_a_new_schema_no_half_event_is_kept(
    relay: FakeRelay, keeper: Keeper
) -> None:
    wider = [change(6, {"id": 600, "item": "tea", "note": "hot"}, WIDER_ORDERS)]

    def alter(handler: StreamHandler) -> None:
        relay.schemas = list(registered(ORDERS, WIDER_ORDERS))
        relay.append(wider, [order(7)])
        raw_body(window(6, *wider) + encode(order(7))[:30])(handler)

    relay.script.append(alter)
    client = make_client(relay, start="5")
    consume(client, keeper, upto=7)
    assert keeper.scns == [6, 7]
    # As good as new: nothing was taken for damage, so the relay was not left.
    assert relay.paths().count("/sources") == 1


def test_rows_are_read_as_the_readers_own_schema_says(relay: FakeRelay, keeper: Keeper) -> None:
    client = make_client(relay)
    reader = {"shop.orders": SCHEMAS[WIDER_ORDERS]}
    client.register(keeper, ["shop.orders"], reader_schemas=reader)
    with client:
        wait_until(lambda: 5 in keeper.scns)
    assert keeper.rows[0] == {"id": 100, "item": "tea", "note": None}


def test_a_schema_that_the_reader_cannot_take_stops_the_client_naming_the_field(
    relay: FakeRelay, keeper: Keeper
) -> None:
    client = make_client(relay)
    reader = {"shop.orders": SCHEMAS[ORDERS].replace('"name":"item"', '"name":"thing"')}
    client.register(keeper, ["shop.orders"], reader_schemas=reader)
    with pytest.raises(IncompatibleSchemaError, match="thing"):
        client.run()
    assert keeper.rows == []


def test_an_impatient_client_says_which_sources_there_are(relay: FakeRelay) -> None:
    client = ImpatientClient(relay.url, **QUICK)
    client.register(Keeper(), ["shop.ordesr"])
    with pytest.raises(UnknownSourceError, match=r"shop\.customers, shop\.orders"):
        client.run()


def test_from_the_newest_on_only_later_changes_come(relay: FakeRelay, keeper: Keeper) -> None:
    client = make_client(relay, start="latest")
    client.register(keeper, ["shop.orders"])
    with client:
        wait_until(lambda: len(relay.streams()) >= 2)
        relay.append(*orders([6]))
        wait_until(lambda: 6 in keeper.scns)
    assert keeper.scns == [6]


def test_where_the_newest_was_is_remembered_before_anything_came(
    relay: FakeRelay, keeper: Keeper, tmp_path: Path
) -> None:
    client = make_client(relay, start="latest", checkpoint_dir=tmp_path)
    client.register(Keeper(), ["shop.orders"])
    with client:
        wait_until(lambda: client.status()[0].scn == 5)
    relay.append(*orders([6]))
    consume(make_client(relay, start="latest", checkpoint_dir=tmp_path), keeper, 6)
    assert keeper.scns == [6]


def test_changes_of_other_tables_move_the_checkpoint(tmp_path: Path) -> None:
    checkpoints: list[int] = []

    class Watcher(Keeper):
        def on_checkpoint(self, scn: int) -> None:
            checkpoints.append(scn)

    watcher = Watcher()
    with FakeRelay([[order(1)], [customer(2)], [customer(3)]]) as relay:
        client = make_client(relay, checkpoint_dir=tmp_path)
        client.register(watcher, ["shop.orders"])
        with client:
            wait_until(lambda: 3 in checkpoints)
    assert watcher.scns == [1]
    assert checkpoints == [1, 2, 3]
    kept = FileCheckpoints(tmp_path).load("default", ["shop.orders"])
    assert kept is not None
    assert kept.window_scn == 3


def test_a_paused_client_makes_no_callbacks_until_it_is_resumed(
    relay: FakeRelay, keeper: Keeper
) -> None:
    client = make_client(relay)
    client.register(keeper, ["shop.orders"])
    with client:
        wait_until(lambda: 5 in keeper.scns)
        client.pause()
        relay.append(*orders([6]))
        wait_until(lambda: client.status()[0].buffered_bytes)
        relay.append(*orders([7]))
        wait_until(lambda: len(relay.streams()) >= 4)
        assert keeper.scns == [1, 2, 3, 4, 5]
        client.resume()
        wait_until(lambda: 7 in keeper.scns)
    assert keeper.scns == [1, 2, 3, 4, 5, 6, 7]


def test_a_callback_may_stop_the_client(relay: FakeRelay) -> None:
    client, keys = make_client(relay), []

    @client.on("shop.orders")
    def take(event: DataEvent) -> None:
        keys.append(event.wire_key)
        if event.scn == 3:
            client.stop()

    client.run()
    assert keys == [100, 200, 300]


def test_a_stopped_client_is_not_started_again(relay: FakeRelay) -> None:
    client = make_client(relay)
    with client:
        pass
    with pytest.raises(SettingsError, match="make another"):
        client.start()


def test_windows_can_be_iterated_and_the_checkpoint_follows_the_loop(
    relay: FakeRelay, tmp_path: Path
) -> None:
    store = FileCheckpoints(tmp_path)
    seen = []
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        for found in client.windows("shop.orders"):
            kept = store.load("default", ["shop.orders"])
            seen.append((found.scn, found.events[0].wire_key, kept and kept.window_scn))
            if found.scn == 3:
                break
    assert seen == [(1, 100, None), (2, 200, 1), (3, 300, 2)]
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        again = next(iter(client.windows("shop.orders")))
    assert again.scn == 3, "the loop broke off in window 3"


def test_iterating_shows_no_empty_windows() -> None:
    mixed = [[customer(1)], [order(2)], [customer(3)], [order(4)]]
    with FakeRelay(mixed) as relay, make_client(relay) as client:
        windows = client.windows("shop.orders")
        assert [next(windows).scn, next(windows).scn] == [2, 4]


def test_an_iteration_ends_when_the_client_is_stopped(relay: FakeRelay) -> None:
    client, scns = make_client(relay), []
    for found in client.windows("shop.orders"):
        scns.append(found.scn)
        if found.scn == 5:
            threading.Thread(target=client.stop).start()
    client.stop()
    assert scns == [1, 2, 3, 4, 5]


def test_an_iteration_raises_what_ends_the_reading(relay: FakeRelay) -> None:
    relay.oldest_gone = 4
    with make_client(relay, start="2") as client, pytest.raises(ScnNotFoundError):
        next(client.windows("shop.orders"))


def test_an_iteration_shows_what_was_read_before_the_error_that_ends_it(relay: FakeRelay) -> None:
    # The relay does not hold them any more: dropped, they could not be read again.
    def evict(handler: StreamHandler) -> None:
        relay.oldest_gone = 9
        raw_body(b"".join(window(scn, order(scn)) for scn in range(1, 6)))(handler)

    relay.script.append(evict)
    shown = []

    def show(client: DatabusClient) -> None:
        for found in client.windows("shop.orders"):
            wait_until(lambda: client.status()[0].state == "closed")
            shown.append(found.scn)

    with make_client(relay) as client, pytest.raises(ScnNotFoundError):
        show(client)
    assert shown == [1, 2, 3, 4, 5]


def test_one_registration_is_not_read_twice(relay: FakeRelay) -> None:
    with make_client(relay) as client:
        windows = client.windows("shop.orders")
        next(windows)
        with pytest.raises(SettingsError, match="another name"):
            next(client.windows("shop.orders"))
        assert next(client.windows("shop.orders", name="other")).scn == 1


def test_windows_can_be_iterated_in_asyncio(relay: FakeRelay, tmp_path: Path) -> None:
    async def read() -> list[int]:
        scns, ticks = [], 0
        with make_client(relay, checkpoint_dir=tmp_path) as client:
            async for found in client.windows_async("shop.orders"):
                scns.append(found.scn)
                if found.scn == 5:
                    await asyncio.sleep(0)
                    relay.append(*orders([6]))
                if found.scn == 6:
                    break
                ticks += 1
        return scns

    assert asyncio.run(read()) == [1, 2, 3, 4, 5, 6]


def test_an_asyncio_iteration_that_is_cancelled_leaves_nothing_behind(relay: FakeRelay) -> None:
    async def read(client: DatabusClient) -> None:
        async for _ in client.windows_async("shop.orders"):
            pass

    async def cancel() -> None:
        with make_client(relay) as client:
            task = asyncio.create_task(read(client))
            while not (client.status() and client.status()[0].scn == 5):
                await asyncio.sleep(0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    assert len(relay.streams()) >= 1


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        ((), {}, "at least one source"),
        (("shop.orders", "shop.orders"), {}, "named twice"),
        (("shop.orders",), {"filters": {"shop.people": ModFilter(2, 0, 1)}}, "shop.people"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(
    relay: FakeRelay, arguments: tuple[str, ...], options: Any, problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem):
        make_client(relay).register(Keeper(), list(arguments), **options)


def test_the_same_registration_with_other_filters_needs_another_name(relay: FakeRelay) -> None:
    client = make_client(relay)
    client.register(Keeper(), ["shop.orders"])
    with pytest.raises(SettingsError, match="another name"):
        client.register(Keeper(), ["shop.orders"], filters={"shop.orders": ModFilter(2, 0, 1)})


def test_a_relay_that_ignores_wait_is_polled_gently(keeper: Keeper) -> None:
    with FakeRelay(orders([1]), holds_requests=False) as relay:
        client = make_client(relay)
        client.register(keeper, ["shop.orders"])
        with client:
            wait_until(lambda: len(relay.streams()) > 10)
            relay.append(*orders([2]))
            wait_until(lambda: 2 in keeper.scns)
    assert keeper.scns == [1, 2]


def test_everything_that_the_package_names_is_there() -> None:
    for name in databus.client.__all__:
        assert getattr(databus.client, name).__name__ == name


def test_an_illegal_step_of_the_reading_ends_the_client_with_an_error_that_says_so(
    relay: FakeRelay, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer_what_was_not_asked(requests: ServerRequests, request: Request) -> PageAnswered:
        return PageAnswered()

    monkeypatch.setattr(ServerRequests, "make", answer_what_was_not_asked)
    client = make_client(relay)
    client.register(keeper, ["shop.orders"])
    with pytest.raises(
        DatabusError, match=r"the puller ended: .*state requesting_sources has no step PageAnswered"
    ):
        client.run()


def test_a_stop_in_the_middle_of_a_start_leaves_no_thread(relay: FakeRelay) -> None:
    client = DatabusClient([relay.url])
    client.on("shop.orders")(lambda event: None)
    begin = client._loop.start

    def stopped_meanwhile() -> None:
        stopper = threading.Thread(target=client.stop)
        stopper.start()
        stopper.join()
        begin()

    with patch.object(client._loop, "start", stopped_meanwhile):
        client.start()
    assert client.state is Lifecycle.SHUT_DOWN
    assert [one.name for one in threading.enumerate() if one.name.startswith("databus-")] == []
