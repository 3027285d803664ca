"""Files hold rows and places, and go around the tokens: they are for their owner alone."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.bootstrap.store.store import Store
from databus.daemon.files import make_folder, make_private
from databus.doctor.machine import MACHINE, Growth, check_folder
from databus.relay.capture.max_scn import SqliteMaxScn
from tests.promises.running import Remembering, RunningRelay, Shop, consuming, running, wait_until

WIDE_OPEN = ["bash", "-c", 'umask 000; exec "$@"', "-"]


def wide(folder: Path) -> list[str]:
    """Return what others may do something with, but for the settings and logs of the test."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]


def test_what_a_relay_and_a_client_keep_is_for_their_user_alone(shop: Shop, tmp_path: Path) -> None:
    relay = RunningRelay(tmp_path, shop.settings(log={"sync_ms": 1}), prefix=WIDE_OPEN)
    checkpoints = tmp_path / "home" / "checkpoints"
    with running(relay.start()):
        shop.insert(1)
        seen = Remembering()
        with consuming([relay.url], ["shop.orders"], seen, checkpoint_dir=checkpoints):
            wait_until(lambda: seen.scn >= 0, "a checkpoint")
        assert wide(relay.data_dir) == wide(tmp_path / "home") == []
        assert stat.S_IMODE(relay.data_dir.stat().st_mode) == 0o700
    assert list(checkpoints.glob("*.json"))
    assert list(relay.data_dir.glob("*.ring"))
    assert list(relay.data_dir.glob("*.relay-log/*.segment"))
    for path in relay.data_dir.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    told = [
        str(check) for check in check_folder("data_dir", relay.data_dir, Growth(0, ""), MACHINE)
    ]
    assert any("others may read" in text and "chmod 600" in text for text in told)
    with running(relay.start()):
        assert wide(relay.data_dir) == []
    told = [
        str(check) for check in check_folder("data_dir", relay.data_dir, Growth(0, ""), MACHINE)
    ]
    assert not any("others may read" in text for text in told)


@pytest.fixture
def _wide_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_wide_umask")
def test_a_store_and_all_that_sqlite_puts_beside_it_are_for_their_user_alone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pairs" / "pair"
    for _ in range(2):
        with contextlib.closing(Store.open(folder / "shop.db")):
            assert {path.name for path in folder.iterdir()} >= {"shop.db", "shop.db-wal"}
            SqliteMaxScn(folder / "max_scn.db", "shop").save(5, 1)
            assert wide(tmp_path) == []
        for path in folder.iterdir():
            path.chmod(0o666)  # as an earlier version left them


@pytest.mark.usefixtures("_wide_umask")
def test_a_folder_that_is_there_keeps_its_mode_and_a_file_is_narrowed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    make_folder(tmp_path / "there" / "new" / "newer")
    assert wide(tmp_path) == ["there"]
    (tmp_path / "there" / "a.db").touch(0o640)
    make_private(tmp_path / "there" / "a.db")
    assert wide(tmp_path) == ["there"]
