"""A streaming query of a stock Databus relay; as a program it kills itself in a batch.

python -m tests.client.spark.source.stock_job <relay URL> <folder>
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from databus.client.spark import register
from databus.client.spark.session import job_session
from tests.client.spark.source.stream_job import StreamJob
from tests.promises.stock_databus.recordings import CODE, PERSON, row_of_record

DEADLY_BATCH = 1
FEW_BATCHES = {"maxRowsPerTrigger": "60", "shards": "1"}  # each costs a loaded machine seconds


class Job(StreamJob):
    """A foreachBatch query that keeps the rows of its finished batches, in a file, too."""

    def __init__(self, session: SparkSession, folder: Path, **options: str) -> None:
        self.batches: dict[int, list[dict[str, Any]]] = {}
        given = {"sources": f"{PERSON},{CODE}", "layout": "structs", "start": "earliest"}
        given |= {"maxRowsPerTrigger": "30", "shards": "2"}
        super().__init__(session, folder, **(given | options))

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        records = [row.asDict(recursive=True) for row in batch.collect()]
        self.fail(batch_id)
        records.sort(key=lambda one: (one["_databus"]["scn"], one["_databus"]["index"]))
        rows = list(map(row_of_record, records))
        with self._stored.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        # A query that is stopped may repeat its last batch.
        assert self.batches.setdefault(batch_id, rows) == rows

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all batches."""
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    @property
    def _stored(self) -> Path:
        return self._folder / "rows.jsonl"

    def stored(self) -> list[dict[str, Any]]:
        """Return the rows of batches that were finished, in whichever process."""
        return [json.loads(line) for line in self._stored.read_text().splitlines()]


def main(url: str, folder: Path) -> None:
    """Read until the deadly batch, and die in it."""

    def die(batch_id: int) -> None:
        if batch_id == DEADLY_BATCH:
            os.kill(os.getpid(), signal.SIGKILL)

    session = job_session("killed", {"spark.master": "local[2]", "spark.ui.enabled": "false"})
    register(session)
    job = Job(session, folder, relays=url, **FEW_BATCHES)
    job.fail = die
    job.run()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
