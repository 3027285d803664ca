"""Checks each form of ALTER with each kind of target: all rows must equal the source's.

    python -m benchmarks.ddl_targets --source mariadb

Against a private server, a relay process and a whole bootstrap pair: a table for each form,
with rows; then the form; then one change more, with which a target comes to the new version.
Delta tables and tables of databases are brought there, all of a form in one batch, or their
rows are read again as `sync` does it, and compared with the source: rows, and types of columns.
Exits with 1 on a difference.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
from pyspark.sql import SparkSession

from benchmarks.ddl_walk import server_of
from benchmarks.shared.followed import KINDS, follower, places, session
from databus.schemas.errors import DatabusError
from tests.bootstrap.alter_forms import (
    CHAINS,
    KEY_CHAINS,
    MADE_TO_FIT,
    MADE_TO_FIT_TO_BE_READ,
    NOT_ON_MYSQL,
    RETYPED_CHAINS,
    ROWS,
    TABLE,
    TELLABLE,
    TO_BE_READ,
    statements,
)
from tests.bootstrap.altering import Altered, altered
from tests.client.spark.targets.target_job import TargetJob, difference
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL
from tests.promises.running import mysql_source

# Tables whose rows a target cannot tell apart.
KEYLESS = "DROP PRIMARY KEY"
_TOLD = (*TELLABLE, *CHAINS, *MADE_TO_FIT, *RETYPED_CHAINS, *KEY_CHAINS)
FORMS = (*_TOLD, *TO_BE_READ, *MADE_TO_FIT_TO_BE_READ)


@dataclass
class Findings:
    """What was compared, and the differences."""

    forms: int = 0
    comparisons: int = 0
    reloads: int = 0
    refused: int = 0
    differences: list[str] = field(default_factory=list)


def write_once_more(database: Database, table: str) -> None:
    """Change two rows, with which a target follows its table."""
    rows = database.run(f"SHOW COLUMNS FROM {table}")
    name = next(row[0] for row in rows if row[2] == "YES" and not row[5])
    database.run(
        f"DELETE FROM {table} ORDER BY {rows[0][0]} DESC LIMIT 1",
        f"UPDATE {table} SET {name} = NULL WHERE {name} IS NOT NULL LIMIT 1",
    )


def compare(
    pair: Altered, forms: Mapping[str, str], database: Database, jobs: Mapping[str, TargetJob]
) -> Findings:
    """Alter all tables, update the targets of each, and compare."""
    found = Findings(len(forms))
    for table, form in forms.items():
        database.run(*statements(form, table))
        write_once_more(database, table)
    pair.wait_until_served()
    for table, form in forms.items():
        source, job = f"{database.name}.{table}", jobs[table]
        try:
            job.follow()
        except DatabusError as error:
            if form == KEYLESS and "no primary key" in str(error):
                found.refused += 1
            else:
                found.differences.append(f"{form}: {error!r}")
            continue
        for kind, target in job.targets.items():
            found.comparisons += 1
            if differs := difference(pair, source, target):
                found.differences.append(f"{form}, {kind}: {differs}")
        found.reloads += job.reloads * len(job.targets)
    return found


def run(
    database: Database,
    folder: Path,
    forms: Sequence[str],
    at: Mapping[str, str],
    spark: SparkSession | None,
) -> Findings:
    """Apply each form to a table of its own."""
    is_mysql = isinstance(database.server, PrivateMySQL)
    wanted = [form for form in forms if not (is_mysql and form in NOT_ON_MYSQL)]
    by_table = {f"t{number}": form for number, form in enumerate(wanted)}
    for table in by_table:
        database.run(f"CREATE TABLE {table} {TABLE}", f"INSERT INTO {table} VALUES {ROWS}")
    sources = [f"{database.name}.{table}" for table in by_table]
    physical = mysql_source(database, folder, sources=sources, start="latest")
    with altered(folder, physical) as pair, ExitStack() as stack:
        pair.wait_until_served()
        jobs = {}
        for table, source in zip(by_table, sources, strict=True):
            jobs[table] = follower(pair, source, at, spark)
            stack.callback(jobs[table].close)
            jobs[table].follow()
        return compare(pair, by_table, database, jobs)


@click.command()
@click.option("--source", type=click.Choice(["mariadb", "mysql"]), default="mariadb")
@click.option("--targets", default=",".join(KINDS), show_default=True)
def main(source: str, targets: str) -> None:
    """Apply each form of ALTER, and print what was compared."""
    kinds = targets.split(",")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddl-targets-")))
        at = stack.enter_context(places(kinds, folder))
        server = stack.enter_context(server_of(source, folder))
        database = stack.enter_context(fresh_database(server))
        found = run(database, folder, FORMS, at, stack.enter_context(session()))
    for text in found.differences:
        click.echo(text)
    click.echo(
        f"{source}: {found.forms} forms in {', '.join(kinds)}: {found.comparisons} tables "
        f"compared, {found.reloads} of them read again, {found.refused} refused for want of a key, "
        f"{'DIFFERENT' if found.differences else 'all the same'}"
    )
    sys.exit(bool(found.differences))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ddl_targets")
