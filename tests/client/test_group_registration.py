"""Clients of one group against a real relay: each row reaches one of them, whatever they do."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.machines.states import Lifecycle
from databus.client.membership.membership import Membership
from databus.client.membership.partition_checkpoints import PartitionCheckpoints
from databus.conf.loading import build_settings
from databus.conf.settings import ClientSettings
from databus.groups import reading
from databus.leases.places import open_records
from databus.schemas.errors import SettingsError
from databus.schemas.filters import MAX_PARTITION_COLUMNS, MAX_PARTITIONS, ModFilter, key_hash
from tests import PATIENCE_S
from tests.client.shop import wait_until
from tests.client.test_with_relay import RunningRelay, database, insert, make_client

__all__ = ["database"]

SOURCE = "main.orders"
PARTITIONS = 8
patiently = partial(wait_until, patience_s=PATIENCE_S)  # a checkpoint is several writes to a disk


class Seen:
    """What all members of a group were given."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: list[tuple[str, int, int, str]] = []  # member, partition, scn, item
        self.keys: list[int] = []

    def counts(self) -> Counter[int]:
        with self.lock:
            return Counter(self.keys)


class Noting(Consumer):
    """A member's consumer."""

    def __init__(self, name: str, seen: Seen) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.owned: set[int] = set()
        self.threads: set[int] = set()
        self._name, self._seen = name, seen

    def on_start_consumption(self) -> None:
        self.calls.append(("start",))

    def on_stop_consumption(self) -> None:
        self.calls.append(("stop",))

    def on_add_partition(self, partition: int, scn: int) -> None:
        self.calls.append(("add", partition, scn))
        self.owned.add(partition)

    def on_drop_partition(self, partition: int) -> None:
        self.calls.append(("drop", partition))
        self.owned.discard(partition)

    def on_data_event(self, event: DataEvent) -> Result | None:
        self.threads.add(threading.get_ident())
        assert event.partitions == (key_hash(event.wire_key) % PARTITIONS,)
        assert event.partitions[0] in self.owned
        with self._seen.lock:
            assert isinstance(event.wire_key, int)
            self._seen.keys.append(event.wire_key)
            self._seen.rows.append((self._name, event.partitions[0], event.scn, event.row["item"]))
        return None


def member(relay: RunningRelay, folder: Path, **options: Any) -> DatabusClient:
    quick: dict[str, Any] = {
        "group": "billing",
        "partitions": PARTITIONS,
        "checkpoint_dir": folder / "state",
        "checkpoint_every_s": 0.2,
        "group_ttl_s": 5.0,
        "group_finish_s": 5.0,
    }
    return make_client(relay, **(quick | options))


def joined(client: DatabusClient, consumer: Consumer, **options: Any) -> DatabusClient:
    client.register(consumer, [SOURCE], **options)
    client.start()
    return client


def owned_by(client: DatabusClient) -> frozenset[int]:
    (registration,) = client.registrations
    return registration.partitions


def test_one_process_of_a_group_gets_every_row_in_order(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    consumer = Noting("a", seen)
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 100)
        with joined(member(relay, tmp_path), consumer):
            patiently(lambda: len(seen.keys) >= 100)
    assert seen.keys == list(range(1, 101))
    assert consumer.calls[0] == ("start",)
    assert sorted(consumer.calls[1:9]) == [("add", one, -1) for one in range(PARTITIONS)]
    assert sorted(consumer.calls[9:-1]) == [("drop", one) for one in range(PARTITIONS)]
    assert consumer.calls[-1] == ("stop",)
    assert len(consumer.threads) == 1


