"""The short form: a Spark job from nothing into Delta tables, killed with its workers."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.spark_torture.run import WORKERS
from databus.demo.processes import child_environment, python_module
from tools.repository import ROOT


@pytest.mark.mariadb
def test_a_spark_job_is_killed_from_snapshot_to_stream_and_its_tables_equal_the_source() -> None:
    shape = ("--rows", 4000, "--kills", 2, "--seed", 1, "--rate", 50, "--holds-on")
    # Not in this process: delta-rs, which compares the tables, keeps its threads for ever.
    command = python_module("benchmarks.spark_torture", *shape, "--master", WORKERS)
    ended = subprocess.run(
        command, cwd=ROOT, env=child_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.strip().splitlines()
    assert lines[0] == "seed 1"
    assert lines[-1].endswith(": no problems")
    assert "kills: 1 driver, 1 executor;" in lines[-1]
