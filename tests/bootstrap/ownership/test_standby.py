"""Two processes that may fill one store, here as two objects: one does, the other follows it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.bootstrap.ownership.standby import StandbyWorkers
from databus.bootstrap.ownership.write_guard import WriteGuard
from databus.bootstrap.pair import Pair
from databus.bootstrap.store.file import WriteLease, identify
from databus.bootstrap.store.store import Store
from databus.leases.errors import LeaseLostError
from databus.leases.store import LeaseStore
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.bootstrap.serving import FakeWorker, pair_settings
from tests.databus.leases.contenders import Unsteady
from tests.promises.running import wait_until

TTL_S = 2.0


class FakeTimer:
    """A timer that kills nobody, and notes what it was set to."""

    def __init__(self) -> None:
        self.settings: list[float] = []

    def set(self, after_s: float) -> None:
        self.settings.append(after_s)

    def close(self) -> None:
        self.settings.append(-1.0)


class Process:
    """One that may fill the store, and the workers that it has made."""

    def __init__(self, folder: Path, owner: str) -> None:
        self.records = Unsteady(folder / "leases")
        self.made: list[tuple[FakeWorker, WriteLease]] = []
        self.settings = pair_settings(folder)
        self.path = folder / "shop.db"
        leases, guard = LeaseStore(self.records), WriteGuard(TTL_S, FakeTimer())
        self.workers = StandbyWorkers(self.path, leases, owner, TTL_S, self._make, guard)

    def _make(self, lease: WriteLease) -> dict[str, FakeWorker]:
        worker = FakeWorker(self.settings, self.settings.physical_sources[0], lease=lease)
        self.made.append((worker, lease))
        return {"producer": worker}

    @property
    def role(self) -> str:
        return self.workers.ownership().role

    def wait_for(self, role: str) -> None:
        wait_until(lambda: self.role == role, role, self.workers.ownership)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    with contextlib.ExitStack() as stack:

        def made(owner: str) -> Process:
            process = Process(tmp_path, owner)
            process.workers.start()
            stack.callback(process.workers.stop, 10.0)
            return process

        yield made


def test_one_fills_the_store_and_the_other_follows_when_it_ends(
    start: Callable[[str], Process],
) -> None:
    first = start("a:1")
    first.wait_for("active")
    second = start("b:2")
    wait_until(lambda: second.workers.ownership().owner == "a:1", "the owner's name")
    assert second.workers.ownership() == ("standby", "a:1", 1, "")
    assert (first.made[0][0].is_running, second.made) == (True, [])
    assert identify(first.path)[1] == 1
    assert first.workers.stop(PATIENCE_S)
    assert not first.made[0][0].is_running
    second.wait_for("active")
    assert second.workers.ownership() == ("active", "b:2", 2, "")
    assert identify(first.path)[1] == 2
    with pytest.raises(LeaseLostError):
        first.made[0][1].term()
    assert second.made[0][1].term() == 2


def test_an_owner_that_is_cut_off_stops_and_the_other_follows_it(
    start: Callable[[str], Process],
) -> None:
    first = start("a:1")
    first.wait_for("active")
    second = start("b:2")
    first.records.is_down = True
    second.wait_for("active")
    # It stopped by its own clock, before the other one began.
    with pytest.raises(LeaseLostError):
        first.made[0][1].term()
    wait_until(lambda: not first.made[0][0].is_running, "the end of its work")
    assert "it is down" in first.workers.ownership().problem
    first.records.is_down = False
    wait_until(lambda: first.workers.ownership() == ("standby", "b:2", 2, ""), "the new owner")
    assert second.workers.stop(PATIENCE_S)
    first.wait_for("active")
    assert [lease.term() for _, lease in first.made[1:]] == [3]


def test_a_store_that_another_process_has_locked_is_waited_for(
    tmp_path: Path, start: Callable[[str], Process]
) -> None:
    with closing(Store.open(tmp_path / "shop.db")) as store:
        store.file.connection.execute("begin immediate")
        process = start("a:1")
        wait_until(lambda: "holds its lock" in process.workers.ownership().problem, "a problem")
        assert process.role == "taking over"
        assert not process.made
        store.file.connection.execute("rollback")
        process.wait_for("active")
        assert not process.workers.ownership().problem


def test_a_store_that_was_replaced_has_another_lease(
    tmp_path: Path, start: Callable[[str], Process]
) -> None:
    process = start("a:1")
    process.wait_for("active")
    former, _ = identify(process.path)
    process.path.rename(tmp_path / "former.db")
    for end in ("-wal", "-shm"):
        Path(f"{process.path}{end}").unlink(missing_ok=True)
    wait_until(lambda: len(process.made) == 2, "workers of the new store")
    process.wait_for("active")
    assert not process.made[0][0].is_running
    store_id, term = identify(process.path)
    assert (store_id != former, term) == (True, 1)


def test_terms_go_on_when_the_records_of_leases_were_lost(
    tmp_path: Path, start: Callable[[str], Process]
) -> None:
    with closing(Store.open(tmp_path / "shop.db")) as store:
        store.begin_term(7)
    process = start("a:1")
    process.wait_for("active")
    assert identify(process.path)[1] == 8
    shutil.rmtree(tmp_path / "leases")
    with closing(Store.open(tmp_path / "shop.db")) as store:
        store.begin_term(20)
    wait_until(lambda: identify(process.path)[1] == 21, "a greater term")
    process.wait_for("active")


def test_a_process_that_does_not_stand_by_keeps_the_others_out(tmp_path: Path) -> None:
    alone, standby = pair_settings(tmp_path), pair_settings(tmp_path, fill_lease_s=10.0)
    one = Pair(alone, FakeWorker)
    with pytest.raises(SettingsError, match="set `fill_lease_s` in the settings of both"):
        Pair(standby, FakeWorker)
    one.stop()
    first, second = Pair(standby, FakeWorker), Pair(standby, FakeWorker)
    try:
        with pytest.raises(SettingsError, match="has a producer already"):
            Pair(alone, FakeWorker)
        first.start_workers()
        wait_until(lambda: sorted(first.producers) == ["crm", "shop"], "both stores")
        second.start_workers()
        wait_until(lambda: (second.ownership("shop") or ("",) * 2)[1] != "", "the owner")
        assert not second.producers
    finally:
        second.stop()
        first.stop()
    Pair(alone, FakeWorker).stop()
