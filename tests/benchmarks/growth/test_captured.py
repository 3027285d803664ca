"""The CPU of a relay is measured from an open stream to the last transaction."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.capture.log import DATABASE, repeated, server_with_log, session_of
from benchmarks.growth.captured import capture_cpu, end_scn, log_from, phases_cpu, start_cpu
from benchmarks.growth.processes import apart, cpu_seconds


def _burn(seconds: float) -> tuple[float, float]:
    """Use so much CPU time; return what two clocks say of this process."""
    from os import getpid

    while time.process_time() < seconds:
        pass
    return time.process_time(), cpu_seconds(getpid())


def test_the_cpu_time_of_another_process_is_what_that_process_counts() -> None:
    own, seen = apart(_burn, 0.3)
    assert seen == pytest.approx(own, abs=0.1)


@pytest.mark.mariadb
def test_a_log_is_captured_from_its_begin_and_while_it_is_written(tmp_path: Path) -> None:
    with server_with_log("FULL") as server, session_of(server) as cursor:
        source = f"{DATABASE}.rows"
        cursor.execute(f"CREATE TABLE {source} (id INT PRIMARY KEY)")
        log = log_from(server, cursor, [source])
        insert = f"INSERT INTO {source} VALUES (i)"
        cursor.execute(repeated(insert, 100))
        assert capture_cpu(log, end_scn(cursor)) > 0
        first, second = phases_cpu(log, [repeated(insert, n, n) for n in (100, 200)], tmp_path)
        assert first > 0
        assert second > 0
        assert start_cpu(log, tmp_path) > 0
        cursor.execute(f"SELECT COUNT(*) FROM {source}")
        assert cursor.fetchall() == ((400,),)
