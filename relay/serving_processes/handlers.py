"""The handlers of a serving process: `/stream`, if its ring has it; all else is passed on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tornado.iostream import StreamClosedError

from databus.conf.settings import HttpSettings
from databus.daemon.access import Access
from databus.daemon.http.requests import Request
from databus.relay.serving.databus.at_once import StreamAnswer, answer_at_once
from databus.relay.serving.databus.handlers import Response, StreamHandler
from databus.relay.serving.databus.parameters import StreamRequest, StreamRequests
from databus.relay.serving_processes.passing_on import CapturerError, PassingHandler, is_foreign
from databus.relay.serving_processes.served_relay import PassOnError, ServedRelay
from databus.relay.serving_processes.shared_page import FROZEN_S, SharedPage
from databus.schemas.errors import DatabusError

_FROZEN = (
    "the process that captures has stood still for {:.0f} s: it is frozen, or its machine is "
    "overloaded; windows that the ring has are served meanwhile"
)


def check_capturer(page: SharedPage) -> None:
    """Raise CapturerError if the capturing process is frozen."""
    silent_s = (time.monotonic_ns() - page.beat_ns) / 1e9
    if silent_s > FROZEN_S:
        raise CapturerError(_FROZEN.format(silent_s))


def _answer_here(
    request: Request, access: Access, arguments: Mapping[str, Any]
) -> StreamAnswer | None:
    return None if is_foreign(request) else answer_at_once(request, access, arguments)


class ServingStreamHandler(StreamHandler, PassingHandler):
    """`/stream` of a serving process."""

    at_once = staticmethod(_answer_here)
    served: ServedRelay

    def initialize(  # type: ignore[override]
        self, limits: HttpSettings, relay: ServedRelay, requests: StreamRequests
    ) -> None:
        """Take the relay to serve."""
        # It has all of a relay that a stream needs.
        super().initialize(limits, relay, requests)  # type: ignore[arg-type]
        self.served = relay

    async def answer(self, *path: str) -> None:
        """Answer with events; pass on what cannot be answered here, errors too."""
        asked = self.served.traffic.stream_requests
        try:
            await super().answer(*path)
        except DatabusError as error:
            if isinstance(error, CapturerError) or self._headers_written:
                raise
            # Else it would be counted twice.
            self.served.passed_on[self._tracker.client_id] += 1
            if isinstance(error, PassOnError):
                self.served.traffic.stream_requests -= self.served.traffic.stream_requests > asked
            self.clear()
            served = self.served
            await self.pass_on(served.settings.data_dir, lambda: check_capturer(served.page))

    async def _respond_with_known(self, request: StreamRequest) -> tuple[Response, bool]:
        if is_foreign(self.request):
            raise PassOnError("the capturing process knows the schemas of this connection")
        try:
            return await super()._respond_with_known(request)
        except DatabusError as error:
            raise PassOnError(str(error)) from error


class PassOnHandler(PassingHandler):
    """Every other path, with any method."""

    def initialize(self, limits: HttpSettings, relay: ServedRelay) -> None:  # type: ignore[override]
        """Take the relay whose data folder has the socket."""
        super().initialize(limits)
        self._relay = relay

    def prepare(self) -> None:
        """Leave all checks to the capturing process."""
        if self._sender.is_gone:
            raise StreamClosedError
        self._be_counted()

    async def get(self, *_path: str) -> None:
        """Answer with what the capturing process answers."""
        try:
            page = self._relay.page
            await self.pass_on(self._relay.settings.data_dir, lambda: check_capturer(page))
        except CapturerError as error:
            if self.request.path != "/health":
                raise
            # As that of the capturing process, without details: nobody checks a token here.
            await self.send_json(
                {"service": "relay", "status": "error", "problem": str(error)}, 503
            )

    post = put = delete = head = options = patch = get
