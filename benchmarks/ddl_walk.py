"""A random walk of DDL and row changes; early and late consumers must equal the source.

    python -m benchmarks.ddl_walk --steps 300 --seed 7 --source mariadb
    python -m benchmarks.ddl_walk --steps 300 --seed 7 --targets delta,sqlite

Against a private server, a relay process and a whole bootstrap pair. Each step alters a
table or writes rows; every so often, and at the end, these are compared with the tables
row by row: a consumer that comes only then, one that was there from the beginning and
does what `on_schema_change` says to the rows that it holds, and `bootstrap verify`. An early
one that was told to read its rows again does so at the comparison, and is compared at the next.
With `--targets` tables that follow are compared, too: they come to a new version with the next
row, so each table is written to before.
Prints what was compared, and exits with 1 on a difference.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click
from pymysql.err import MySQLError
from pyspark.sql import SparkSession

from benchmarks.shared.followed import KINDS, follower, places, session
from databus.demo.private_mariadb import PrivateMariaDB
from tests.bootstrap.altering import Altered, Keeper, altered, same
from tests.client.spark.targets.target_job import TargetJob, difference
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL, initialize, mysql_basedir
from tests.promises.running import consuming, mysql_source, wait_until

TABLES = ("one", "two")
NAMES = ("a", "b", "c", "d", "e", "f")
COMPARE_EVERY = 30
TELLABLE = (
    "INT NOT NULL DEFAULT 7", "INT NOT NULL", "INT DEFAULT 3", "INT", "BIGINT",
    "VARCHAR(10) NOT NULL DEFAULT 'x'", "VARCHAR(10)", "DECIMAL(8,2) NOT NULL DEFAULT 1.5",
    "FLOAT", "DOUBLE NOT NULL DEFAULT 0.25", "ENUM('u','v') NOT NULL", "DATE DEFAULT '2020-02-29'",
    "DATETIME", "TINYINT UNSIGNED NOT NULL", "TEXT", "BIT(3)",
)  # fmt: skip
ONLY_THE_SERVER = (
    "DATETIME DEFAULT CURRENT_TIMESTAMP", "VARCHAR(40) DEFAULT (UUID())", "INT AS (id * 2) STORED",
    "INT DEFAULT 7.6",
)  # fmt: skip
WIDER = {
    "tinyint": "INT", "int": "BIGINT", "float": "DOUBLE", "varchar": "VARCHAR(200)",
    "decimal": "DECIMAL(16,4)", "enum": "ENUM('u','v','w')", "datetime": "DATETIME(3)",
}  # fmt: skip


@dataclass
class Walk:
    """Alters and writes; statements that the server refuses are skipped."""

    database: Database
    random: Random
    next_id: int = 1
    tables: Sequence[str] = TABLES
    done: list[str] = field(default_factory=list)
    refused: int = 0

    def begin(self) -> None:
        """Make the tables, with rows."""
        for table in self.tables:
            self.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b VARCHAR(10))")
            for _ in range(5):
                self.insert(table)

    def step(self) -> None:
        """Alter or write."""
        table = self.random.choice(self.tables)
        if self.random.random() < 0.5:
            self.alter(table)
        else:
            for _ in range(self.random.choice((1, 1, 3))):
                self.random.choice((self.insert, self.update, self.update, self.delete))(table)

    def run(self, statement: str) -> None:
        """Run a statement, or count that it was refused."""
        try:
            self.database.run(statement)
        except MySQLError:
            self.refused += 1
        else:
            self.done.append(statement)

    def insert(self, table: str) -> None:
        """Write a row of defaults."""
        self.run(f"INSERT INTO {table} (id) VALUES ({self.next_id})")
        self.next_id += 1

    def touch(self, table: str) -> None:
        """Write a row; delete one if a column has no default."""
        refused = self.refused
        self.insert(table)
        if self.refused > refused:
            self.run(f"DELETE FROM {table} ORDER BY id LIMIT 1")

    def update(self, table: str) -> None:
        """Update one column of one or two rows."""
        columns = self.columns(table)
        if not columns:
            return  # it has its key alone
        column, _ = self.random.choice(columns)
        value = self.random.choice(("NULL", "'1'", "'12'", "'u'", "'2021-01-01'", "DEFAULT"))
        number = self.random.randrange(1, self.next_id)
        self.run(f"UPDATE {table} SET {column} = {value} WHERE id BETWEEN {number} AND {number}+1")

    def delete(self, table: str) -> None:
        """Delete a row, if it is there."""
        self.run(f"DELETE FROM {table} WHERE id = {self.random.randrange(1, self.next_id)}")

    def alter(self, table: str) -> None:
        """Alter a table, in one part or two; seldom empty it."""
        if self.random.random() < 0.03:
            self.run(f"TRUNCATE TABLE {table}")
            return
        parts = [self.part(table) for _ in range(self.random.choice((1, 1, 2)))]
        self.run(f"ALTER TABLE {table} {', '.join(parts)}")

    def part(self, table: str) -> str:
        """Return one part of an ALTER TABLE."""
        columns = self.columns(table)
        choose = self.random.choice
        name, sql_type = choose(columns) if columns else ("", "")
        other, free = choose([n for n, _ in columns] or [""]), choose(NAMES)
        kinds = ("add", "add", "add", "rename", "rename", "swap", "drop", "again", "widen", "move")
        kind = choose(kinds) if len(columns) > 1 else "add"
        new = choose(ONLY_THE_SERVER) if self.random.random() < 0.08 else choose(TELLABLE)
        if kind == "add":
            return f"ADD {free} {new}{choose(('', '', ' FIRST'))}"
        if kind == "rename":
            return f"RENAME COLUMN {name} TO {free}"
        if kind == "swap":
            return f"RENAME COLUMN {name} TO {other}, RENAME COLUMN {other} TO {name}"
        if kind == "drop":
            return f"DROP COLUMN {name}"
        if kind == "again":
            return f"DROP COLUMN {name}, ADD {name} {new}"
        wide = WIDER.get(sql_type.partition("(")[0], sql_type)
        if kind == "move" or self.random.random() < 0.2:
            return f"CHANGE {name} {free} {wide} AFTER id"
        return f"MODIFY {name} {choose((wide, wide, 'VARCHAR(30)', 'SMALLINT'))}"

    def columns(self, table: str) -> list[tuple[str, str]]:
        """Return the columns beside the key, as the server has them."""
        rows = self.database.run(f"SHOW COLUMNS FROM {table}")
        return [(str(row[0]), str(row[1])) for row in rows if row[0] != "id"]


@dataclass
class Findings:
    """What was compared, and the differences."""

    comparisons: int = 0
    of_early: int = 0  # of these, of the early consumer's rows
    of_targets: int = 0  # and of a target's table
    rows: int = 0
    versions: int = 0
    reloads: int = 0
    differences: list[str] = field(default_factory=list)


def compare(pair: Altered, early: Keeper, found: Findings) -> None:
    """Compare all consumers with the tables."""
    pair.wait_until_served()
    scn = pair.newest_scn()
    wait_until(lambda: early.scn >= scn or bool(early.problems), "the early consumer")
    if early.problems:
        found.differences.append(f"the early consumer: {early.problems[0]}")
    told = {source for source, step in early.changes[found.versions :] if step.needs_reload}
    found.versions = len(early.changes)
    late = pair.late()
    for source in pair.sources:
        rows = pair.table(source)
        found.rows += len(rows)
        readers = {"late consumer": late}
        if source in told:
            early.read_again(source, late)
        else:
            readers["early consumer"] = early
            found.of_early += 1
        for name, keeper in readers.items():
            found.comparisons += 1
            known = list(keeper.rows.get(source, {}).values())
            if not same(known, rows):
                found.differences.append(f"{source}, {name}: {known} and not {rows}")
    for compared in pair.verify():
        found.comparisons += 1
        if not compared.is_same:
            found.differences.append(f"{compared.source}, verify: {compared.examples[:1]}")


def compare_targets(pair: Altered, jobs: Mapping[str, TargetJob], found: Findings) -> None:
    """Update the targets of all tables, and compare them."""
    for source, job in jobs.items():
        job.follow()
        for kind, target in job.targets.items():
            found.comparisons += 1
            found.of_targets += 1
            if differs := difference(pair, source, target, may_be_wider=True):
                found.differences.append(f"{source}, {kind}: {differs}")


def walk(
    pair: Altered,
    steps: int,
    random: Random,
    database: Database,
    jobs: Mapping[str, TargetJob],
) -> Findings:
    """Walk, and compare from time to time; a difference ends the walk."""
    found, early, going = Findings(), Keeper(), Walk(database, random, next_id=100)
    with consuming(
        [pair.relay.url],
        pair.sources,
        early,
        bootstrap_servers=[pair.url],
        start="beginning",
    ):
        for number in range(1, steps + 1):
            going.step()
            if number % COMPARE_EVERY == 0 or number == steps:
                for source in jobs:
                    going.touch(source.partition(".")[2])
                compare(pair, early, found)
                compare_targets(pair, jobs, found)
                if found.differences:
                    break
    found.reloads = sum(step.needs_reload for _, step in early.changes)
    if found.differences:
        found.differences += going.done[-COMPARE_EVERY:]
    return found


def run(
    database: Database,
    folder: Path,
    steps: int,
    seed: int,
    at: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    **settings: Any,
) -> Findings:
    """Run a walk in a database of its own; `at`: where its targets are, by kind."""
    Walk(database, Random(seed)).begin()
    sources = [f"{database.name}.{table}" for table in TABLES]
    physical = mysql_source(database, folder, sources=sources, start="latest", **settings)
    with altered(folder, physical) as pair, ExitStack() as stack:
        pair.wait_until_served()
        jobs = {one: follower(pair, one, at, spark) for one in sources} if at else {}
        for job in jobs.values():
            stack.callback(job.close)
        return walk(pair, steps, Random(seed), database, jobs)


@contextmanager
def server_of(source: str, folder: Path) -> Iterator[PrivateMariaDB]:
    """Start a private server."""
    with ExitStack() as stack:
        if source == "mariadb":
            yield stack.enter_context(PrivateMariaDB())
            return
        basedir = mysql_basedir()
        if basedir is None:
            raise click.ClickException("there is no MySQL: python -m tools.fetch_test_servers")
        initialize(basedir, folder / "template")
        yield stack.enter_context(PrivateMySQL(basedir, folder / "template"))


@click.command()
@click.option("--steps", type=int, default=300, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--source", type=click.Choice(["mariadb", "mysql"]), default="mariadb")
@click.option("--targets", default="", help=f"Of {', '.join(KINDS)}, with commas between.")
def main(steps: int, seed: int, source: str, targets: str) -> None:
    """Walk STEPS steps, and print what was compared."""
    kinds = targets.split(",") if targets else []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddl-walk-")))
        server = stack.enter_context(server_of(source, folder))
        database = stack.enter_context(fresh_database(server))
        at = stack.enter_context(places(kinds, folder))
        spark = stack.enter_context(session()) if at else None
        found = run(database, folder, steps, seed, at, spark)
    for text in found.differences:
        click.echo(text)
    click.echo(
        f"{source}, seed {seed}: {steps} steps, {found.versions} versions, "
        f"{found.reloads} of them to be read again; {found.comparisons} comparisons, "
        f"{found.of_early} of them of the early consumer and {found.of_targets} of targets, "
        f"of {found.rows} rows, "
        f"{'DIFFERENT' if found.differences else 'all the same'}"
    )
    sys.exit(bool(found.differences))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ddl_walk")
