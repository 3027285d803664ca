"""The list of servers, in every kind of store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from databus.leases.errors import LeaseError, LeaseUnavailableError
from databus.leases.file_records import FileRecords
from databus.servers.directory import SILENT_S, ServerDirectory
from databus.servers.entry import HeldSource, ServerEntry
from databus.servers.places import open_directory
from databus.servers.record_directory import RecordDirectory
from databus.servers.zookeeper_directory import ZookeeperDirectory
from tests import PATIENCE_S
from tests.zookeeper_server import PrivateZookeeper

pytest_plugins = ["tests.record_stores"]

A = ServerEntry(
    "a", "relay", "http://a:1", "cellar", 2, {"shop": HeldSource(("shop.orders",), 1, 9)}
)
B = ServerEntry("b", "bootstrap", "http://b:1", "", 0, {"shop": HeldSource(("shop.orders",))})


@pytest.fixture
def open_list(store_url: str) -> Iterator[Callable[[], ServerDirectory]]:
    """Return a function that opens the list as another process would; all are closed."""
    opened: list[ServerDirectory] = []

    def open_one() -> ServerDirectory:
        opened.append(open_directory(store_url))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def listed(directory: ServerDirectory) -> list[ServerEntry]:
    return sorted(directory.entries(), key=lambda one: one.instance)


def test_servers_come_change_and_go(open_list: Callable[[], ServerDirectory]) -> None:
    one, two, reader = open_list(), open_list(), open_list()
    assert listed(reader) == []
    one.put(A)
    two.put(B)
    assert listed(reader) == [A, B]
    changed = replace(A, connections=7)
    one.put(changed)
    assert listed(reader) == [changed, B]
    one.remove("a")
    one.remove("a")
    assert listed(reader) == [B]


def test_a_server_that_is_shut_out_by_nobody_comes_again(
    open_list: Callable[[], ServerDirectory],
) -> None:
    one, reader = open_list(), open_list()
    one.put(A)
    one.remove("a")
    one.put(A)
    assert listed(reader) == [A]


class Time:
    """A clock that a test moves."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_in_records_a_server_of_which_nothing_is_heard_is_listed_no_more(tmp_path: Path) -> None:
    time = Time()
    dead, alive, reader = (RecordDirectory(FileRecords(tmp_path), time) for _ in range(3))
    dead.put(A)
    alive.put(B)
    for _ in range(5):
        assert listed(reader) == [A, B]
        time.now_s += SILENT_S / 4
        alive.put(B)
    assert listed(reader) == [B]
    # Those that are alive have taken it out of the record.
    assert listed(RecordDirectory(FileRecords(tmp_path), time)) == [B]
    dead.put(A)
    assert listed(reader) == [A, B]


def test_in_records_a_reader_that_was_stopped_takes_no_server_for_dead(tmp_path: Path) -> None:
    time = Time()
    server, reader = (RecordDirectory(FileRecords(tmp_path), time) for _ in range(2))
    server.put(A)
    assert listed(reader) == [A]
    time.now_s += 100 * SILENT_S
    assert listed(reader) == [A]


@pytest.mark.parametrize("content", [b"{}", b'{"servers": {}, "crc": "0"}'])
def test_a_record_that_is_damaged_is_named_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "servers.json").write_bytes(content)
    directory = RecordDirectory(FileRecords(tmp_path))
    for use in (directory.entries, lambda: directory.put(A), lambda: directory.remove("a")):
        with pytest.raises(LeaseError, match=r"record servers in .* remove it"):
            use()


def test_in_zookeeper_a_server_goes_with_its_process_and_others_are_told(
    zookeeper: PrivateZookeeper,
) -> None:
    url = zookeeper.url("/coming-and-going")
    server, reader = ZookeeperDirectory(url), ZookeeperDirectory(url)
    told = threading.Event()
    assert reader.entries(lambda *_: told.set()) == []
    server.put(A)
    assert told.wait(PATIENCE_S)
    told.clear()
    assert reader.entries(lambda *_: told.set()) == [A]
    server.close()
    assert told.wait(PATIENCE_S)
    assert reader.entries() == []
    reader.close()


def test_in_zookeeper_a_node_that_is_no_entry_hides_no_other(zookeeper: PrivateZookeeper) -> None:
    directory = ZookeeperDirectory(zookeeper.url("/strange"))
    directory.put(A)
    directory._session.call("create", "/strange/servers/x", b"hello")
    assert directory.entries() == [A]
    directory.close()


def test_a_store_that_is_away_is_a_transient_error() -> None:
    directory = ZookeeperDirectory("zookeeper://127.0.0.1:1/x", timeout_s=0.1)
    for use in (directory.entries, lambda: directory.put(A), lambda: directory.remove("a")):
        with pytest.raises(LeaseUnavailableError, match=r"127\.0\.0\.1:1/x"):
            use()
    directory.close()
