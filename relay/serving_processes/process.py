"""The program of a serving process; the capturing process starts it.

    python -m databus.relay.serving_processes.process LISTENING CHANNEL NEWS PAGE PARENT

The numbers are those of inherited descriptors, and the parent's process id. It ends with its
parent, however that one ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time

from prometheus_client import CollectorRegistry

from databus.cli.daemon_options import SWITCH_INTERVAL_S
from databus.daemon.descriptors import raise_limit
from databus.daemon.http.server import BoundedServer, url_of
from databus.daemon.log_setup import set_up_logs
from databus.daemon.parents import end_with_parent
from databus.daemon.service import Health, Service, run
from databus.relay.monitoring.monitor import Ticker
from databus.relay.serving.databus.parameters import StreamRequests
from databus.relay.serving_processes.handlers import PassOnHandler, ServingStreamHandler
from databus.relay.serving_processes.messages import (
    Drain,
    Start,
    State,
    encode,
    read_message,
    receive,
)
from databus.relay.serving_processes.reports import Reporter
from databus.relay.serving_processes.served_relay import ServedRelay
from databus.relay.serving_processes.shared_page import SharedPage

BEAT_S = 0.5


class ServingProcess:
    """Serves readers on one listening socket until it is told to end."""

    def __init__(self, start: Start, listening: socket.socket, news: int, page: SharedPage) -> None:
        self.relay = ServedRelay(start.settings, start.catalog, page)
        self._start, self._listening, self._news, self._page = start, listening, news, page
        self._reporter: Reporter | None = None
        self._ticker = Ticker(self._tick, BEAT_S)
        self._tasks: list[asyncio.Task[None]] = []
        self._writer: asyncio.StreamWriter | None = None

    def service(self, channel: socket.socket) -> Service:
        """Return it as a service of the daemon shell."""
        http = self._start.settings.http.model_copy(
            update={
                "max_connections": self._start.most_connections,
                "max_connections_per_client": self._start.most_of_one,
            }
        )
        requests = StreamRequests(self.relay.catalog, http)
        arguments = {"limits": http, "relay": self.relay}
        return Service(
            name="relay",
            http=http,
            routes=[
                ("/stream", ServingStreamHandler, arguments | {"requests": requests}),
                (".*", PassOnHandler, arguments),
            ],
            metrics=CollectorRegistry(),
            health=lambda: Health(True),  # that of the capturing process is passed on
            start=lambda: self._begin(channel),
            let_go=self._let_go,
            stop=lambda _timeout_s: None,
            # Each connection may need one to the capturing process.
            own_files=64 + http.max_connections,
            listen=self._listen,
        )

    def _listen(self, server: BoundedServer, _http: object) -> str:
        self._reporter = Reporter(self.relay, server)
        server.add_socket(self._listening)
        return url_of(self._listening, self._start.settings.http)

    def _begin(self, channel: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._news, self._look)
        self._tasks.append(loop.create_task(self._follow(channel)))
        self._ticker.start()

    def _look(self) -> None:
        os.eventfd_read(self._news)
        self.relay.look()

    async def _follow(self, channel: socket.socket) -> None:
        """Do what the capturing process says; end with it."""
        reader, self._writer = await asyncio.open_connection(sock=channel)
        try:
            while True:
                message = await read_message(reader)
                if isinstance(message, State):
                    self.relay.take(message)
                elif isinstance(message, Drain):
                    os.kill(os.getpid(), signal.SIGTERM)
        except (asyncio.IncompleteReadError, ConnectionError):
            os._exit(1)  # it is gone, and nothing here is worth saving

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._page.child_beat(self._start.number, time.monotonic_ns())
        self.relay.look()  # in case a wake-up was lost
        self.relay.monitor.clients.tick(now_s)
        if self._writer is not None and self._reporter is not None:
            self._writer.write(encode(self._reporter.report(now_s)))

    def _let_go(self) -> None:
        self._ticker.stop()
        self.relay.let_go()


def main(arguments: list[str]) -> None:
    """Serve until the capturing process says so, or ends."""
    listening_fd, channel_fd, news, page_fd, parent = map(int, arguments)
    end_with_parent(parent, signal.SIGKILL)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_limit()
    channel = socket.socket(fileno=channel_fd)
    start = receive(channel)
    assert isinstance(start, Start)
    channel.setblocking(False)
    set_up_logs(start.settings.log_format, is_verbose=start.is_verbose)
    page = SharedPage(page_fd, len(start.settings.physical_sources))
    listening = socket.socket(fileno=listening_fd)
    listening.setblocking(False)
    run(ServingProcess(start, listening, news, page).service(channel))


if __name__ == "__main__":
    main(sys.argv[1:])
