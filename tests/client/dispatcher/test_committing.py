"""Checkpoints by hand, and going to another place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from databus.client.checkpoints.store import FileCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.schemas.errors import CheckpointError, SettingsError
from tests import PATIENCE_S
from tests.client.fake_relay import FakeRelay
from tests.client.shop import customer, order, orders, wait_until
from tests.client.test_client import Keeper, make_client
from tests.full_disk import small_disk

SOURCE = "shop.orders"


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay(orders(range(1, 6))) as fake:
        yield fake


def kept_scn(folder: Path) -> int | None:
    kept = FileCheckpoints(folder).load("default", [SOURCE])
    return None if kept is None else kept.window_scn


def test_by_hand_a_checkpoint_is_written_only_when_it_is_committed(
    relay: FakeRelay, tmp_path: Path
) -> None:
    seen = []
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        for window in client.windows(SOURCE, auto_commit=False):
            seen.append((window.scn, kept_scn(tmp_path)))
            if window.scn in (2, 4):
                client.commit()
                assert kept_scn(tmp_path) == window.scn
            if window.scn == 5:
                break
    assert seen == [(1, None), (2, None), (3, 2), (4, 2), (5, 4)]
    assert kept_scn(tmp_path) == 4, "the end of the iteration commits nothing"
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        assert next(client.windows(SOURCE, auto_commit=False)).scn == 5


def test_a_window_may_be_committed_later_and_on_another_thread(
    relay: FakeRelay, tmp_path: Path
) -> None:
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        windows = client.windows(SOURCE, auto_commit=False)
        first, second, third = next(windows), next(windows), next(windows)
        assert kept_scn(tmp_path) is None
        for window in (second, first):
            worker = threading.Thread(target=window.commit)
            worker.start()
            worker.join()
            assert kept_scn(tmp_path) == 2, "an older one takes nothing back"
        third.commit()
        assert kept_scn(tmp_path) == 3


def test_batches_that_are_not_committed_come_again(relay: FakeRelay, tmp_path: Path) -> None:
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        batches = client.batches(SOURCE, rows=2, auto_commit=False)
        next(batches).commit()
        kept = kept_scn(tmp_path)
        next(batches)
        batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert kept_scn(tmp_path) == kept
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        again = next(client.batches(SOURCE, rows=2, auto_commit=False))
    assert again.events[0].scn == (kept or 0) + 1


def test_windows_without_rows_move_a_checkpoint_only_behind_what_is_committed(
    tmp_path: Path,
) -> None:
    windows = [[order(1)], [customer(2)], [order(3)], [customer(4)], [customer(5)]]
    with FakeRelay(windows) as relay, make_client(relay, checkpoint_dir=tmp_path) as client:
        found = client.windows(SOURCE, auto_commit=False)
        assert next(found).scn == 1
        third = next(found)
        assert (third.scn, kept_scn(tmp_path)) == (3, None)
        reader = threading.Thread(target=lambda: next(found), daemon=True)
        reader.start()
        wait_until(lambda: client.status()[0].scn == 5)
        assert kept_scn(tmp_path) is None
        third.commit()
        assert kept_scn(tmp_path) == 5
        relay.append([order(6)])
        reader.join(PATIENCE_S)


def test_a_commit_that_cannot_be_written_says_so_and_is_written_later(
    relay: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        small_disk(tmp_path / "disk", monkeypatch) as disk,
        make_client(relay, checkpoint_dir=disk.folder) as client,
    ):
        windows = client.windows(SOURCE, auto_commit=False)
        assert next(windows).scn == 1
        disk.spoil()
        with pytest.raises(CheckpointError, match=disk.says):
            client.commit()
        assert next(windows).scn == 2
        disk.mend()
        reader = threading.Thread(target=lambda: list(windows))
        reader.start()
        wait_until(lambda: kept_scn(disk.folder) == 1)
        client.stop()
        reader.join(PATIENCE_S)


def test_after_the_end_of_an_iteration_nothing_is_committed_any_more(
    relay: FakeRelay, tmp_path: Path
) -> None:
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        window = next(client.windows(SOURCE, auto_commit=False))
        client.stop()
    with pytest.raises(CheckpointError, match="has ended"):
        window.commit()


def test_by_hand_in_asyncio(relay: FakeRelay, tmp_path: Path) -> None:
    async def read() -> int:
        async with make_client(relay, checkpoint_dir=tmp_path) as client:
            async for window in client.windows_async(SOURCE, auto_commit=False):
                if window.scn == 3:
                    client.commit()
                if window.scn == 5:
                    return window.scn
        return 0

    assert asyncio.run(read()) == 5
    assert kept_scn(tmp_path) == 3


def test_seek_before_the_start_goes_before_the_checkpoint(relay: FakeRelay, tmp_path: Path) -> None:
    FileCheckpoints(tmp_path)
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        for window in client.windows(SOURCE):
            if window.scn == 5:
                break
    client = make_client(relay, checkpoint_dir=tmp_path)
    client.seek(2, SOURCE)
    with client:
        assert next(client.windows(SOURCE)).scn == 3
    with make_client(relay, checkpoint_dir=tmp_path) as client:
        assert next(client.windows(SOURCE)).scn > 2, "it counts once"


def test_seek_of_a_registration_that_is_not_there_is_warned_of(
    relay: FakeRelay, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(relay)
    client.on("shop.orders")(lambda event: None)
    with client:
        client.seek("latest", "shop.ordrs")
    assert "'default' of shop.ordrs begins at latest once it is read" in caplog.text
    assert "this client has 'default' of shop.orders" in caplog.text


def test_seek_in_a_loop_continues_there_with_the_next_window(relay: FakeRelay) -> None:
    scns: list[int] = []
    with make_client(relay) as client:
        for window in client.windows(SOURCE):
            scns.append(window.scn)
            if scns == [1, 2, 3]:
                client.seek(1, SOURCE)
            if len(scns) == 5:
                client.seek("earliest", SOURCE)
            if len(scns) == 6:
                break
    assert scns == [1, 2, 3, 2, 3, 1]


def test_seek_in_asyncio(relay: FakeRelay) -> None:
    async def read() -> list[int]:
        scns: list[int] = []
        async with make_client(relay) as client:
            async for window in client.windows_async(SOURCE):
                scns.append(window.scn)
                if scns == [1, 2, 3]:
                    client.seek(0, SOURCE)
                if len(scns) == 4:
                    break
        return scns

    assert asyncio.run(read()) == [1, 2, 3, 1]


def test_seek_moves_callbacks_between_two_windows(relay: FakeRelay) -> None:
    client, keeper = make_client(relay), Keeper()
    client.register(keeper, [SOURCE])
    with client:
        wait_until(lambda: 5 in keeper.scns)
        client.seek(3, SOURCE)
        wait_until(lambda: len(keeper.scns) == 7)
    assert keeper.scns == [1, 2, 3, 4, 5, 4, 5]
    assert keeper.calls == ["start", "stop", "start", "stop"]


def test_a_callback_does_not_move_its_own_registration(relay: FakeRelay) -> None:
    client = make_client(relay, callback_retries=0)

    @client.on(SOURCE)
    def take(event: DataEvent) -> None:
        client.seek(0, SOURCE)

    with pytest.raises(Exception, match="cannot move it"):
        client.run()


def test_a_place_that_makes_no_sense_is_refused_at_once(relay: FakeRelay) -> None:
    with make_client(relay) as client, pytest.raises(SettingsError, match="yesterday"):
        client.seek("yesterday", SOURCE)


def test_a_member_of_a_group_does_not_seek(relay: FakeRelay, tmp_path: Path) -> None:
    client = DatabusClient(relay.url, group="g", coordinator=f"file:{tmp_path}")
    with pytest.raises(SettingsError, match="partitions of a group"):
        client.seek(datetime.now(UTC), SOURCE)
