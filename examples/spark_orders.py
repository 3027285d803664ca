"""Keep the demo shop's orders in a Delta table, and show how it goes.

    python examples/spark_orders.py RELAY-URL BOOTSTRAP-URL FOLDER [--once]

`make demo` runs the shop, and prints this command with its URLs.

The table begins with all orders that there are, from the bootstrap server, and
follows the relay from there. Ctrl-C ends it; started again with the same folder
it goes on where it was, and each batch is applied once, whatever was killed.
`--once` ends when it has what there is.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.monitoring.console import watching
from databus.client.spark.session import job_session
from databus.client.spark.targets.target import open_target

EVERY = "1 second"


def follow(
    spark: SparkSession, relay: str, bootstrap: str, folder: Path, *, is_once: bool
) -> Counter[str]:
    """Keep the table `folder/orders`; return how many orders there are of each status."""
    register(spark)
    orders = open_target(f"delta:{folder}/orders")
    changes = (
        spark.readStream.format("databus")
        .option("relays", relay)
        .option("bootstrapServers", bootstrap)
        .load("shop.orders")
    )

    def keep(batch: DataFrame, batch_id: int) -> None:
        apply_changes(batch, batch_id, orders)

    writer = (
        changes.writeStream.foreachBatch(keep)
        .queryName("orders")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**({"availableNow": True} if is_once else {"processingTime": EVERY}))
    )
    with watching(spark, Console()), suppress(KeyboardInterrupt):
        query = writer.start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
    statuses = orders.rows(spark).groupBy("status").count().collect()
    return Counter({row["status"]: row["count"] for row in statuses})


def main(arguments: list[str]) -> None:
    """Run it as the command line says."""
    *places, folder = [word for word in arguments if word != "--once"]
    relay, bootstrap = places
    found = follow(
        job_session("orders"),
        relay,
        bootstrap,
        Path(folder).resolve(),
        is_once="--once" in arguments,
    )
    for status, count in found.most_common():
        print(f"{count} orders are {status}")


if __name__ == "__main__":
    main(sys.argv[1:])
