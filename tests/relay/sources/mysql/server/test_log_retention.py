"""What is left of the server's log in front of capture: the rule, and real servers."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.log_status import Holding, LogStatus
from databus.relay.sources.mysql.server.log_probe import MysqlLogProbe
from databus.relay.sources.mysql.server.log_retention import (
    Keeping,
    Place,
    ServerLog,
    keeping_of,
    log_status_of,
)
from databus.relay.sources.mysql.server.start_position import LogFile
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceError, SourceUnavailableError
from databus.schemas.scn import BinlogPosition
from tests import PATIENCE_S
from tests.fetched_servers import needed
from tests.mariadb_server import connect
from tests.mysql_server import PrivateMySQL
from tests.promises.running import wait_until
from tests.relay.sources.mysql.reading import settings_for
from tests.relay.sources.stalling import StalledServer
from tools.fetch_test_servers import NEWER_MARIADB

pytest_plugins = ["tests.mariadb", "tests.mysql"]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
NOW_S = 1_800_000_000.0
FILES = [LogFile("b.000003", 1000), LogFile("b.000004", 1000), LogFile("b.000005", 500)]
KEPT_10_DAYS = Keeping(10 * DAY_S)


def status(
    file: int,
    offset: int,
    hours_ago: float | None,
    keeping: Keeping = KEPT_10_DAYS,
    warning_hours: float = 24.0,
) -> LogStatus:
    timestamp_s = 0.0 if hours_ago is None else NOW_S - hours_ago * HOUR_S
    place = Place(BinlogPosition(0, file, offset), timestamp_s)
    return log_status_of(place, ServerLog(FILES, keeping, NOW_S), warning_hours)


@pytest.mark.parametrize(
    ("place", "keeping", "hours_left"),
    [
        # The file that is written is not purged, however old what was read in it.
        ((5, 500, 500.0), KEPT_10_DAYS, 240.0),
        ((5, 100, 500.0), KEPT_10_DAYS, 240.0),
        ((5, 500, 1.0), Keeping(), math.inf),
        # Any other: as long as the expiry says, since the last that was read of it.
        ((4, 400, 100.0), KEPT_10_DAYS, 140.0),
        ((4, 1000, 100.0), KEPT_10_DAYS, 140.0),
        ((3, 400, 300.0), KEPT_10_DAYS, 0.0),
        ((4, 400, 1000.0), Keeping(), math.inf),
        ((4, 400, None), KEPT_10_DAYS, None),
        ((4, 400, None), Keeping(), math.inf),
        # 1100 bytes came in 11 hours, 1500 are held from there on, and 500 more have room.
        ((4, 400, 11.0), Keeping(most_bytes=2000), 5.0),
        ((3, 400, 21.0), Keeping(most_bytes=2000), 0.0),
        ((4, 400, 11.0), Keeping(10 * DAY_S, 2000), 5.0),
        ((4, 400, 239.0), Keeping(10 * DAY_S, 1 << 40), 1.0),
        ((4, 400, -5.0), KEPT_10_DAYS, 240.0),  # a session had set its clock ahead
    ],
)
def test_the_hours_left_count_from_the_last_that_was_read(
    place: tuple[int, int, float | None], keeping: Keeping, hours_left: float | None
) -> None:
    found = status(*place, keeping)
    assert found.hours_left == (None if hours_left is None else pytest.approx(hours_left))


@pytest.mark.parametrize(
    ("place", "behind_bytes", "behind_s"),
    [
        ((5, 500, 3.0), 0, 0.0),
        ((5, 400, 3.0), 100, 3 * HOUR_S),
        ((4, 400, 3.0), 1100, 3 * HOUR_S),
        ((3, 4, None), 2496, None),
    ],
)
def test_how_far_capture_is_behind_is_counted_to_the_end_of_the_log(
    place: tuple[int, int, float | None], behind_bytes: int, behind_s: float | None
) -> None:
    found = status(*place)
    assert (found.behind_bytes, found.behind_s) == (behind_bytes, behind_s)


@pytest.mark.parametrize(
    ("hours_ago", "keeping", "warning_hours", "holding"),
    [
        (215.0, KEPT_10_DAYS, 24.0, Holding.HELD),
        (217.0, KEPT_10_DAYS, 24.0, Holding.NEAR_PURGE),
        (217.0, KEPT_10_DAYS, 12.0, Holding.HELD),
        (239.9, KEPT_10_DAYS, 0.0, Holding.HELD),
        # Kept for less than the setting: half of it, or each rotation would be a warning.
        (2.0, Keeping(6 * HOUR_S), 24.0, Holding.HELD),
        (4.0, Keeping(6 * HOUR_S), 24.0, Holding.NEAR_PURGE),
        (11.0, Keeping(most_bytes=2000), 4.0, Holding.HELD),
        (11.0, Keeping(most_bytes=2000), 6.0, Holding.NEAR_PURGE),
    ],
)
def test_a_purge_that_is_near_is_a_warning(
    hours_ago: float, keeping: Keeping, warning_hours: float, holding: Holding
) -> None:
    found = status(4, 400, hours_ago, keeping, warning_hours)
    assert found.holding is holding
    assert bool(found.warning) is (holding is not Holding.HELD)


def test_the_warning_says_which_file_how_long_and_what_to_do() -> None:
    text = status(4, 400, 230.0).warning
    assert "may purge b.000004 in 10.0 hours" in text
    assert "1100 bytes behind" in text
    assert "keeps for 240 h" in text


@pytest.mark.parametrize(("file", "offset"), [(2, 900), (6, 4), (5, 501), (4, 3)])
def test_what_is_gone_is_told_with_both_ends(file: int, offset: int) -> None:
    found = status(file, offset, 1.0)
    assert found.holding is Holding.GONE
    assert f"file number {file}, offset {offset}" in found.warning
    assert "reaches from b.000003:4 to b.000005:500" in found.warning
    assert (found.behind_bytes, found.hours_left) == (None, None)


@pytest.mark.parametrize(
    ("file", "offset", "ends_before"),
    [(2, 900, False), (5, 500, False), (5, 501, True), (4, 1001, True), (6, 4, True)],
)
def test_a_log_that_ends_before_the_place_is_doubted_and_one_that_was_purged_is_not(
    file: int, offset: int, *, ends_before: bool
) -> None:
    found = status(file, offset, 1.0)
    assert bool(found.doubt) is ends_before
    assert ("was reset or replaced" in found.warning) is ends_before
    assert ("may be the last" in found.warning) is (file == 2)


@pytest.mark.parametrize(
    ("variables", "keeping"),
    [
        ({}, Keeping()),
        ({"binlog_expire_logs_seconds": "2592000", "expire_logs_days": "0"}, Keeping(30 * DAY_S)),
        ({"binlog_expire_logs_seconds": "0", "expire_logs_days": "3"}, Keeping(3 * DAY_S)),
        # MariaDB says the same twice.
        (
            {"binlog_expire_logs_seconds": "43200", "expire_logs_days": "0.500000"},
            Keeping(DAY_S / 2),
        ),
        (
            {"binlog_expire_logs_seconds": "60", "binlog_expire_logs_auto_purge": "OFF"},
            Keeping(),
        ),
        ({"max_binlog_total_size": "1048576"}, Keeping(0, 1 << 20)),
        ({"expire_logs_days": "?"}, Keeping()),
    ],
)
def test_what_a_server_keeps_is_in_variables_of_its_version(
    variables: dict[str, str], keeping: Keeping
) -> None:
    assert keeping_of(variables) == keeping


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("newer_mariadb", marks=pytest.mark.newer_mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[PrivateMariaDB]:
    """A server of the test's own, of each kind, that keeps its log for ten days."""
    options = {"binlog-expire-logs-seconds": 864000}
    if request.param == "mysql":
        new_mysql: Callable[..., PrivateMySQL] = request.getfixturevalue("new_mysql")
        made: PrivateMariaDB = new_mysql(options=options)
    elif request.param == "newer_mariadb":
        basedir = needed(NEWER_MARIADB, NEWER_MARIADB.find())
        made = PrivateMariaDB(basedir=basedir, options={"ssl": "OFF", **options})
    else:
        made = PrivateMariaDB(options=options)
    with made:
        yield made


