"""`databus spark …`: jobs that run on Spark, each one command and one Python function.

A main file of spark-submit is two lines:

    from databus.client.spark.cli.spark import spark
    spark()
"""

from __future__ import annotations

import sys

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


class SparkGroup(LazyGroup):
    """A group whose errors of Spark are one line, too."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand; print an error of Spark in one line and exit with 1."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Without PySpark there is no error of Spark.
            if "pyspark" not in sys.modules or isinstance(error, click.ClickException):
                raise
            # Not for `databus spark --help`, which imports no PySpark.
            from databus.client.spark.consuming.restart_policy import log_failure

            problem = log_failure("Spark", error).problem
            raise click.ClickException(problem) from error


@click.group(cls=SparkGroup, lazy=COMMANDS)
def spark() -> None:
    """Run jobs on Spark. They need the extra `spark` of databus-cdc, and Java 17.

    Example: `databus spark load shop.orders delta:lake/orders --bootstrap http://127.0.0.1:11116`
    """
