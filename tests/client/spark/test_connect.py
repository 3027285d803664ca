"""Spark Connect: the driver is another process, and so is the function of foreachBatch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.spark_servers import ConnectServer, clean_environment
from tools.repository import ROOT

ROWS = 100


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("connected"), ROWS) as running:
        yield running


@pytest.fixture(scope="module")
def told(shop: TableShop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of the job."""
    folder = tmp_path_factory.mktemp("connect")
    with ConnectServer(folder / "server") as server:
        command = [sys.executable, "-m", "tests.client.spark.connect_job", server.url]
        done = subprocess.run(
            [*command, shop.relay.url, shop.server, str(folder)],
            cwd=ROOT,
            env=clean_environment() | {"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + server.server.log.read_text()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_tables_streams_and_loads_work_on_connect(told: dict[str, Any]) -> None:
    assert told["table"] == ROWS
    rows, last_batch = told["applied"]
    assert rows == ROWS
    assert last_batch >= 0
    assert told["loaded"] == ROWS
    physical, rung = told["heard"]
    assert physical == "shop"
    assert rung in ("relay", "snapshot")


def test_a_query_without_an_app_id_is_told_what_to_give(told: dict[str, Any]) -> None:
    assert (
        "on Spark Connect a batch does not tell its query: give apply_changes app_id"
        in (told["without_app"])
    )


def test_what_needs_the_driver_in_its_process_is_refused_in_one_sentence(
    told: dict[str, Any],
) -> None:
    sync, proof = told["refused"]
    needs = "needs Spark's driver in its own process, which a session of Spark Connect has not"
    assert sync.startswith(f"sync {needs}: give a master")
    assert proof.startswith(f"the check of a checkpoint's target {needs}")