def run(server: PrivateMariaDB, *statements: str) -> None:
    connection = connect(server)
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()


def test_a_real_log_is_held_near_its_purge_and_gone(server: PrivateMariaDB, tmp_path: Path) -> None:
    run(server, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
    probe = MysqlLogProbe(settings_for(server, tmp_path, ["d.t"]))
    at_start = probe._ask()
    place = BinlogPosition(0, at_start.files[-1].number, 4).to_scn()

    def probe_from(hours_ago: float) -> LogStatus:
        newest = Newest(place, int((at_start.now_s - hours_ago * HOUR_S) * 1e9))
        return probe.probe(lambda: newest)

    first = probe_from(1.0)
    assert (first.holding, first.hours_left) == (Holding.HELD, 240.0)
    assert first.behind_bytes is not None
    assert first.behind_bytes == at_start.files[-1].size_bytes - 4
    assert first.behind_s == pytest.approx(HOUR_S, abs=60)

    run(server, "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (1)", "FLUSH BINARY LOGS")
    assert probe_from(1.0).hours_left == pytest.approx(239.0, abs=0.1)
    near = probe_from(230.0)
    assert near.holding is Holding.NEAR_PURGE
    assert near.hours_left == pytest.approx(10.0, abs=0.1)

    last = f"binlog.{at_start.files[-1].number + 2:06}"

    def is_gone() -> bool:
        # MariaDB keeps a file that it has not yet noted, beside this, to be of no use any more.
        run(server, f"PURGE BINARY LOGS TO '{last}'")
        return probe_from(1.0).holding is Holding.GONE

    wait_until(is_gone, "the files to be gone", lambda: probe_from(1.0))
    gone = probe_from(1.0)
    # MariaDB may keep one more, in which a transaction is not on disk for sure.
    assert re.search(rf"reaches from binlog\.\d+:4 to {last}:\d+", gone.warning)
    assert probe.probe(lambda: None) == LogStatus()


def test_a_real_log_that_was_reset_is_doubted_also_where_it_is_as_long_as_it_was(
    server: PrivateMariaDB, tmp_path: Path
) -> None:
    run(server, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "RESET MASTER")
    run(server, "INSERT INTO d.t VALUES (1)")
    probe = MysqlLogProbe(settings_for(server, tmp_path, ["d.t"]))
    end = probe._ask().files[-1]
    newest = Newest(BinlogPosition(0, end.number, end.size_bytes).to_scn(), 1)
    assert probe.probe(lambda: newest).behind_bytes == 0

    run(server, "RESET MASTER", "INSERT INTO d.t VALUES (2)")
    assert probe._ask().files == [end]
    same = probe.probe(lambda: newest)
    assert "a RESET statement was given to the server" in same.doubt
    assert (same.behind_bytes, same.behind_s) == (None, None)
    assert probe.probe(lambda: newest).doubt == ""  # told once: the log was opened again

    run(server, "RESET MASTER")
    shorter = probe.probe(lambda: newest)
    assert (shorter.holding, shorter.behind_bytes) == (Holding.GONE, None)
    assert "it ends before that place" in shorter.doubt


@pytest.mark.mariadb
def test_what_capture_has_just_passed_is_not_called_gone(
    mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    probe = MysqlLogProbe(settings_for(mariadb, tmp_path, ["d.t"]))
    file = probe._ask().files[-1]
    places = iter([(file.number - 1, 4), (file.number, 4)])

    def newest() -> Newest:
        number, offset = next(places)
        return Newest(BinlogPosition(0, number, offset).to_scn(), 1)

    assert probe.probe(newest).holding is Holding.HELD


@pytest.mark.mariadb
def test_a_place_of_another_server_is_not_looked_for(
    mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    probe = MysqlLogProbe(settings_for(mariadb, tmp_path, ["d.t"], epoch=1))
    assert probe.probe(lambda: Newest(BinlogPosition(0, 1, 4).to_scn(), 1)) == LogStatus()


def test_a_server_that_is_not_there_is_an_error_of_the_source(tmp_path: Path) -> None:
    with StalledServer() as server:
        settings = server.settings(tmp_path)
    with pytest.raises(SourceUnavailableError, match="connecting"):
        MysqlLogProbe(settings).probe(lambda: Newest(1 << 32 | 4, 1))


def test_a_look_at_a_server_that_does_not_answer_can_be_cancelled(tmp_path: Path) -> None:
    errors: list[SourceError] = []

    def run(probe: MysqlLogProbe) -> None:
        try:
            probe.probe(lambda: Newest(1 << 32 | 4, 1))
        except SourceError as error:
            errors.append(error)

    with StalledServer() as server:
        probe = MysqlLogProbe(server.settings(tmp_path))
        thread = threading.Thread(target=run, args=(probe,))
        thread.start()
        assert server.was_asked.wait(PATIENCE_S)
        probe.cancel()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert len(errors) == 1
