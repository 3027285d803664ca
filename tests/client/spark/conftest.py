"""One Spark session for all tests: starting one costs seconds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from databus.client.spark.session import STACK, job_session
from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.target import Target, open_target
from databus.demo.private_mariadb import HOST
from tests import PATIENCE_S
from tests.client.spark.changing_source import batch_of, change
from tests.conftest import END_S
from tests.leaks import take_stock, what_is_left

JAVA_OPTIONS = f"{STACK} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dderby.system.durability=test"
# What a kind of target needs for the whole session.
LASTING = {
    "delta": "delta_runtime",
    "delta+spark": "delta_on_executors",
    "iceberg": "iceberg_catalog",
    "iceberg+spark": "iceberg_on_executors",
    "mariadb": "mariadb",
    "postgres": "postgres",
}
TABLE_NUMBERS = itertools.count(1)
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark in this process: two cores, no page, each task tried four times."""
    folder: Path = tmp_path_factory.mktemp("spark")
    # Of workers that Spark starts without that setting: its JVM hands this on.
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", f"{PATIENCE_S:.0f}")
    session = job_session(
        "databus-tests",
        {
            "spark.master": "local[2,4]",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            # Its own is 15 s, in which a busy machine may not get both ends of it to run.
            "spark.python.authenticate.socketTimeout": f"{PATIENCE_S:.0f}s",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    # The first task in Python's workers opens a connection that stays for the session.
    session.sparkContext.parallelize([0], 1).map(str).collect()
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def delta_runtime(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let delta-rs start its threads, which it keeps for the process's life, before a test."""
    folder = str(tmp_path_factory.mktemp("delta"))
    rows = pa.table({"id": [1]})
    write_deltalake(folder, rows)
    table = DeltaTable(folder)
    merger = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_delete().execute()
    table.restore(0)
    table.to_pyarrow_table()


@pytest.fixture(scope="session")
def iceberg_catalog(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make a catalog in a file, and name it `lake` in pyiceberg's settings, also of processes."""
    folder = tmp_path_factory.mktemp("iceberg")
    given = {"TYPE": "sql", "URI": f"sqlite:///{folder}/lake.db", "WAREHOUSE": f"file://{folder}"}
    for name, value in given.items():
        os.environ[f"PYICEBERG_CATALOG__LAKE__{name}"] = value
    # It starts its threads, which it keeps for the process's life.
    os.environ["PYICEBERG_MAX_WORKERS"] = "1"
    target = open_target("iceberg:lake.tests.first", ["id"])
    batch = changes_of(batch_of([change("insert", 1, {"id": 1, "name": "x"})]), ["id"])
    for number in range(2):
        target.apply("app", number, batch)
    target.close()


@pytest.fixture(scope="session")
def iceberg_on_executors(iceberg_catalog: None, spark: SparkSession) -> None:
    """Run the session on whose executors `iceberg+spark:` merges."""


@pytest.fixture(scope="session")
def delta_on_executors(delta_runtime: None, spark: SparkSession) -> None:
    """Run the session on whose executors `delta+spark:` merges."""


@pytest.fixture(
    params=[
        *("delta", "delta+spark", "iceberg", "iceberg+spark", "sqlite", "mariadb"),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def target_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name a table of each kind of target that is not there yet; needs their plugins."""
    if request.param == "postgres":
        return f"{request.getfixturevalue('postgres_url')}#person"
    if request.param.startswith("iceberg"):
        return f"{request.param}:lake.tests.t{next(TABLE_NUMBERS)}"
    if request.param == "mariadb":
        server, name = (database := request.getfixturevalue("database")).server, database.name
        login = f"{server.user}:{server.password}@{HOST}:{server.port}"
        return f"mysql+pymysql://{login}/{name}?charset=utf8mb4#person"
    forms = {
        "delta": f"delta:{tmp_path}/person",
        "delta+spark": f"delta+spark:{tmp_path}/person",
        "sqlite": f"sqlite:///{tmp_path}/person.db#person",
    }
    return forms[str(request.param)]


@pytest.fixture
def opened(target_uri: str) -> Iterator[Callable[..., Target]]:
    """Open the same target again and again, as restarts do."""
    made: list[Target] = []

    def open_again(keys: Sequence[str] | None = ("id",), **options: Any) -> Target:
        made.append(open_target(target_uri, keys, **options))
        return made[-1]

    yield open_again
    for target in made:
        target.close()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Look as everywhere, but for what Spark's driver keeps open to the JVM as long as it runs.

    It opens a connection for each thread of the JVM that calls Python, and lets
    go of it when that thread is collected.
    """
    callspec = getattr(request.node, "callspec", None)
    kind = "" if callspec is None else callspec.params.get("target_uri")
    if kind in LASTING:
        # What lasts for the session is no test's, even if this one is the first to need it.
        request.getfixturevalue(LASTING[kind])
    has_spark = "spark" in request.fixturenames or str(kind).endswith("+spark")
    before = take_stock()
    yield
    if has_spark:
        now = take_stock()
        before = replace(before, threads=now.threads, descriptors=now.descriptors)
    left = what_is_left(before, END_S)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)
