"""One Spark session for all tests: starting one costs seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from databus.client.spark.session import job_session

JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dderby.system.durability=test"
CHECKPOINT_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark in this process: two cores, no page, each task tried four times."""
    folder: Path = tmp_path_factory.mktemp("spark")
    session = job_session(
        "databus-tests",
        {
            "spark.master": "local[2,4]",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
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
