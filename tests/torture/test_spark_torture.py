"""The short form: a Spark job from nothing into Delta tables, killed with its workers."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.spark_torture.run import WORKERS, main


@pytest.mark.mariadb
def test_a_spark_job_is_killed_from_snapshot_to_stream_and_its_tables_equal_the_source() -> None:
    shape = ("--rows", "4000", "--kills", "2", "--seed", "1", "--rate", "50", "--holds-on")
    result = CliRunner().invoke(main, [*shape, "--master", WORKERS])
    assert result.exit_code == 0, result.output
    lines = result.stdout.strip().splitlines()
    assert lines[0] == "seed 1"
    assert lines[-1].endswith(": no problems")
    assert "kills: 1 driver, 1 executor;" in lines[-1]
