"""An answer's events into columns, asking once for schemas that are new."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from databus.client.spark.arrow.event_batches import EventColumns, UnknownSchemaError
from databus.client.spark.arrow.row_types import WriterSchema
from databus.client.spark.planning.server_pool import Answer
from databus.schemas.errors import ProtocolError, ServerError


def take_answer(
    answer: Answer, columns: EventColumns, newer_schemas: Callable[[], Iterable[WriterSchema]]
) -> None:
    """Give all events of an answer to the columns.

    `newer_schemas` is asked when an event has a schema that the columns were not
    given. Raises ServerError for bytes that are no events; what `EventColumns.take` raises.
    """
    data, is_asked = memoryview(answer.body), False
    while data:
        try:
            taken = columns.take(data)
        except UnknownSchemaError as unknown:
            if is_asked:
                raise
            is_asked = True
            columns.add_schemas(newer_schemas())
            data = data[unknown.consumed :]
            continue
        except ProtocolError as error:
            raise ServerError(answer.server, f"bad bytes: {error}") from error
        if taken != len(data):
            raise ServerError(
                answer.server, f"an answer ends in an event, {len(data) - taken} bytes into it"
            )
        return
