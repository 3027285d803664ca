"""What a user does on Spark Connect; prints what came of it.

python -m tests.client.spark.connect_job <sc URL> <relay URL> <bootstrap server URL> <folder>
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.consuming.order_modes import ordered_groups
from databus.client.spark.consuming.target_proof import TargetProof
from databus.client.spark.jobs.load import load
from databus.client.spark.jobs.sync import sync
from databus.client.spark.monitoring.listener import DatabusListener
from databus.client.spark.targets.target import open_target
from databus.demo.processes import wait_until
from databus.schemas.errors import DatabusError
from tests import PATIENCE_S


class Job:
    """One session, and the servers."""

    def __init__(self, url: str, relay: str, server: str, folder: str) -> None:
        self.spark = SparkSession.builder.remote(url).getOrCreate()
        register(self.spark)
        self.listener = DatabusListener()
        self.spark.streams.addListener(self.listener)
        self.given = {"relays": relay, "bootstrapServers": server}
        self.relay, self.server, self.folder = relay, server, folder

    def start(self, name: str, consume: Callable[[DataFrame, int], None]) -> StreamingQuery:
        changes = self.spark.readStream.format("databus").options(**self.given).load("shop.orders")
        writer = changes.writeStream.foreachBatch(consume).trigger(availableNow=True)
        return writer.option("checkpointLocation", f"{self.folder}/{name}").start()

    def applied(self) -> list[int]:
        """Apply all batches, run by run; return the rows of the target."""
        uri, app = f"delta:{self.folder}/orders", f"{self.folder}/applied"

        def consume(batch: DataFrame, batch_id: int) -> None:
            for group in ordered_groups(batch, "table"):
                for part in group:
                    part.count()
            apply_changes(batch, batch_id, open_target(uri), app_id=app)

        query = self.start("applied", consume)
        query.awaitTermination()
        target = open_target(uri)
        return [target.rows(self.spark).count(), target.applied(app) or 0]

    def without_app(self) -> str:
        """Return the error of a query that gives no app_id."""
        uri = f"delta:{self.folder}/never"

        def consume(batch: DataFrame, batch_id: int) -> None:
            apply_changes(batch, batch_id, open_target(uri))

        return refusal(lambda: self.start("never", consume).awaitTermination())

    def loaded(self) -> int:
        done = load(
            self.spark,
            "shop.orders",
            f"delta:{self.folder}/loaded",
            bootstrap_servers=[self.server],
        )
        return done.rows

    def refused(self) -> list[str]:
        target = f"delta:{self.folder}/refused"
        given: dict[str, Any] = {"relays": [self.relay], "checkpoint": f"{self.folder}/no"}
        return [
            refusal(lambda: sync(self.spark, "shop.orders", target, **given)),
            refusal(lambda: TargetProof(self.spark, f"{self.folder}/no", open_target(target))),
        ]

    def heard(self) -> list[Any]:
        """Return what the listener knows once the first query has ended."""
        wait_until(lambda: self.listener.sources, PATIENCE_S, "a batch to be heard of")
        one = self.listener.sources[0]
        return [one.physical_source, one.rung]

    def table(self) -> int:
        read = self.spark.read.format("databus").options(mode="table", bootstrapServers=self.server)
        return read.load("shop.orders").count()


def refusal(call: Callable[[], object]) -> str:
    """Return the text of the error that a call raises."""
    try:
        call()
    except (DatabusError, PySparkException) as error:
        return str(error)
    return "none"


def main(*words: str) -> None:
    job = Job(*words)
    told = {
        "table": job.table(),
        "applied": job.applied(),
        "heard": job.heard(),
        "without_app": job.without_app(),
        "loaded": job.loaded(),
        "refused": job.refused(),
    }
    print(json.dumps(told), flush=True)
    # The thread that listens would keep the process.
    job.spark.streams.removeListener(job.listener)
    job.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
