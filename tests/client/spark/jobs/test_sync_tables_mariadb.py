"""`sync_tables` of a MariaDB whose tables come, change and go while the job runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow.compute as pc
import pytest
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark.consuming import apply as apply_module
from databus.client.spark.consuming.split import versions_in
from databus.client.spark.jobs import sync_tables as job_module, synced_tables
from databus.client.spark.jobs.sync_tables import TablesProgress, sync_tables
from databus.client.spark.targets.executors import Digest, digest_of
from databus.client.spark.targets.target import open_target
from tests import PATIENCE_S
from tests.client.spark.targets.target_rows import table_of
from tests.mariadb_server import Database
from tests.promises.running import wait_until
from tests.standalone.nodes import Node, made

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb


class Lake:
    """A running `databus run` of a database, and the targets of its tables."""

    def __init__(self, node: Node, database: Database, spark: SparkSession, folder: Path) -> None:
        self.node, self.database, self.spark, self.folder = node, database, spark, folder
        self.form = "delta"

    @contextmanager
    def following(self) -> Iterator[list[TablesProgress]]:
        """Run a job of all tables; gives what it reports."""
        stop, reports = threading.Event(), list[TablesProgress]()
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(
                sync_tables,
                self.spark,
                [f"{self.database.name}.*"],
                f"{self.form}:{self.folder}/lake/{{table}}",
                relays=[self.node.url],
                bootstrap_servers=[self.node.bootstrap_url],
                checkpoint=str(self.folder / "checkpoint"),
                every_s=0.1,
                stop=stop,
                report=reports.append,
            )
            try:
                wait_until(lambda: job.done() or reports, "the job", patience_s=PATIENCE_S)
                yield reports
            finally:
                stop.set()
            job.result()

    def differs(self, table: str) -> str:
        """Return how a target differs from its table; "" if it does not."""
        names = [row[0] for row in self.database.run(f"SHOW COLUMNS FROM {table}")]
        source = sorted(self.database.run(f"SELECT * FROM {table}"), key=str)
        try:
            with closing(open_target(f"delta:{self.folder}/lake/{table}")) as target:
                rows = table_of(target).to_pylist()
        except (TableNotFoundError, FileNotFoundError):
            return "there is none"
        found = sorted((tuple(row.get(name) for name in names) for row in rows), key=str)
        return "" if found == source else f"{found} instead of {source}"

    def wait_for(self, *tables: str, reports: list[TablesProgress]) -> None:
        def words() -> str:
            return f"{reports[-1:]} {[self.differs(table) for table in tables]}"

        wait_until(
            lambda: not any(map(self.differs, tables)), "the tables", words, patience_s=PATIENCE_S
        )


@pytest.fixture
def lake(
    database: Database, spark: SparkSession, delta_runtime: None, tmp_path: Path
) -> Iterator[Lake]:
    for number in range(3):
        database.run(
            f"CREATE TABLE t{number} (id INT PRIMARY KEY, note VARCHAR(20), price DECIMAL(6,2))",
            f"INSERT INTO t{number} VALUES (1, 'a', 1.25), (2, NULL, 2.5)",
        )
    folder = tmp_path / "node"
    folder.mkdir()
    with made(folder) as node:
        (folder / "password").write_text(database.server.password)
        (folder / "password").chmod(0o600)
        node.write(
            f'name = "shop"\nuri = "{database.server.uri}"\nsources = ["{database.name}.*"]\n'
            'password_file = "password"'
        )
        node.start()
        node.wait_for(lambda: set(node.statuses().values()) == {"active"})
        yield Lake(node, database, spark, tmp_path)


def each(run: Callable[..., Any], *statements: str) -> None:
    for number in range(3):
        run(*(one.format(number) for one in statements))


def test_tables_that_are_made_and_renamed_while_the_job_runs(lake: Lake) -> None:
    run = lake.database.run
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
        run(
            "CREATE TABLE fresh (id INT PRIMARY KEY, v VARCHAR(9))",
            "INSERT INTO fresh VALUES (1, 'x'), (2, 'y')",
            "UPDATE t0 SET note = 'later'",
            "DELETE FROM fresh WHERE id = 1",
        )
        lake.wait_for("t0", "fresh", reports=reports)
        run("INSERT INTO fresh VALUES (3, 'z')", "TRUNCATE TABLE t1")
        lake.wait_for("fresh", "t1", reports=reports)
    found = reports[-1]
    assert (found.tables, found.aside, found.waiting, found.restarts) == (4, {}, {}, 0)


def test_a_table_whose_earlier_rows_the_relay_lacks_is_filled_by_the_bootstrap_server(
    lake: Lake,
) -> None:
    run = lake.database.run
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
        # The rows from before the RENAME are in no window of this source.
        run("RENAME TABLE t2 TO t9", "INSERT INTO t9 VALUES (9, 'x', 1)", "DELETE FROM t0")
        lake.wait_for("t0", "t1", reports=reports)
        # The bootstrap pair takes it in meanwhile.
        lake.wait_for("t0", "t1", "t9", reports=reports)
        wait_until(
            lambda: not (reports[-1].waiting or reports[-1].joining),
            "the end of it",
            patience_s=PATIENCE_S,
        )
    assert (reports[-1].tables, reports[-1].aside) == (4, {})


def test_a_table_whose_new_type_its_target_cannot_hold_is_read_again(lake: Lake) -> None:
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
        # More digits than Delta's decimals have: it is a text from here on.
        lake.database.run(
            "ALTER TABLE t0 MODIFY price DECIMAL(60,2)",
            f"INSERT INTO t0 VALUES (3, 'large', {10**50}.5)",
            "DELETE FROM t1 WHERE id = 1",
        )
        lake.wait_for("t1", reports=reports)
        wait_until(lambda: reports[-1].reloads == 1, "the reload", patience_s=PATIENCE_S)
    with closing(open_target(f"delta:{lake.folder}/lake/t0")) as target:
        prices = {row["id"]: row["price"] for row in table_of(target).to_pylist()}
    assert prices == {1: "1.25", 2: "2.50", 3: f"{10**50}.50"}
    assert (reports[-1].aside, reports[-1].restarts) == ({}, 0)


def test_a_new_table_that_is_altered_before_its_first_batch_has_the_values_of_the_source(
    lake: Lake,
) -> None:
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
    lake.database.run(
        "CREATE TABLE t3 (id INT PRIMARY KEY, a INT)",
        "INSERT INTO t3 VALUES (1, 1), (2, 2)",
        # Only the server can tell what becomes of this one.
        "ALTER TABLE t3 ADD e INT DEFAULT 7.6, ADD f DOUBLE NOT NULL DEFAULT 0.25 FIRST",
        "INSERT INTO t3 (id, e) VALUES (3, 9)",
    )
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", "t3", reports=reports)
    assert reports[-1].aside == {}


@pytest.mark.parametrize("form", ["delta", "delta+spark"])
def test_columns_that_change_are_changed_in_the_targets_without_ending_the_query(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    lake.form = form
    monkeypatch.setattr(job_module, "CHECK_EVERY", 1)
    run = lake.database.run
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
        each(
            run,
            "ALTER TABLE t{0} RENAME COLUMN note TO text, ADD vip INT NOT NULL DEFAULT 7",
            "INSERT INTO t{0} (id, text) VALUES (10, 'after')",
            "ALTER TABLE t{0} MODIFY id BIGINT, MODIFY price DECIMAL(12,4)",
            "INSERT INTO t{0} (id, price) VALUES (5000000000, 12345678.1234)",
            "ALTER TABLE t{0} DROP COLUMN vip",
            "UPDATE t{0} SET text = 'short' WHERE id = 1",
        )
        lake.wait_for("t0", "t1", "t2", reports=reports)
        assert not reports[-1].aside, reports[-1]
        # What becomes of values that do not fit, only the database knows.
        run("DELETE FROM t1 WHERE id > 100", "ALTER TABLE t1 MODIFY price INT")
        run("INSERT INTO t1 (id, price) VALUES (11, 5)")
        lake.wait_for("t0", "t1", "t2", reports=reports)
    found = reports[-1]
    assert (found.restarts, found.aside) == (0, {}), found
    assert found.reloads >= 1, found


def test_a_table_without_a_row_since_the_alter_gets_its_columns(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_module, "CHECK_EVERY", 1)
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
        lake.database.run("ALTER TABLE t0 ADD vip INT, RENAME COLUMN note TO text")
        with closing(open_target(f"delta:{lake.folder}/lake/t0")) as target:

            def names() -> list[str]:
                schema = target.schema()
                return [] if schema is None else schema.names

            wait_until(lambda: {"text", "vip"} <= {*names()}, "the columns", names)
        lake.database.run("INSERT INTO t0 VALUES (9, 'late', 1, 5)")
        lake.wait_for("t0", reports=reports)
    assert (reports[-1].aside, reports[-1].restarts, reports[-1].reloads) == ({}, 0, 0)


def test_a_table_that_is_created_anew_with_another_key_is_read_again(lake: Lake) -> None:
    """Rows of the new table that are equal in the old key are not one row."""
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
        lake.database.run(
            "DROP TABLE t0",
            "CREATE TABLE t0 (id INT, k2 INT, PRIMARY KEY (id, k2))",
            "INSERT INTO t0 VALUES (1, 1), (1, 2)",
            "CREATE OR REPLACE TABLE t1 (code VARCHAR(9) PRIMARY KEY, n INT)",
            "INSERT INTO t1 VALUES ('a', 1), ('b', 2)",
        )
        lake.wait_for("t0", "t1", reports=reports)
        lake.database.run("INSERT INTO t0 VALUES (1, 3), (2, 1)", "DELETE FROM t0 WHERE k2 = 2")
        lake.database.run("UPDATE t1 SET code = 'c' WHERE code = 'a'")
        lake.wait_for("t0", "t1", reports=reports)
    assert (reports[-1].aside, reports[-1].restarts, reports[-1].reloads) == ({}, 0, 2)


def test_a_lost_block_that_is_read_again_in_newer_columns_loses_no_value(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.form = "delta+spark"
    lake.database.run("DROP TABLE t1, t2")
    source, digests, is_altered = f"{lake.database.name}.t0", list[Digest](), threading.Event()

    def altered_after(batch: DataFrame) -> Digest:
        digests.append(digest_of(batch))
        if not is_altered.is_set():
            lake.database.run(
                "ALTER TABLE t0 RENAME COLUMN note TO title", "INSERT INTO t0 VALUES (9, 'z', 1)"
            )
            wait_until(lambda: is_new(), "rows in the new columns", patience_s=PATIENCE_S)
            is_altered.set()
        return digests[-1]

    def is_new() -> bool:
        return versions_in(read[-1]) == {source: {2}}

    read = list[DataFrame]()

    def keep_nothing(batch: DataFrame) -> AbstractContextManager[DataFrame]:
        # As if an executor were lost after each action.
        read.append(batch)
        return nullcontext(batch)

    monkeypatch.setattr(synced_tables, "persisted", keep_nothing)
    monkeypatch.setattr(apply_module, "persisted", nullcontext)
    monkeypatch.setattr(apply_module, "digest_of", altered_after)
    with lake.following() as reports:
        assert is_altered.wait(PATIENCE_S)
        lake.wait_for("t0", reports=reports)
    versions = [pc.struct_field(one.batch["_databus"], "schema_version") for one in digests[:2]]
    assert [of.to_pylist() for of in versions] == [[1], [2]], "the batch was begun again"
    assert (reports[-1].aside, reports[-1].restarts) == ({}, 0)


def test_a_table_that_the_relay_stops_alone_waits_and_is_whole_after_its_repair(lake: Lake) -> None:
    run, source = lake.database.run, f"{lake.database.name}.t1"
    run(
        "ALTER TABLE t1 PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10), "
        "PARTITION q VALUES LESS THAN MAXVALUE)"
    )
    with lake.following() as reports:
        lake.wait_for("t0", "t1", "t2", reports=reports)
        # The log has the statement and not the rows.
        run("INSERT INTO t1 VALUES (30, 'x', 1)", "ALTER TABLE t1 TRUNCATE PARTITION p")
        run("INSERT INTO t0 VALUES (7, 'g', 1)", "DELETE FROM t2")
        lake.wait_for("t0", "t2", reports=reports)
        wait_until(lambda: source in reports[-1].waiting, "the reason", patience_s=PATIENCE_S)
        repair = f"{lake.node.url}/api/v1/physicalSources/shop/repair"
        urlopen(Request(repair, json.dumps({"source": source}).encode(), method="POST")).close()
        lake.wait_for("t1", reports=reports)
        run("INSERT INTO t1 VALUES (31, 'y', 2)", "INSERT INTO t0 VALUES (8, 'h', 1)")
        lake.wait_for("t0", "t1", reports=reports)
    assert (reports[-1].aside, reports[-1].restarts) == ({}, 0)
