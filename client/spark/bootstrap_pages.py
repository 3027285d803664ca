"""A bootstrap server's snapshot or log, page after page, as Arrow batches.

What it cannot read it says: nothing is left out in silence, and nothing is begun anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from databus.client.answers import PENDING_EVENT_BYTES, PHASE_COMPLETED
from databus.client.spark.blocking import Answer, ServerPool
from databus.client.spark.event_columns import EventColumns, UnknownSchemaError
from databus.client.spark.requests import filters_text
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, ServerError
from databus.schemas.filters import EventFilter

# Above this no answer is asked for: an event that is larger has come in no ring either.
MAX_FETCH_BYTES = 256 << 20


class BootstrapPages:
    """Pages of one source, of the keys that pass a filter."""

    def __init__(
        self,
        servers: ServerPool,
        source: str,
        src_id: int,
        wanted: EventFilter | None,
        fetch_bytes: int,
    ) -> None:
        self._servers = servers
        self._source = source
        self._parameters = {"sources": source, "output": "binary", "maxev": "2"}
        text = filters_text({} if wanted is None else {source: wanted}, {source: src_id})
        if text is not None:
            self._parameters["filter"] = text
        self._fetch_bytes = fetch_bytes

    def read(
        self,
        checkpoint: Checkpoint,
        columns: EventColumns,
        batch_rows: int,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what comes after a checkpoint, to the end of its phase.

        `more` are parameters of each request. Raises what the servers refuse.
        """
        while True:
            answer = self._ask(checkpoint, more or {})
            pending = answer.headers.get(PENDING_EVENT_BYTES)
            if pending is not None and not answer.body:
                self._grow(answer.server, int(pending))
                continue
            self._feed(answer, columns)
            if answer.headers.get(PHASE_COMPLETED, "").upper() == "TRUE":
                break
            after = columns.checkpoint
            if after is None or after == checkpoint:
                raise ServerError(answer.server, "a page of /bootstrap that leads nowhere")
            checkpoint = after
            if columns.rows >= batch_rows:
                yield from columns.flush()
        yield from columns.flush()

    def _ask(self, checkpoint: Checkpoint, more: Mapping[str, str]) -> Answer:
        parameters = {
            **self._parameters,
            "checkPoint": checkpoint.to_json(),
            "batchSize": str(self._fetch_bytes),
            **more,
        }
        return self._servers.get("/bootstrap", parameters, checkpoint.window_scn)

    def _grow(self, server: str, needed_bytes: int) -> None:
        if not self._fetch_bytes < needed_bytes <= MAX_FETCH_BYTES:
            raise ServerError(server, f"asks for an answer of {needed_bytes} bytes for one event")
        self._fetch_bytes = needed_bytes

    def _feed(self, answer: Answer, columns: EventColumns) -> None:
        """Give a page's events to the columns; schemas that came since are asked for once."""
        data, is_asked_again = memoryview(answer.body), False
        while data:
            try:
                taken = columns.take(data)
            except UnknownSchemaError as unknown:
                if is_asked_again:
                    raise
                is_asked_again = True
                columns.add_schemas(self._servers.register([self._source])[self._source])
                data = data[unknown.consumed :]
                continue
            except ProtocolError as error:
                raise ServerError(answer.server, f"bad bytes in /bootstrap: {error}") from error
            if taken != len(data):
                raise ServerError(answer.server, "a page of /bootstrap ends inside an event")
            return
