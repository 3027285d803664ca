"""What `databus doctor` says of a coordinator, on every kind of store."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from databus.demo.processes import free_port
from databus.doctor.checks import Verdict
from databus.doctor.coordinator import RECORD, check_ages, check_coordinator
from databus.doctor.machine import MACHINE
from databus.leases.places import open_records
from databus.servers.entry import HeldSource, ServerEntry
from databus.servers.places import open_directory

pytest_plugins = ["tests.record_stores"]

NOW_S = 1_800_000_000.0
RELAY = ServerEntry(
    "a", "relay", "http://a:1", "cellar", 2, {"shop": HeldSource(("shop.orders",), 1, 9)}, NOW_S
)


def test_one_that_can_be_used_says_whom_it_lists(store_url: str) -> None:
    with closing(open_directory(store_url)) as directory:
        directory.put(replace(RELAY, renewed=time.time()))
        (check,), (found,) = check_coordinator(store_url, MACHINE, writes=True)
    assert check.verdict is Verdict.OK
    assert "can be read and written, and lists 1 servers: relay http://a:1 in room cellar" in (
        check.text
    )
    assert found.url == "http://a:1"
    with closing(open_records(store_url)) as records:
        assert records.read(RECORD) is not None


def test_one_that_is_only_read_gets_nothing_written(store_url: str) -> None:
    (check,), found = check_coordinator(store_url, MACHINE, writes=False)
    assert (check.verdict, found) == (Verdict.OK, [])
    assert check.text.endswith("can be read, and lists no server")
    with closing(open_records(store_url)) as records:
        assert records.read(RECORD) is None


def test_one_that_cannot_be_used_is_an_error_with_a_way_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    texts = {
        f"file:{tmp_path}/file/servers": "give a folder of this user's own",
        f"mysql+pymysql://user:secret@127.0.0.1:{free_port()}/x": "is it started, is the URL right",
        "nowhere": "give file:FOLDER, zookeeper://HOST:PORT or a URL of SQLAlchemy",
    }
    for url, text in texts.items():
        (check,), found = check_coordinator(url, MACHINE, writes=True)
        assert (check.verdict, found) == (Verdict.ERROR, [])
        assert text in check.text
        assert "secret" not in check.text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (60.0, "was last heard of 60 s ago"),
        (-60.0, "its clock is 60 s ahead of this machine's: run NTP on both"),
        (12.0, ""),
        (0.0, ""),
        (-2.0, ""),
    ],
)
def test_an_entry_of_another_time_is_a_dead_server_or_a_wrong_clock(
    age_s: float, text: str
) -> None:
    found = check_ages([RELAY], NOW_S + age_s)
    assert [check.verdict for check in found] == [Verdict.WARNING] * bool(text)
    assert all(text in check.text and check.subject.endswith("http://a:1") for check in found)
