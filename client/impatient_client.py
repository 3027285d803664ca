"""A client for callers that try again by themselves: `databus tail`, the bootstrap producer."""

from __future__ import annotations

from databus.client.client import DatabusClient


class ImpatientClient(DatabusClient):
    """A client that fails when every relay refuses its request.

    `DatabusClient` goes on asking, because relays change.
    """

    _is_impatient = True
