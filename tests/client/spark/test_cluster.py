"""Jobs on a cluster: a master and two workers as processes of their own, with other folders.

The package comes to the workers in three ways: installed in their Python, as a wheel by
`--py-files`, and within an environment as an archive.
"""

from __future__ import annotations

import json
import shutil
import site
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from databus.client.spark.session import job_session
from databus.schemas.errors import SettingsError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.client.spark.spark_servers import (
    QUIET,
    SPARK_HOME,
    StandaloneCluster,
    bare_python,
    clean_environment,
)
from tools.repository import ROOT

ROWS = 100
CONF = [word for key, value in QUIET.items() for word in ("--conf", f"{key}={value}")]
NOT_COPIED = shutil.ignore_patterns(
    ".*", "tests", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.c"
)
OFFLINE = ["--no-deps", "--no-index", "--quiet"]
STREAM = """
import json, sys
from pyspark.sql import SparkSession
import databus
from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.targets.target import open_target

relay, server, lake = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
target = open_target(f"delta:{lake}/orders")
changes = spark.readStream.format("databus").options(relays=relay, bootstrapServers=server)
query = (
    changes.load("shop.orders")
    .writeStream.foreachBatch(lambda batch, number: apply_changes(batch, number, target) and None)
    .trigger(availableNow=True)
    .option("checkpointLocation", f"{lake}/checkpoint")
    .start()
)
query.awaitTermination()
table = spark.read.format("databus").options(mode="table", bootstrapServers=server, partitions=2)
hosts = table.load("shop.orders").rdd.map(lambda _: __import__("os").getcwd()).distinct().collect()
print(json.dumps([databus.__file__, target.rows(spark).count(), hosts]))
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    with table_shop(tmp_path_factory.mktemp("clustered"), ROWS) as running:
        yield running


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without compiled modules, which takes two seconds."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=NOT_COPIED)
    command = [sys.executable, "-m", "pip", "wheel", *OFFLINE, "--no-build-isolation"]
    run([*command, "--wheel-dir", folder, folder / "source"], folder, {"DATABUS_COMPILE": "no"})
    (made,) = folder.glob("*.whl")
    return made


def run(command: list[object], folder: Path, more: Mapping[str, str]) -> str:
    """Run a command in a folder, with nothing of this process's Python; return what it prints."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=clean_environment() | dict(more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(python: Path, wheel: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "install", *OFFLINE, wheel]
    run(command, wheel.parent, {})


def ids_of(lake: Path) -> set[int]:
    return set(DeltaTable(str(lake)).to_pyarrow_table()["id"].to_pylist())


def test_a_command_runs_on_a_cluster_whose_python_has_the_package(
    cluster: StandaloneCluster,
    shop: TableShop,
    wheel: Path,
    tmp_path: Path,
    delta_runtime: None,
) -> None:
    python, lake = bare_python(tmp_path / "python", site.getsitepackages()), tmp_path / "orders"
    install(python, wheel)
    asked = ["shop.orders", f"delta:{lake}", "--relay", shop.relay.url]
    follow = ["--bootstrap", shop.server, "--checkpoint", tmp_path / "c", "--available-now"]
    command = [python.with_name("databus"), "spark", "sync", *asked, *follow, *CONF]
    run(command, tmp_path, {"SPARK_MASTER": cluster.url})
    assert len(ids_of(lake)) == ROWS
    on_cluster = {**QUIET, "spark.master": cluster.url}
    defaults = "".join(f"{key} {value}\n" for key, value in on_cluster.items())
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    given = ["--settings", shop.relay.file, "--relay", shop.relay.url, "--json"]
    command = [python.with_name("databus"), "spark", "verify", *asked[:2], *given]
    found = json.loads(run(command, tmp_path, {"SPARK_CONF_DIR": str(tmp_path)}))
    assert (found["rows"], found["missing"]) == (ROWS, 0)


def test_a_wheel_that_py_files_bring_reaches_tasks_and_the_processes_that_plan(
    cluster: StandaloneCluster, shop: TableShop, wheel: Path, tmp_path: Path
) -> None:
    python = bare_python(tmp_path / "python", site.getsitepackages())
    job = tmp_path / "job.py"
    job.write_text(STREAM)
    submit = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url, *CONF]
    arguments = [shop.relay.url, shop.server, tmp_path]
    told = run(
        [*submit, "--py-files", wheel, job, *arguments], tmp_path, {"PYSPARK_PYTHON": str(python)}
    )
    imported, rows, folders = json.loads(told.splitlines()[-1])
    assert ".whl/" in imported
    assert rows == len(shop.place.run("SELECT id FROM orders"))
    # In folders of executors, in those of two workers.
    assert {Path(one).parents[2] for one in folders} == {cluster.folder}
    assert tmp_path not in {Path(one) for one in folders}


def test_an_environment_comes_as_an_archive_and_the_driver_runs_it_too(
    cluster: StandaloneCluster, shop: TableShop, wheel: Path, tmp_path: Path, delta_runtime: None
) -> None:
    python, lake = bare_python(tmp_path / "environment", site.getsitepackages()), tmp_path / "lake"
    install(python, wheel)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "environment", ".")
    command = ["./environment/bin/databus", "spark", "load", "shop.orders", f"delta:{lake}"]
    on = ["--bootstrap", shop.server, "--master", cluster.url, *CONF]
    shipped = ["--conf", "spark.archives=environment.tar.gz#environment"]
    run([*command, *on, *shipped], tmp_path, {"PYSPARK_PYTHON": "./environment/bin/python"})
    assert len(ids_of(lake)) == len(shop.place.run("SELECT id FROM orders"))


def test_an_environment_that_the_driver_has_not_unpacked_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    with pytest.raises(SettingsError, match=r"Unpack the archive here \(mkdir environment && tar "):
        job_session("refused")
