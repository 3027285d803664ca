"""Events whose schema the client does not have: a request to register again, or bad bytes. Pure."""

from __future__ import annotations

from typing import NoReturn

from databus.client.subscription import Bindings
from databus.schemas.errors import DatabusError, ProtocolError
from databus.schemas.stream.row_event import LOST_ROW_DIGEST


class UnknownSchemaError(DatabusError):
    """An event has a schema that the relay did not have at registration.

    Never leaves this package: the client registers again.
    """

    def __init__(self, src_id: int, schema_id: bytes, scn: int) -> None:
        super().__init__(f"no schema {schema_id.hex()} at registration")
        self.src_id = src_id
        self.schema_id = schema_id
        self.scn = scn


def explain_unknown(
    unknown: frozenset[tuple[int, bytes]], bindings: Bindings, scn: int = -1
) -> NoReturn:
    """Raise ProtocolError for events that have no place, or UnknownSchemaError.

    `scn` is that of their window, if they are of one.
    """
    for src_id, digest in unknown:
        if src_id not in bindings:
            raise ProtocolError(
                f"an event of source {src_id}, which was not asked for: the server gives its "
                "sources other ids than its events have; see whether its schemas.db (or store) "
                "and its ring were put together from different places, and put the right one back"
            )
        if digest == LOST_ROW_DIGEST:
            raise ProtocolError(f"an event of source {src_id} without a row")
    src_id, digest = min(unknown, key=lambda one: one[1])
    raise UnknownSchemaError(src_id, digest, scn)
