"""A process that is killed while it applies a batch leaves nothing half done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from databus.client.spark.targets.target import Target
from tests.client.spark.targets.killed_apply import APP, BATCHES, a_source
from tests.client.spark.targets.target_rows import rows_of_target
from tools.repository import ROOT

pytest_plugins = ["tests.mariadb", "tests.postgres"]


@pytest.mark.parametrize("target_uri", ["delta", "sqlite"], indirect=True)
def test_a_table_equals_its_source_after_kills_in_mid_apply_and_replays(
    target_uri: str, opened: Callable[..., Target]
) -> None:
    seed = 5
    command = [
        sys.executable,
        "-m",
        "tests.client.spark.targets.killed_apply",
        target_uri,
        str(seed),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert int(done.stdout) > 0
    target, source = opened(), a_source(seed)
    assert {row["id"]: row["name"] for row in rows_of_target(target)} == {
        key: name for key, (name, _scn) in source.rows.items()
    }
    assert (target.applied(APP), target.positions()) == (BATCHES - 1, {"shop": source.scn})
