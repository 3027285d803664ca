"""Commands that start Spark: its settings, and what of its failures is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from databus.client.spark import session
from databus.client.spark.cli import session_options
from databus.client.spark.cli.spark import spark as group
from tests import PATIENCE_S
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.promises.running import wait_until
from tests.spark_servers import QUIET
from tools.repository import ROOT

CONF = [word for key, value in QUIET.items() for word in ("--conf", f"{key}={value}")]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, delta_runtime: None) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("killed"), 50) as running:
        yield running


def test_master_and_settings_of_the_command_line_reach_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: dict[str, str] = {}

    class RefusedError(Exception):
        pass

    def take(name: str, settings: Mapping[str, str]) -> None:
        found.update(settings)
        raise RefusedError

    monkeypatch.setattr(session_options, "job_session", take)
    monkeypatch.setattr(session_options, "set_up_logs", lambda _: None)
    conf = ["--conf", "spark.executor.memory=4g", "--conf", "spark.driver.extraJavaOptions=-Xss9m"]
    done = CliRunner().invoke(
        group,
        ["load", "shop.orders", "delta:x", "--bootstrap", "http://b", *conf],
        env={"SPARK_MASTER": "spark://there:7077"},
    )
    assert isinstance(done.exception, RefusedError)
    assert found["spark.master"] == "spark://there:7077"
    assert found["spark.executor.memory"] == "4g"
    options = found["spark.driver.extraJavaOptions"]
    assert options.startswith("-Xss9m -Dlog4j2.configurationFile=file:")


def test_a_setting_that_is_not_one_of_spark_is_refused() -> None:
    given = ["load", "shop.orders", "delta:x", "--conf", "executor.memory=4g"]
    done = CliRunner().invoke(group, given)
    assert done.exit_code == 2
    assert "--conf executor.memory=4g: must be spark.…=VALUE" in done.output


def test_the_file_of_defaults_is_added_to_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text("# ours\nspark.driver.extraJavaOptions  -Da=b -Xmx3g\nspark.master=local[3]\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    known = session._defaults()
    assert known == {
        "spark.driver.extraJavaOptions": "-Da=b -Xmx3g",
        "spark.master": "local[3]",
    }
    assert session._with_stack(known["spark.driver.extraJavaOptions"]) == "-Xss8m -Da=b -Xmx3g"
    assert session._with_stack("-Xss16m") == "-Xss16m"


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
    assert [line for line in lines if line.startswith("\tat ")] == []
