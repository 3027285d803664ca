"""A restart of capture from a place, on a MariaDB that is written to: no gap unawares."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from databus.schemas.checkpoint import Checkpoint
from tests.mariadb_server import Database, connect
from tests.promises.running import RunningRelay, mysql_source, running, wait_until
from tests.relay.admin.test_api import post

pytestmark = pytest.mark.mariadb


@pytest.fixture
def relay(database: Database, tmp_path: Path) -> Iterator[RunningRelay]:
    with running(RunningRelay(tmp_path, mysql_source(database, tmp_path, catch_ups=0))) as relay:
        yield relay.start()


def restart(relay: RunningRelay, place: int | str) -> Any:
    (name,) = (one["name"] for one in relay.physical)
    here: Any = relay  # asked by its URL alone
    body = {"scn": str(place)} if isinstance(place, int) else {"at": place}
    return post(here, f"/physicalSources/{name}/restart", body)


def position(relay: RunningRelay, at: str) -> Any:
    (physical,) = relay.physical
    answer = relay.get(f"/api/v1/sources/{physical['sources'][0]}/position", at=at)
    assert answer.status == 200, answer.body
    return answer.json()


def log_of(relay: RunningRelay) -> Any:
    return relay.get("/controlSources/status").json()["shop"]["relayLog"]


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


@contextmanager
def written_to(database: Database) -> Iterator[None]:
    """Insert rows one after another, as long as the context lasts."""
    is_over = threading.Event()

    def write() -> None:
        with closing(connect(database.server)) as connection, connection.cursor() as cursor:
            for number in itertools.count(1):
                cursor.execute(f"INSERT INTO {database.name}.orders (id) VALUES ({number})")
                if is_over.wait(0.01):
                    return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.parametrize("form", ["scn", "binlog", "gtid", "time", "latest"])
def test_a_rewind_under_load_begins_at_the_place_and_keeps_the_former_log(
    database: Database, tmp_path: Path, form: str
) -> None:
    source = mysql_source(
        database, tmp_path, catch_ups=0, log={"dir": str(tmp_path / "log"), "sync_ms": 5}
    )
    relay = RunningRelay(tmp_path, source)
    with running(relay), written_to(database):
        relay.start()
        wait_until(lambda: len(relay.windows()) > 150, "windows")  # of more than a second
        before = relay.windows()
        scns = sorted(before)
        middle = position(relay, str(scns[100]))
        committed_at = datetime.fromtimestamp(middle["committedAt"], UTC)
        at = {
            "scn": f"scn:{scns[100]}",
            "binlog": f"binlog:{middle['binlog']}",
            "gtid": f"gtid:{middle['gtid']}",
            "time": f"time:{committed_at:%Y-%m-%dT%H:%M:%SZ}",
            "latest": "latest",
        }[form]
        begin = int(position(relay, at)["scn"])
        assert restart(relay, at).status == 200
        wait_until(lambda: max(relay.windows(), default=0) > scns[-1], "new windows")
        again, wanted = relay.windows(), [scn for scn in scns if scn > begin]
        if form == "latest":  # later than it was when `begin` was asked for
            assert min(again) > begin >= scns[-1]
        else:
            assert sorted(again)[: len(wanted)] == wanted
            assert [again[scn] for scn in wanted] == [before[scn] for scn in wanted]
            assert relay.stream(Checkpoint.at(begin)).status == 200
        wait_until(lambda: log_of(relay)["beganAnew"], "the log to begin anew")
        assert list(tmp_path.glob("log/aside/*/*.segment"))
        # Until ring and log are known to be one, the answer is to ask again.
        wait_until(lambda: relay.stream(Checkpoint.at(scns[0])).status != 503, "an answer")
        gone = relay.stream(Checkpoint.at(scns[0])).headers["x-dbus-error-cause"]
        assert gone == "com.linkedin.databus.core.ScnNotFoundException"


def test_a_place_that_the_log_does_not_have_is_refused_and_all_goes_on(
    relay: RunningRelay, database: Database
) -> None:
    insert(relay, database, 1, 2)
    before = relay.windows()
    for at in ("time:2100-01-01", "gtid:9-9-999999", "binlog:other.000001:4"):
        refused = restart(relay, at)
        assert (refused.status, b"nothing was changed" in refused.body) == (409, True), at
    assert relay.windows() == before
    insert(relay, database, 3)
    assert len(relay.windows()) == 3
