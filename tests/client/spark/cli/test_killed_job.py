"""A job whose workers are killed, and then its JVM: what it does, and what is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests import PATIENCE_S
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.spark_servers import QUIET
from tests.promises.running import wait_until
from tools.repository import ROOT

CONF = [word for key, value in QUIET.items() for word in ("--conf", f"{key}={value}")]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, delta_runtime: None) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("killed"), 50) as running:
        yield running


def ids_in(folder: Path) -> set[int]:
    try:
        return set(DeltaTable(str(folder)).to_pyarrow_table()["id"].to_pylist())
    except TableNotFoundError:
        return set()


def kill(parent: psutil.Process, what: str) -> None:
    """Kill the children of a kind."""
    for child in parent.children(recursive=what != "java"):
        if child.name().startswith(what):
            child.send_signal(signal.SIGKILL)


def test_killed_workers_restart_a_job_and_the_end_of_its_jvm_ends_it_with_a_line(
    shop: TableShop, tmp_path: Path
) -> None:
    lake, words = tmp_path / "lake", ["--relay", shop.relay.url, "--bootstrap", shop.server]
    command = [sys.executable, "-m", "databus.cli.main", "spark", "sync", "shop.orders"]
    more = [f"delta:{lake}", *words, "--checkpoint", str(tmp_path / "c"), "--every", "0.2"]
    with (tmp_path / "err").open("w") as err:
        job = subprocess.Popen(
            [*command, *more, *CONF, "--master", "local[2]"],
            cwd=ROOT,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
    said = tmp_path / "err"
    try:
        running = psutil.Process(job.pid)
        wait_until(lambda: job.poll() is not None or len(ids_in(lake)) == 50, "the rows")
        kill(running, "python")
        shop.place.run("INSERT INTO orders VALUES (7000, 'new')")
        wait_until(lambda: job.poll() is not None or 7000 in ids_in(lake), "a row", said.read_text)
        assert job.poll() is None, said.read_text()
        assert "the query is restarted in" in said.read_text()
        kill(running, "java")
        assert job.wait(PATIENCE_S) == 1
    finally:
        job.kill()
        job.wait()
    lines = said.read_text().splitlines()
    assert lines[-1].startswith("Error: consumer failed in window")
    assert "Spark's own process (the JVM of the driver) has ended" in lines[-1]
    # Spark's own traces are not printed, but by the restart's line of the log.
    assert [line for line in lines if line.startswith(("\tat ", "Traceback"))] == []
