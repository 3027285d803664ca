"""Each form of ALTER on a real server, brought to every kind of target: the source's rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from databus.client.spark.change_stream import read_changes
from databus.client.spark.row_types import CHANGE_COLUMN, SCHEMAS, arrow_schema
from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.following import Following
from databus.client.spark.targets.target import Target, open_target
from databus.schemas.errors import SchemaError
from tests.mariadb_server import Database
from tests.promises.running import PATIENCE_S, RunningRelay, mysql_source, running
from tests.spark.queries import Query
from tests.spark.target_rows import table_of

pytest_plugins = ["tests.mariadb"]

TABLE = "CREATE TABLE customers (id INT PRIMARY KEY, city VARCHAR(20), n INT, a INT, b INT)"
FORMS = (
    "ALTER TABLE customers RENAME COLUMN city TO town",
    "ALTER TABLE customers ADD vip INT NOT NULL DEFAULT 7",
    "ALTER TABLE customers MODIFY n BIGINT",
    "ALTER TABLE customers ADD note VARCHAR(30) DEFAULT 'it''s 100%', ADD absent INT",
    "ALTER TABLE customers CHANGE town place VARCHAR(40), MODIFY n DECIMAL(22,2)",
    "ALTER TABLE customers RENAME COLUMN a TO b, RENAME COLUMN b TO a",
    "ALTER TABLE customers CHANGE id nr BIGINT",
    "ALTER TABLE customers DROP COLUMN vip, ADD vip INT NOT NULL DEFAULT 8",
)


class Job:
    """A query whose batches go into several targets."""

    def __init__(self, relay: RunningRelay, source: str, targets: list[Target]) -> None:
        given = {"relays": relay.url, "sources": source, "start": "earliest"}
        self._query = Query(**given)
        self._source = source
        self._targets = targets

    def close(self) -> None:
        self._query.close()

    def follow(self, is_there: Callable[[], bool]) -> None:
        """Bring what comes until it is there; start again after a schema change, as `sync` does."""
        end_s = time.monotonic() + PATIENCE_S
        while not is_there():
            assert time.monotonic() < end_s, self._query.log[-1:]
            ranges = self._query.plan()
            while ranges:
                try:
                    self._apply(ranges)
                    break
                except SchemaError as error:
                    if "restart the query" not in str(error):
                        raise
                    self._query.restart()
                    ranges = self._query.planned()

    def _apply(self, ranges: list[str]) -> None:
        schema = self._query.schema
        texts = schema[CHANGE_COLUMN].metadata[SCHEMAS][self._source]
        options = self._query.options
        found = [b for one in ranges for b in read_changes(options, schema, one)]
        batch = pa.Table.from_batches(found, arrow_schema(schema))
        versions = {int(number): text for number, text in texts.items()}
        for target in self._targets:
            if batch.num_rows:
                rows, key = Following(self._source, versions, batch).lead(target, None)
                target.apply("job", len(self._query.log), changes_of(rows, key))


class Followed:
    """A table, its relay and its targets."""

    def __init__(self, database: Database, relay: RunningRelay, folder: Path) -> None:
        self.database = database
        places = (f"delta:{folder}/d", f"parquet:{folder}/p", f"sqlite:///{folder}/s.db#customers")
        self.targets = [open_target(uri) for uri in places]
        self.job = Job(relay, f"{database.name}.customers", self.targets)
        self._next = 100

    def write(self, *statements: str) -> None:
        """Change the table, then add a row to it."""
        self.database.run(*statements)
        self._next += 1
        names = [self.key, *(name for name in self.columns if name == "vip")]
        values = [self._next, 1][: len(names)]
        listed = ", ".join(map(str, values))
        self.database.run(f"INSERT INTO customers ({', '.join(names)}) VALUES ({listed})")

    def follow(self) -> None:
        """Bring everything up to the last row."""
        self.job.follow(self._has_all)

    def _has_all(self) -> bool:
        if not self.targets[-1].schema():
            return False
        rows = table_of(self.targets[-1])
        return self.key in rows.column_names and self._next in rows[self.key].to_pylist()

    @property
    def columns(self) -> list[str]:
        return [row[0] for row in self.database.run("SHOW COLUMNS FROM customers")]

    @property
    def key(self) -> str:
        return self.columns[0]

    def check(self, statement: str) -> None:
        """Look whether all targets have the source's rows."""
        names = self.columns
        expected = sorted(self.database.run(f"SELECT {', '.join(names)} FROM customers"))
        for target in self.targets:
            rows = table_of(target).to_pylist()
            found = sorted(tuple(row[name] for name in names) for row in rows)
            assert found == expected, (statement, target.uri)


@pytest.fixture
def followed(database: Database, tmp_path: Path, delta_runtime: None) -> Iterator[Followed]:
    rows = ", ".join(f"({n}, 'city {n}', {n}, {n}, {-n})" for n in range(1, 9))
    database.run(TABLE)
    settings = mysql_source(database, tmp_path, sources=[f"{database.name}.customers"])
    with ExitStack() as stack:
        relay = stack.enter_context(running(RunningRelay(tmp_path, settings).start()))
        made = Followed(database, relay, tmp_path)
        stack.callback(made.job.close)
        for target in made.targets:
            stack.callback(target.close)
        database.run(f"INSERT INTO customers VALUES {rows}")
        made.write()
        made.follow()
        made.check(TABLE)
        yield made


def test_every_form_of_alter_leaves_every_target_equal_to_the_source(followed: Followed) -> None:
    for statement in FORMS:
        followed.write("UPDATE customers SET a = a + 1 LIMIT 2", statement)
        followed.follow()
        followed.check(statement)
