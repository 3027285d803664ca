"""An HTTP server on the loop of a client, beside what else runs there."""

from __future__ import annotations

import asyncio
import logging
import threading

from databus.client.puller.loop_thread import LoopThread
from databus.daemon.http.server import BoundedServer
from databus.daemon.service import Service, serve

log = logging.getLogger(__name__)

START_S = 10.0


class LoopServer:
    """Serves a service, as a task on a loop. `url` is set once it has started."""

    def __init__(self, service: Service, loop: LoopThread) -> None:
        self.url = ""
        self._service = service
        self._loop = loop
        self._began = threading.Event()
        self._failed: BaseException | None = None

    def start(self) -> None:
        """Listen until the loop ends; raise SettingsError if that fails."""
        self._loop.spawn(self._serve, lambda _error: None)
        self._began.wait(START_S)
        if self._failed is not None:
            raise self._failed

    async def _serve(self) -> None:
        try:
            # The event is never set: the end of the loop cancels this task.
            await serve(self._service, asyncio.Event(), self._listening)
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._began.set()  # also after a failure: `start` waits for this

    def _listening(self, url: str, _server: BoundedServer) -> None:
        self.url = url
        log.info("listening on %s", url)
        self._began.set()
