"""The tables of one physical source that its relays have stopped alone.

A relay refuses a request that includes such a table, so the producer reads the others without
it. The relays' status says when the table is captured again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from urllib.parse import quote

from databus.conf.settings import ServerAccessSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.http.client import FAILURES, HttpClient
from databus.schemas.errors import DatabusError, TableStoppedError
from databus.schemas.protocol import Parameter

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
_MAX_BYTES = 1 << 20


class StoppedTables:
    """The stopped tables of one physical source. Thread-safe: `problems` is replaced as a whole."""

    def __init__(
        self, physical_source: str, relays: Sequence[str], access: ServerAccessSettings
    ) -> None:
        self.problems: Mapping[str, str] = MappingProxyType({})  # by source
        self._physical_source = physical_source
        self._relays = relays
        self._access = access

    def add(self, error: TableStoppedError) -> None:
        """Add the table that a relay has refused."""
        self.problems = MappingProxyType({**self.problems, error.source: str(error)})

    def look(self) -> None:
        """Ask the relays, and forget the tables that one of them captures.

        A relay that does not answer proves nothing.
        """
        back: set[str] = set()
        for relay in self._relays:
            stopped = self._stopped_at(relay)
            if stopped is not None:
                back |= self.problems.keys() - stopped
        left = {name: text for name, text in self.problems.items() if name not in back}
        self.problems = MappingProxyType(left)

    def _stopped_at(self, relay: str) -> set[str] | None:
        """Return the tables that a relay has stopped; None if it does not say so."""
        name = self._physical_source
        path = f"/controlSources/status?{Parameter.SOURCE}={quote(name, safe='')}"
        try:
            client = HttpClient(
                relay,
                ServerAccess(self._access),
                connect_timeout_s=TIMEOUT_S,
                response_timeout_s=TIMEOUT_S,
                max_bytes=_MAX_BYTES,
            )
            with closing(client):
                answer = client.get(path)
            stopped = json.loads(answer.body)[name]["stoppedTables"]
            return {str(one["source"]) for one in stopped}
        except (DatabusError, *FAILURES, LookupError, TypeError) as error:
            log.debug("%s does not say which tables of %s are stopped: %s", relay, name, error)
            return None
