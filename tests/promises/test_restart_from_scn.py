"""A restart of capture from an SCN, on a MariaDB that is written to: nobody has a gap unawares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.schemas.checkpoint import Checkpoint
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, running, wait_until
from tests.relay.admin.test_api import post

pytestmark = pytest.mark.mariadb


@pytest.fixture
def relay(database: Database, tmp_path: Path) -> Iterator[RunningRelay]:
    with running(RunningRelay(tmp_path, mysql_source(database, tmp_path))) as relay:
        yield relay.start()


def restart(relay: RunningRelay, scn: int) -> Any:
    (name,) = (one["name"] for one in relay.physical)
    here: Any = relay  # asked by its URL alone
    return post(here, f"/physicalSources/{name}/restart", {"scn": str(scn)})


def insert(relay: RunningRelay, database: Database, *ids: int) -> None:
    for number in ids:
        count = len(relay.windows())
        database.run(f"INSERT INTO {database.name}.orders (id, note) VALUES ({number}, 'x')")
        wait_until(lambda c=count: len(relay.windows()) > c, "the window")  # type: ignore[misc]


def test_windows_after_the_scn_come_again_and_those_before_it_are_gone(
    relay: RunningRelay, database: Database
) -> None:
    insert(relay, database, *range(1, 9))
    before = relay.windows()
    scns = sorted(before)
    assert restart(relay, scns[4]).status == 200
    wait_until(lambda: len(relay.windows()) == 3, "the windows")
    assert relay.windows() == {scn: before[scn] for scn in scns[5:]}
    gone = relay.stream(Checkpoint.at(scns[2]))
    assert gone.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"
    assert relay.stream(Checkpoint.at(scns[4])).status == 200
    insert(relay, database, 100)
    assert len(relay.windows()) == 4


def test_an_scn_of_a_log_that_there_is_not_is_refused_and_all_goes_on(
    relay: RunningRelay, database: Database
) -> None:
    insert(relay, database, 1, 2)
    before = relay.windows()
    refused = restart(relay, (4000 << 32) | 4)
    assert (refused.status, b"nothing was changed" in refused.body) == (409, True)
    assert relay.windows() == before
    insert(relay, database, 3)
    assert len(relay.windows()) == 3
