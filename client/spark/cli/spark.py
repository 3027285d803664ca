"""`databus spark …`: jobs that run on Spark, each one command and one Python function."""

from __future__ import annotations

import click

from databus.cli.main import CommandAt, LazyGroup

COMMANDS = {
    "load": CommandAt("databus.client.spark.cli.load:load", "Copy tables, or a query."),
    "repair": CommandAt(
        "databus.client.spark.cli.repair:repair", "Repair the rows that verify reported."
    ),
    "run": CommandAt("databus.client.spark.cli.run:run", "Keep a table equal to a SELECT."),
    "sync": CommandAt("databus.client.spark.cli.sync:sync", "Copy a table, then follow it."),
    "verify": CommandAt("databus.client.spark.cli.verify:verify", "Compare a table with its copy."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def spark() -> None:
    """Run jobs on Spark. They need the extra `spark` of databus-cdc, and Java 17.

    Example: `databus spark load shop.orders delta:lake/orders --bootstrap http://127.0.0.1:11116`
    """
