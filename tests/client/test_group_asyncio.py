"""Groups read in asyncio, and by who iterates: the promises are those of callbacks."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from databus.client.checkpoints.fenced import RecordCheckpoints
from databus.client.client import DatabusClient
from databus.groups.names import checkpoint_name, consumed_scn
from databus.leases.places import open_records
from databus.schemas.errors import ConsumerError, SettingsError
from tests import PATIENCE_S
from tests.client.asyncio_processes import Processes
from tests.client.test_group_registration import PARTITIONS, SOURCE, member, patiently
from tests.client.test_with_relay import RunningRelay, database, insert

__all__ = ["database"]


class Noted:
    """A listener whose methods are coroutine functions."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()

    async def on_add_partition(self, partition: int, scn: int) -> None:
        await self._note("add", partition, scn)

    async def on_drop_partition(self, partition: int) -> None:
        await self._note("drop", partition)

    async def _note(self, *call: Any) -> None:
        await asyncio.sleep(0)
        self.threads.add(threading.get_ident())
        self.calls.append(call)

    def of(self, kind: str) -> list[int]:
        return sorted(call[1] for call in self.calls if call[0] == kind)


class Blocking:
    """A listener of plain methods."""

    def __init__(self, fails_at: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._fails_at = fails_at

    def on_add_partition(self, partition: int, scn: int) -> None:
        self._note("add", partition, scn)

    def on_drop_partition(self, partition: int) -> None:
        self._note("drop", partition)

    def _note(self, *call: Any) -> None:
        if call[0] == self._fails_at:
            raise OSError("no disk")
        self.calls.append(call)


def test_a_task_reads_its_share_and_another_one_goes_on_where_it_ended(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    found: list[int] = []
    listeners: list[Noted] = []

    async def read_until(relay: RunningRelay, last: int) -> None:
        client, listener = member(relay, tmp_path), Noted()
        listeners.append(listener)
        async for window in client.windows_async(SOURCE, partition_listener=listener):
            found.extend(event.row["id"] for event in window.events)
            if found[-1] >= last:
                client.stop()  # in the event loop: it does not wait for what the loop has to do

    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 10)
        asyncio.run(read_until(relay, 10))
        insert(database, 11, 10)
        asyncio.run(read_until(relay, 20))
    assert found == list(range(1, 21))
    for listener in listeners:
        assert listener.of("add") == listener.of("drop") == list(range(PARTITIONS))
        assert listener.threads == {threading.get_ident()}
    assert {call[2] for call in listeners[0].calls if call[0] == "add"} == {-1}
    assert min(call[2] for call in listeners[1].calls if call[0] == "add") > 0


def test_the_event_loop_goes_on_while_partitions_are_waited_for_and_a_cancelled_task_gives_back(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    async def read(client: DatabusClient, found: list[int]) -> None:
        async for window in client.windows_async(SOURCE):
            found.extend(event.row["id"] for event in window.events)

    async def run(relay: RunningRelay) -> list[int]:
        clients = [member(relay, tmp_path) for _ in range(2)]
        found: list[list[int]] = [[], []]
        tasks = [asyncio.create_task(read(*one)) for one in zip(clients, found, strict=True)]
        await until(lambda: _shares(clients) == [4, 4])
        insert(database, 1, 40)
        await until(lambda: len(found[0]) + len(found[1]) == 40)
        tasks[0].cancel()
        assert isinstance(
            (await asyncio.gather(tasks[0], return_exceptions=True))[0], BaseException
        )
        await until(lambda: _shares(clients[1:]) == [8])
        insert(database, 41, 10)
        await until(lambda: set(found[1]) >= set(range(41, 51)))
        for client in clients:
            await asyncio.to_thread(client.stop)
        await tasks[1]
        return found[0] + found[1]

    with RunningRelay(tmp_path) as relay:
        assert Counter(asyncio.run(run(relay))) == Counter(range(1, 51))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


def _shares(clients: list[DatabusClient]) -> list[int]:
    return [len(one.partitions) for client in clients for one in client.registrations]


def test_who_iterates_is_told_which_partitions_come_and_go(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    listener, found, again = Blocking(), [], []
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 10)
        client = member(relay, tmp_path)
        for window in client.windows(SOURCE, partition_listener=listener):
            assert len(listener.calls) == PARTITIONS
            in_hand = [event.row["id"] for event in window.events]
            found += in_hand
            if found[-1] >= 5:
                break
        client.stop()
        assert Counter(call[:2] for call in listener.calls) == {
            (kind, one): 1 for kind in ("add", "drop") for one in range(PARTITIONS)
        }
        client = member(relay, tmp_path)
        for batch in client.batches(SOURCE, partition_listener=Blocking()):
            again += [event.row["id"] for event in batch.events]
            if again[-1] == 10:
                client.stop()
    assert found == list(range(1, found[-1] + 1))
    assert again == list(range(in_hand[0], 11))


def test_a_listener_that_fails_ends_the_iteration_and_gives_everything_back(
    database: sqlite3.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RunningRelay(tmp_path) as relay:
        insert(database, 1, 10)
        client = member(relay, tmp_path)
        with pytest.raises(ConsumerError, match="no disk"):
            next(client.windows(SOURCE, partition_listener=Blocking("add")))
        client.stop()
        client = member(relay, tmp_path)
        with pytest.raises(ConsumerError, match="windows_async"):
            next(client.windows(SOURCE, partition_listener=Noted()))
        client.stop()
        client = member(relay, tmp_path)
        windows = client.windows(SOURCE, partition_listener=Blocking("drop"))
        assert next(windows).events
        client.stop()
        assert list(windows) == []
    assert "on_drop_partition" in caplog.text


def test_a_listener_needs_a_group(tmp_path: Path) -> None:
    client = DatabusClient(["http://127.0.0.1:9"])
    with pytest.raises(SettingsError, match="without a `group`"):
        next(client.windows(SOURCE, partition_listener=Blocking()))
    client.stop()


def test_a_process_that_is_killed_is_followed_by_the_other_one_at_its_checkpoints(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    with RunningRelay(tmp_path) as relay, ExitStack() as ended:
        group = Processes(relay.url, f"file:{tmp_path / 'state'}", tmp_path)
        ended.callback(group.close)
        for name in ("a", "b"):
            group.start(name)
        patiently(lambda: [len(group.owned(name)) for name in "ab"] == [4, 4])
        insert(database, 1, 100)
        patiently(lambda: len(group.rows()) == 100 and are_stored(tmp_path, group.rows()))
        killed = group.running["a"]
        killed.kill()
        insert(database, 101, 100)
        patiently(lambda: len(group.rows()) == 200)
        assert group.owned("b") == set(range(PARTITIONS))
        left = group.running["b"]
        left.send_signal(signal.SIGTERM)
        assert left.wait(PATIENCE_S) == 0
        assert group.owned("b") == set()
    rows = group.rows()
    assert Counter(row["id"] for row in rows) == Counter(range(1, 201)), "all were stored before"
    by_partition: dict[int, list[int]] = {}
    for row in rows:
        by_partition.setdefault(row["partition"], []).append(row["scn"])
    assert all(scns == sorted(scns) for scns in by_partition.values())


def are_stored(folder: Path, rows: list[dict[str, int]]) -> bool:
    """Return whether the checkpoint of each row's partition is behind the row."""
    with closing(open_records(f"file:{folder / 'state'}")) as records:
        store = RecordCheckpoints(records)
        stored = [
            consumed_scn(store.load(checkpoint_name("billing", 0, one), [SOURCE]))
            for one in range(PARTITIONS)
        ]
    return all(row["scn"] <= stored[row["partition"]] for row in rows)
