"""`databus spark …`: jobs that run on Spark, each one command and one Python function."""

from __future__ import annotations

import click

from databus.cli.main import CommandAt, LazyGroup

COMMANDS = {
    "load": CommandAt("databus.client.spark.jobs.load_cli:load", "Copy tables, or a query."),
    "repair": CommandAt(
        "databus.client.spark.verify.repair_cli:repair", "Make the rows right that verify reported."
    ),
    "run": CommandAt("databus.client.spark.sql.run_cli:run", "Keep a table equal to a SELECT."),
    "sync": CommandAt("databus.client.spark.jobs.sync_cli:sync", "Copy a table, then follow it."),
    "verify": CommandAt(
        "databus.client.spark.verify.verify_cli:verify", "Compare a table with its copy."
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def spark() -> None:
    """Run jobs on Spark. They need the extra: pip install 'databus-cdc[spark]', and Java 17.

    Example: `databus spark load shop.orders delta:lake/orders --bootstrap http://127.0.0.1:11116`
    """
