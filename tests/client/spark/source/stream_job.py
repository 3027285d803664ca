"""What the queries of the tests of `format("databus")` share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


class StreamJob(ABC):
    """A foreachBatch query with a checkpoint in a folder. `fail` is called in each batch."""

    def __init__(self, session: SparkSession, folder: Path, **options: str) -> None:
        self.fail: Callable[[int], None] = lambda _: None
        self._session, self._folder, self._options = session, folder, options

    def start(self, **trigger: Any) -> StreamingQuery:
        changes = self._session.readStream.format("databus").options(**self._options).load()
        writer = changes.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self) -> None:
        """Read what there is."""
        self.start().awaitTermination()

    @abstractmethod
    def _take(self, batch: DataFrame, batch_id: int) -> None:
        """Keep what a batch has, and call `fail` before it is finished."""
