"""Read a bootstrap server's snapshot or log, page by page, as Arrow batches.

Every problem is an error: no row is skipped silently, and no snapshot is restarted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from databus.client.spark.arrow.event_batches import EventBatches, UnknownSchemaError
from databus.client.spark.arrow.row_types import WriterSchema
from databus.client.spark.planning.server_pool import Answer, ServerPool
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import (
    BootstrapTooOldError,
    DatabusError,
    ProtocolError,
    ReadAgainError,
    SchemaNotFoundError,
    ServerError,
)
from databus.schemas.protocol import Header, Parameter
from databus.schemas.stream.packs import begins_with_pack, packs_in

# The largest response to ask for; no ring holds a larger event.
MAX_FETCH_BYTES = 256 << 20
POLL_S = 0.2


class BootstrapPages:
    """Pages of sources; `wanted` is the text of the parameter `filter`.

    A server that has not reached the checkpoint yet is asked again for `patience_s`.
    With `is_of_one_version` a new schema version is an error.
    """

    def __init__(
        self,
        servers: ServerPool,
        sources: Sequence[str],
        wanted: str | None,
        fetch_bytes: int,
        patience_s: float = 0.0,
        *,
        is_of_one_version: bool = False,
    ) -> None:
        self._is_of_one_version = is_of_one_version
        self._servers = servers
        self._sources = tuple(sources)
        self._parameters = {
            Parameter.SOURCES: ",".join(sources),
            Parameter.OUTPUT: "binary",
            Parameter.EVENT_VERSION: "2",
            Parameter.TRUNCATE: "true",
        }
        if wanted is not None:
            self._parameters[Parameter.FILTER] = wanted
        self._fetch_bytes = fetch_bytes
        self._patience_s = patience_s

    def read(
        self,
        checkpoint: Checkpoint,
        columns: EventBatches,
        batch_rows: int,
        more: Mapping[str, str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows after a checkpoint, to the end of its phase.

        `more`: parameters of each request. Raises the servers' refusals.
        """
        while True:
            answer = self._ask(checkpoint, more or {})
            pending = answer.headers.get(Header.PENDING_EVENT_BYTES)
            if pending is not None and not answer.body:
                self._grow(answer.server, int(pending))
                continue
            take_answer(answer, columns, self._newer_schemas)
            if answer.headers.get(Header.PHASE_COMPLETED.lower(), "").upper() == "TRUE":
                break
            after = columns.checkpoint
            # The same page would be requested for ever.
            if after is None or after == checkpoint:
                raise ServerError(answer.server, "a page of /bootstrap that does not advance")
            checkpoint = after
            if columns.rows >= batch_rows:
                yield from columns.flush()
        yield from columns.flush()

    def _ask(self, checkpoint: Checkpoint, more: Mapping[str, str]) -> Answer:
        parameters = {
            **self._parameters,
            Parameter.CHECKPOINT: checkpoint.to_json(),
            Parameter.BATCH_SIZE: str(self._fetch_bytes),
            **more,
        }
        end = time.monotonic() + self._patience_s
        while True:
            try:
                return self._servers.get("/bootstrap", parameters, checkpoint.window_scn)
            except DatabusError as error:
                if not isinstance(error, BootstrapTooOldError) or time.monotonic() >= end:
                    raise
                time.sleep(POLL_S)

    def _grow(self, server: str, needed_bytes: int) -> None:
        if not self._fetch_bytes < needed_bytes <= MAX_FETCH_BYTES:
            raise ServerError(server, f"needs a response of {needed_bytes} bytes for one event")
        self._fetch_bytes = needed_bytes

    def _newer_schemas(self) -> list[WriterSchema]:
        if self._is_of_one_version:
            raise ReadAgainError(
                f"{', '.join(self._sources)}: altered while it was read; begin the reading again "
                "(with option asOf: choose an SCN after the ALTER)"
            )
        found = self._servers.register(self._sources)
        return [version for versions in found.values() for version in versions]


def take_answer(
    answer: Answer, columns: EventBatches, newer_schemas: Callable[[], Iterable[WriterSchema]]
) -> None:
    """Decode all events of a response into `columns`.

    `newer_schemas` is called when an event has an unknown schema. Raises ServerError
    for bytes that are not events, SchemaNotFoundError if the schema is not among those it
    returns; also the errors of `EventBatches.take`.
    """
    data, is_asked = memoryview(answer.body), False
    if begins_with_pack(data):
        data = data[_take_packs(answer, columns, newer_schemas) :]
    while data:
        try:
            taken = columns.take(data)
        except UnknownSchemaError as unknown:
            # The schemas were just read: the server has rows of a version that it does not list.
            if is_asked:
                raise _not_listed(answer, unknown) from unknown
            is_asked = True
            columns.add_schemas(newer_schemas())
            data = data[unknown.consumed :]
            continue
        except ProtocolError as error:
            raise ServerError(answer.server, f"bad bytes: {error}") from error
        if taken != len(data):
            raise ServerError(
                answer.server,
                f"the response ends within an event, {len(data) - taken} bytes into it",
            )
        return


def _take_packs(
    answer: Answer, columns: EventBatches, newer_schemas: Callable[[], Iterable[WriterSchema]]
) -> int:
    """Take the packs at the beginning of a response; return where they end."""
    end = 0
    try:
        for pack, end in packs_in(memoryview(answer.body)):  # noqa: B007 - the last end is returned
            try:
                columns.take_pack(pack)
            except UnknownSchemaError:
                columns.add_schemas(newer_schemas())
                columns.take_pack(pack)
    except UnknownSchemaError as unknown:
        raise _not_listed(answer, unknown) from unknown
    except ProtocolError as error:
        raise ServerError(answer.server, f"bad bytes: {error}") from error
    return end


def _not_listed(answer: Answer, unknown: UnknownSchemaError) -> SchemaNotFoundError:
    return SchemaNotFoundError(
        f"{answer.server} sends rows of source id {unknown.src_id} with schema "
        f"{unknown.digest.hex()}, which is not listed at /register"
    )
