"""The short form: a group's processes are killed, frozen and cut off, its coordinator killed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.cluster_torture.run import main


@pytest.mark.mariadb
def test_a_group_is_killed_and_frozen_and_nothing_is_lost_or_has_two_owners() -> None:
    shape = ("--processes", "3", "--partitions", "8", "--kills", "2", "--stops", "1")
    times = ("--ttl", "2", "--rate", "50", "--cuts", "1", "--seed", "3", "--zookeeper", "1")
    result = CliRunner().invoke(main, [*shape, *times])
    assert result.exit_code == 0, f"{result.output}\n{result.exception}"
    lines = result.stdout.strip().splitlines()
    assert lines[0] == "seed 3"
    assert "5 faults" in lines[-1]
    assert lines[-1].endswith(": no problems")