def test_two_share_the_rows_and_the_one_that_is_left_goes_on_with_those_of_the_other(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    first, second = Noting("a", seen), Noting("b", seen)
    with RunningRelay(tmp_path) as relay:
        one = joined(member(relay, tmp_path), first)
        two = joined(member(relay, tmp_path), second)
        patiently(lambda: len(owned_by(one)) == len(owned_by(two)) == PARTITIONS // 2)
        insert(database, 1, 200)
        patiently(lambda: len(seen.keys) >= 200)
        assert {name for name, *_ in seen.rows} == {"a", "b"}
        two.stop()
        insert(database, 201, 200)
        patiently(lambda: len(seen.keys) >= 400)
        assert owned_by(one) == frozenset(range(PARTITIONS))
        one.stop()
    assert seen.counts() == Counter(range(1, 401))
    assert {name for name, *_ in seen.rows[200:]} == {"a"}
    of_each: dict[int, list[int]] = {}
    for _, partition, scn, _ in seen.rows:
        of_each.setdefault(partition, []).append(scn)
    assert all(scns == sorted(scns) for scns in of_each.values())


def test_a_process_that_joins_later_goes_on_at_the_checkpoints_and_nothing_comes_twice(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        clients = [joined(member(relay, tmp_path), Noting("0", seen))]
        for number in range(1, 4):
            insert(database, number * 100, 100)
            clients.append(joined(member(relay, tmp_path), Noting(str(number), seen)))
            insert(database, number * 1000, 100)
        patiently(lambda: len(seen.keys) >= 600)
        patiently(lambda: all(len(owned_by(one)) == 2 for one in clients))
        for client in clients:
            client.stop()
    assert set(seen.counts().values()) == {1}
    assert len(seen.keys) == 600


def test_rows_that_the_filter_of_an_application_does_not_want_are_left_out(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 100)
        filters = {SOURCE: ModFilter(10, 0, 3)}
        with joined(member(relay, tmp_path), Noting("a", seen), filters=filters):
            insert(database, 101, 3)
            patiently(lambda: 102 in seen.keys)
    assert seen.keys == [number for number in range(1, 103) if number % 10 < 3]


def test_windows_of_a_group_are_iterated_over_and_go_on_where_they_ended(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    found: list[int] = []
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 10)
        for last in (1, 20):
            client = member(relay, tmp_path)
            for window in client.windows(SOURCE):
                found += [event.row["id"] for event in window.events]
                if found[-1] >= last:
                    client.stop()
            if last == 1:
                insert(database, 11, 10)
    assert found == list(range(1, 21))


def test_what_a_member_has_not_committed_comes_again_to_the_next_one(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    found: list[list[int]] = [[], []]
    rows = 0
    with RunningRelay(tmp_path) as relay:
        for part, last in zip(found, (4, 6), strict=True):
            client = member(relay, tmp_path)
            insert(database, rows := rows + 1, 1)
            for window in client.windows(SOURCE, auto_commit=False):
                part += [event.row["id"] for event in window.events]
                if part[-1] == 2:
                    client.commit()
                if part[-1] == last:
                    client.stop()
                elif part[-1] == rows:
                    insert(database, rows := rows + 1, 1)  # a window of its own
    assert found == [[1, 2, 3, 4], [3, 4, 5, 6]]


def test_a_consumer_that_fails_for_good_stops_its_client_and_another_takes_over_when_it_leaves(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()

    class Broken(Consumer):
        def on_data_event(self, event: DataEvent) -> Result:
            return Result.ERROR_FATAL

    with RunningRelay(tmp_path) as relay:
        broken = joined(member(relay, tmp_path), Broken())
        insert(database, 1, 20)
        patiently(lambda: broken.state is Lifecycle.SUSPENDED)
        well = joined(member(relay, tmp_path), Noting("a", seen))
        broken.stop()
        patiently(lambda: len(seen.keys) == 20)
        well.stop()
    assert seen.counts() == Counter(range(1, 21))


def test_a_start_at_the_newest_row_is_one_place_for_the_whole_group(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 10)
        first = joined(member(relay, tmp_path, start="latest"), Noting("a", seen))
        (registration,) = first.registrations
        patiently(lambda: (registration.kept_scn or -1) > 0)
        first.stop()
        insert(database, 11, 10)  # while nobody is there
        second = joined(member(relay, tmp_path, start="latest"), Noting("b", seen))
        patiently(lambda: len(seen.keys) == 10)
        second.stop()
    assert seen.keys == list(range(11, 21))


def refused(**options: Any) -> None:
    client = DatabusClient(["http://127.0.0.1:1"], **options)
    try:
        next(client.windows(SOURCE))
    finally:
        client.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": "billing"}, "needs `coordinator`, or a `checkpoint_dir`"),
        ({"group": "billing", "coordinator": "nowhere"}, "give `file:FOLDER`"),
    ],
)
def test_a_group_without_a_place_to_meet_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        refused(**options)


def test_a_store_that_knows_no_terms_is_refused(tmp_path: Path) -> None:
    class Plain:
        def load(self, *_: object) -> None:
            return None

        def save(self, *_: object) -> None: ...

    with pytest.raises(SettingsError, match="no `begin_term`"):
        refused(group="billing", coordinator=f"file:{tmp_path}", checkpoints=Plain())


def test_members_that_read_other_sources_are_refused_by_name(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    with RunningRelay(tmp_path) as relay:
        first = joined(member(relay, tmp_path), Noting("a", Seen()))
        patiently(lambda: len(owned_by(first)) == PARTITIONS)
        other = member(relay, tmp_path)
        other.register(Noting("b", Seen()), ["main.notes"])
        other.start()
        patiently(lambda: other.state is Lifecycle.SUSPENDED)
        assert "sources" in str(other.error)
        other.stop()
        first.stop()


def test_settings_of_a_group_are_read_from_a_file() -> None:
    values = {"relays": ["http://127.0.0.1:1"], "group": "billing", "partition_by": ["customer"]}
    settings = build_settings(values, ClientSettings)
    assert (settings.group, settings.partitions) == ("billing", 32)
    assert settings.partition_by == ("customer",)


@pytest.mark.parametrize(
    "too_many",
    [
        {"partitions": MAX_PARTITIONS + 1},
        {"partition_by": [f"c{number}" for number in range(MAX_PARTITION_COLUMNS + 1)]},
    ],
)
def test_settings_have_the_limits_of_the_filter(too_many: dict[str, Any]) -> None:
    most = {
        "partitions": MAX_PARTITIONS,
        "partition_by": [f"c{number}" for number in range(MAX_PARTITION_COLUMNS)],
    }
    relays: dict[str, Any] = {"relays": ["http://127.0.0.1:1"], "group": "billing"}
    assert build_settings(relays | most, ClientSettings).partitions == MAX_PARTITIONS
    with pytest.raises(SettingsError):
        build_settings(relays | too_many, ClientSettings)


def test_a_consumer_that_leaves_checkpoints_out_is_rolled_back_when_its_partitions_change(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    class Holding(Noting):
        """Keeps rows in memory, and makes none of them safe."""

        def on_end_data_event_sequence(self, scn: int) -> Result:
            return Result.SKIP_CHECKPOINT

        def on_rollback(self, scn: int) -> None:
            self.calls.append(("rollback", scn))

    seen, other = Seen(), Seen()
    first = Holding("a", seen)
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 30)
        one = joined(member(relay, tmp_path), first)
        patiently(lambda: len(seen.keys) == 30)
        two = joined(member(relay, tmp_path), Noting("b", other))
        patiently(lambda: len(seen.keys) + len(other.keys) == 60)
        assert ("rollback", -1) in first.calls
        two.stop()
        one.stop()
    assert set(seen.keys) == set(range(1, 31))
    again = [name for name, *_ in seen.rows[30:]]
    assert len(again) + len(other.keys) == 30


def test_a_process_that_leaves_in_the_middle_gives_nothing_twice(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    with RunningRelay(tmp_path) as relay:
        clients = [joined(member(relay, tmp_path), Noting(name, seen)) for name in ("a", "b")]
        patiently(lambda: all(len(owned_by(one)) == PARTITIONS // 2 for one in clients))
        leaving = threading.Thread(target=clients[0].stop)
        insert(database, 1, 100)
        leaving.start()
        insert(database, 101, 100)
        leaving.join()
        patiently(lambda: len(seen.keys) >= 200)
        clients[1].stop()
    assert seen.counts() == Counter(range(1, 201))


def test_partitions_that_come_while_a_stream_is_prepared_are_read_soon(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a slow store: one comes after another, and the first stream is not begun in time."""
    acquire, begin = Membership.acquire, PartitionCheckpoints.begin
    seen, is_first = Seen(), threading.Event()

    def slow(self: Membership, partition: int) -> int | None:
        time.sleep(0.25)
        return acquire(self, partition)

    def late(self: PartitionCheckpoints, *arguments: Any) -> None:
        if not is_first.is_set():
            is_first.set()
            patiently(lambda: len(owned_by(client)) == PARTITIONS)
            time.sleep(0.5)
        begin(self, *arguments)

    monkeypatch.setattr(Membership, "acquire", slow)
    monkeypatch.setattr(PartitionCheckpoints, "begin", late)
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 100)
        client = member(relay, tmp_path)
        joined(client, Noting("a", seen))
        patiently(lambda: len(seen.keys) >= 100)
        client.stop()
    assert seen.counts() == Counter(range(1, 101))


def test_two_registrations_of_one_client_need_names_to_be_two_groups(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    with RunningRelay(tmp_path) as relay:
        client = member(relay, tmp_path)
        client.register(Noting("a", Seen()), [SOURCE])
        client.register(Noting("b", Seen()), ["main.notes"])
        with pytest.raises(SettingsError, match="give all but one a `name`"):
            client.start()
        seen = Seen()
        well = member(relay, tmp_path)
        well.register(Noting("a", seen), [SOURCE])
        well.register(Noting("b", Seen()), ["main.notes"], name="notes")
        insert(database, 1, 5)
        with well:
            patiently(lambda: len(seen.keys) == 5)
            assert {one.group for one in well.registrations} == {"billing", "billing/notes"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition_by": ["id"]},
        {"group": "a", "partition_by": ["id", "id"]},
        {"group": " "},
        {"group": "a\nb"},
    ],
)
def test_settings_that_make_no_sense_for_a_group_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        build_settings({"relays": ["http://127.0.0.1:1"]} | wrong, ClientSettings)


def test_a_process_that_has_nothing_to_read_stands_by_and_is_well(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    seen = Seen()
    only: dict[str, Any] = {"partitions": 1, "http": {"port": 0}}
    with RunningRelay(tmp_path) as relay:
        first = joined(member(relay, tmp_path, **only), WholeTransactions(seen))
        patiently(lambda: owned_by(first) == {0})
        second = joined(member(relay, tmp_path, **only), WholeTransactions(seen))
        patiently(lambda: len(read_group(tmp_path)) == 2)
        assert urlopen(f"{second.url}/health").status == 200
        first.stop()
        insert(database, 1, 10)
        patiently(lambda: len(seen.keys) == 10)
        assert owned_by(second) == {0}
        second.stop()


class WholeTransactions(Consumer):
    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def on_data_event(self, event: DataEvent) -> None:
        assert isinstance(event.wire_key, int)
        self._seen.keys.append(event.wire_key)


def read_group(folder: Path) -> list[str]:
    records = open_records(f"file:{folder / 'state'}")
    return [one.process for one in reading.read_group(records, "billing").members.values()]
