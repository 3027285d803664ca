"""Events whose schema the client does not have: a request to register again, or bad bytes. Pure."""

from __future__ import annotations

from typing import NoReturn

from databus.client.subscription import Bindings
from databus.schemas.errors import DatabusError, ProtocolError
from databus.schemas.stream.row_reader import LOST_ROW_DIGEST


class UnknownSchemaError(DatabusError):
    """An event has a schema that the relay did not have at registration.

    Never leaves this package: the client registers again.
    """

    def __init__(self, schema_id: bytes) -> None:
        super().__init__(f"no schema {schema_id.hex()} at registration")
        self.schema_id = schema_id


def explain_unknown(unknown: frozenset[tuple[int, bytes]], bindings: Bindings) -> NoReturn:
    """Raise ProtocolError for events that have no place, or UnknownSchemaError."""
    for src_id, digest in unknown:
        if src_id not in bindings:
            raise ProtocolError(
                f"an event of source {src_id}, which was not asked for: the server gives its "
                "sources other ids than its events have; see whether its schemas.db (or store) "
                "and its ring were put together from different places, and put the right one back"
            )
        if digest == LOST_ROW_DIGEST:
            raise ProtocolError(f"an event of source {src_id} without a row")
    raise UnknownSchemaError(min(digest for _, digest in unknown))
