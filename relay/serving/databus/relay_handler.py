"""What the handlers of a relay's commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from databus.conf.settings import HttpSettings
from databus.daemon.http.handlers import CommandHandler
from databus.relay.relay import Relay
from databus.relay.serving.databus.parameters import StreamRequests
from databus.relay.serving.databus.read_limits import readable
from databus.relay.serving.reading.reading import in_steps
from databus.schemas.errors import DatabusError, UnknownSourceError

Answer = TypeVar("Answer")


class RelayHandler(CommandHandler):
    """Base class of the relay's handlers."""

    relay: Relay
    requests: StreamRequests

    def error_for_caller(self, error: DatabusError) -> DatabusError:
        """Return an error that names no source that the requester may not read."""
        limit = self.read_limit()
        if limit is None or not isinstance(error, UnknownSourceError):
            return error
        return UnknownSourceError(error.source, readable(limit, self.relay.catalog.ids))

    def initialize(  # type: ignore[override]
        self, limits: HttpSettings, relay: Relay, requests: StreamRequests
    ) -> None:
        """Take the relay to serve."""
        super().initialize(limits)
        self.relay = relay
        self.requests = requests

    async def in_steps(self, step: Callable[[], Answer | None]) -> Answer:
        """Run all steps, queueing with other requests after each."""
        return await in_steps(self.fair_queue, step)
