"""Each form of ALTER on a real server, brought to every kind of target: the source's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import ddl_targets
from benchmarks.shared.followed import places
from tests.bootstrap.alter_forms import CHAINS, KEY_CHAINS, MADE_TO_FIT
from tests.client.spark.conftest import TABLE_NUMBERS
from tests.client.spark.targets.target_job import TargetJob
from tests.client.spark.targets.target_rows import table_of
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, running, wait_until

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
KINDS = ("delta", "sqlite")


class Followed:
    """A table, its relay and its targets."""

    def __init__(self, database: Database, relay: RunningRelay, folder: Path) -> None:
        self.database = database
        source = f"{database.name}.customers"
        places = {
            "delta": f"delta:{folder}/d",
            "iceberg": f"iceberg:lake.live.t{next(TABLE_NUMBERS)}",
            "sqlite": f"sqlite:///{folder}/s.db#customers",
        }
        given = {"relays": relay.url, "sources": source, "start": "earliest"}
        self.job = TargetJob(given, places)
        self.targets = list(self.job.targets.values())
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
        wait_until(self._has_all, "the last row")

    def _has_all(self) -> bool:
        self.job.follow()
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
def followed(
    database: Database, tmp_path: Path, delta_runtime: None, iceberg_catalog: None
) -> Iterator[Followed]:
    rows = ", ".join(f"({n}, 'city {n}', {n}, {n}, {-n})" for n in range(1, 9))
    database.run(TABLE)
    settings = mysql_source(database, tmp_path, sources=[f"{database.name}.customers"])
    with ExitStack() as stack:
        relay = stack.enter_context(running(RunningRelay(tmp_path, settings).start()))
        made = Followed(database, relay, tmp_path)
        stack.callback(made.job.close)
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


def test_several_alters_in_one_batch_leave_every_target_equal_to_the_source(
    database: Database, delta_runtime: None, tmp_path: Path
) -> None:
    forms = (*CHAINS, *MADE_TO_FIT, *KEY_CHAINS)
    with places(KINDS, tmp_path) as at:
        found = ddl_targets.run(database, tmp_path, forms, at, None)
    assert found.differences == []
    assert found.comparisons == len(forms) * len(KINDS)
