"""Targets of every kind, and functions that follow altered tables into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from databus.client.spark.jobs.load import load
from databus.client.spark.session import job_session
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from tests.bootstrap.altering import Altered
from tests.client.spark.targets.target_job import TargetJob
from tests.mariadb_server import fresh_database
from tests.postgres_server import PrivatePostgres, fresh_url
from tools.fetch_test_servers import POSTGRES, fetch

KINDS = ("delta", "sqlite", "mariadb", "postgres")
_SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
}


@contextmanager
def session() -> Iterator[SparkSession]:
    """Run Spark, for loads."""
    spark = job_session("ddl-targets", _SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def places(kinds: Sequence[str], folder: Path) -> Iterator[Mapping[str, str]]:
    """Return the URI prefix of a target of each kind, to which a table's name is added."""
    found = {"delta": f"delta:{folder}/delta-", "sqlite": f"sqlite:///{folder}/targets.db#"}
    with ExitStack() as stack:
        if "mariadb" in kinds:
            server = stack.enter_context(PrivateMariaDB())
            name = stack.enter_context(fresh_database(server)).name
            login = f"{server.user}:{server.password}@{HOST}:{server.port}"
            found["mariadb"] = f"mysql+pymysql://{login}/{name}?charset=utf8mb4#"
        if "postgres" in kinds:
            postgres = stack.enter_context(PrivatePostgres(fetch(POSTGRES)))
            found["postgres"] = f"{stack.enter_context(fresh_url(postgres))}#"
        yield {kind: found[kind] for kind in kinds}


def follower(
    pair: Altered, source: str, at: Mapping[str, str], spark: SparkSession | None
) -> TargetJob:
    """Return a function that updates a target of each kind from a source."""
    given = {"relays": pair.relay.url, "bootstrapServers": pair.url}
    table = source.partition(".")[2]

    def load_again(one: str, target: str) -> int:
        assert spark is not None
        pair.wait_until_served()
        return load(spark, one, target, bootstrap_servers=[pair.url]).scn

    uris = {kind: f"{begin}{table}" for kind, begin in at.items()}
    options = {**given, "sources": source, "start": "beginning"}
    return TargetJob(options, uris, None if spark is None else load_again)
