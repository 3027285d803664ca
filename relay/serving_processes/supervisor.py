"""Starts the serving processes of a relay, looks after them, and tells them what they need.

The capturing process listens on a Unix socket only. Each serving process has a listening socket of
its own on the port of the settings (SO_REUSEPORT), among which the system divides the connections.
The capturing process keeps these sockets open: what connects while a serving process is replaced
waits for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from databus.conf.settings import HttpSettings
from databus.daemon.http.server import BoundedServer
from databus.relay.monitoring.monitor import Ticker
from databus.relay.relay import Relay
from databus.relay.serving_processes.listening import bind_each, bind_private
from databus.relay.serving_processes.messages import Drain, Report, Start, encode, read_message
from databus.relay.serving_processes.reports import ReadersElsewhere
from databus.relay.serving_processes.shared_page import FROZEN_S, SharedPage, make_page
from databus.relay.serving_processes.states import StateTeller

log = logging.getLogger(__name__)

BEAT_S = 0.5
_PROGRAM = "databus.relay.serving_processes.process"
FIRST_WAIT_S, MOST_WAIT_S = 0.2, 30.0  # before it is started again
_OWN_HEADERS_BYTES = 1024
STARTS_WITHIN_S = 30.0  # until its first heartbeat
_STEADY_S = 60.0  # after which a process counts as well again


@dataclass(slots=True)
class Child:
    """One serving process, or the place for the next one."""

    number: int
    listening: socket.socket
    news: int
    readers: ReadersElsewhere
    process: subprocess.Popen[bytes] | None = None
    writer: asyncio.StreamWriter | None = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    failures: int = 0
    problem: str = ""
    fault: str = ""  # why it was killed, until it has ended
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class ServingProcesses:
    """The serving processes of one relay. On the loop's thread, but for `stop`."""

    def __init__(self, relay: Relay) -> None:
        settings = relay.settings
        self._relay, self._count = relay, settings.serving_processes
        self._page_fd = make_page()
        self._page = SharedPage(self._page_fd, len(settings.physical_sources))
        self._teller = StateTeller(relay, self._page)
        self._children: list[Child] = []
        self._server: BoundedServer | None = None
        self._ticker = Ticker(self._tick, BEAT_S)
        self._ticked_s = 0.0
        self._is_ending = False
        self.restarts = 0

    @property
    def most(self) -> int:
        """The most connections that are served at once."""
        return self._share(self._relay.settings.http.max_connections) * self._count

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return sum(one.readers.last.open_connections for one in self._children)

    @property
    def turned_away(self) -> Counter[str]:
        """The numbers of refused connections, by limit."""
        found: Counter[str] = Counter()
        for one in self._children:
            found.update(one.readers.last.turned_away)
        return found

    @property
    def private_http(self) -> HttpSettings:
        """The limits of the private socket, which are not to be met before those of the port."""
        http = self._relay.settings.http
        return http.model_copy(
            update={
                "max_connections": self.most,
                "max_connections_per_client": self.most,
                "idle_connection_s": 2 * http.idle_connection_s,
                "max_request_bytes": http.max_request_bytes + _OWN_HEADERS_BYTES,
            }
        )

    def listen(self, server: BoundedServer, _http: HttpSettings) -> str:
        """Bind the port and the private socket; return the URL. Raises SettingsError."""
        http = self._relay.settings.http
        url, sockets = bind_each(http, self._count)
        self._children = [
            Child(number, sock, _new_news(), ReadersElsewhere(self._relay))
            for number, sock in enumerate(sockets)
        ]
        server.xheaders = True  # what serving processes say of their clients
        server.ssl_options = None  # they have the certificate
        server.add_socket(bind_private(self._relay.settings.data_dir))
        self._server = server
        return url

    def start(self) -> None:
        """Start them all."""
        self._page.beat(time.monotonic_ns())
        loop = asyncio.get_running_loop()
        self._teller.start(
            lambda: _suppressed(loop.call_soon_threadsafe, self._tell_state), self._wake
        )
        self._ticker.start()

    def let_go(self) -> None:
        """Let them answer what they hold, and end."""
        self._is_ending = True
        self._ticker.stop()
        for one in self._children:
            one.listening.close()
            self._tell(one, Drain())

    def stop(self, timeout_s: float) -> None:
        """Wait for their end, and end those that do not. Idempotent; on any thread."""
        end = time.monotonic() + timeout_s
        for one in self._children:
            if one.process is None:
                continue
            try:
                one.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.process = None

    def close(self) -> None:
        """Close all that they share. Idempotent."""
        self._teller.stop()
        for one in self._children:
            os.close(one.news)
        self._children = []
        if self._page_fd >= 0:
            self._page.close()
            os.close(self._page_fd)
            self._page_fd = -1

    def renew(self) -> None:
        """Let them read tokens and certificate again."""
        if self._server is not None:
            self._server.ssl_options = None
        for one in self._children:
            if one.process is not None:
                one.process.send_signal(signal.SIGHUP)

    def status(self) -> dict[str, Any]:
        """Return how many there are, and what is wrong, as JSON values."""
        running = [one for one in self._children if self._is_serving(one)]
        problems = [text for one in self._children if (text := self._warning(one))]
        return {
            "wanted": self._count,
            "running": len(running),
            "restarts": self.restarts,
            "warning": "; ".join(problems),
        }

    def _warning(self, child: Child) -> str:
        """Return what is wrong with a process; one that ended once and serves again is well."""
        if not child.problem or not self._is_serving(child):
            return child.problem
        again = f"; it serves again, after {child.failures} ends one soon after the other"
        return f"{child.problem}{again}" if child.failures > 1 else ""

    def _share(self, limit: int) -> int:
        """Return the part of a limit that one process has."""
        return -(-limit // self._count)

    def _is_serving(self, child: Child) -> bool:
        has_begun = self._page.child_beat_ns(child.number) > 0
        return child.process is not None and has_begun and not child.fault

    def _wake(self) -> None:
        """Wake them all; on any thread."""
        for one in self._children:
            os.eventfd_write(one.news, 1)

    def _tick(self) -> None:
        now_s = time.monotonic()
        self._page.beat(time.monotonic_ns())
        # A process that was frozen itself, as all of its machine may be, judges nobody.
        is_awake = now_s - self._ticked_s < FROZEN_S / 2
        self._ticked_s = now_s
        self._tell_state()
        for one in self._children:
            if one.process is None:
                if now_s >= one.start_at_s:
                    self._start(one)
            elif one.process.poll() is not None:
                self._bury(one, one.fault or f"ended with status {one.process.returncode}")
            elif is_awake and not one.fault and (fault := self._hangs(one, now_s)):
                # Its end is not waited for: a process that waits for a disk cannot be killed.
                one.fault = fault
                one.process.kill()
            elif one.problem and now_s - one.started_s > _STEADY_S:
                one.problem, one.failures = "", 0

    def _hangs(self, child: Child, now_s: float) -> str:
        """Return why a process is to be replaced; "" if it lives."""
        beat_ns = self._page.child_beat_ns(child.number)
        if not beat_ns:
            late = now_s - child.started_s > STARTS_WITHIN_S
            return f"did not begin to serve within {STARTS_WITHIN_S:.0f} s" if late else ""
        silent_s = now_s - beat_ns / 1e9
        return f"stood still for {silent_s:.0f} s, and was ended" if silent_s > FROZEN_S else ""

    def _start(self, child: Child) -> None:
        ours, theirs = socket.socketpair()
        self._page.child_beat(child.number, 0)
        fds = child.listening.fileno(), theirs.fileno(), child.news, self._page_fd
        command = [sys.executable, "-m", _PROGRAM, *map(str, fds), str(os.getpid())]
        try:
            # In a process group of its own: Ctrl-C is for the capturing process, which tells it.
            child.process = subprocess.Popen(
                command,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            ours.close()
            self._fail(child, f"cannot be started: {error}")
            return
        finally:
            theirs.close()
        child.started_s = time.monotonic()
        child.tasks.append(asyncio.ensure_future(self._follow(child, ours)))

    async def _follow(self, child: Child, channel: socket.socket) -> None:
        """Tell a new process what it needs, and take its reports until it ends."""
        reader, writer = await asyncio.open_connection(sock=channel)
        self._tell_state()  # to the others
        child.writer = writer
        settings = self._relay.settings
        http = settings.http
        self._tell(
            child,
            Start(
                settings,
                self._relay.catalog,
                logging.getLogger().isEnabledFor(logging.INFO),
                child.number,
                self._share(http.max_connections),
                self._share(http.max_connections_per_client),
            ),
        )
        self._tell(child, self._teller.whole())
        try:
            while True:
                message = await read_message(reader)
                if isinstance(message, Report):
                    child.readers.take(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # `_tick` finds out how it has ended
        finally:
            writer.close()

    def _tell(self, child: Child, message: object) -> None:
        if child.writer is not None and not child.writer.is_closing():
            child.writer.write(encode(message))

    def _tell_state(self) -> None:
        """Tell them the state where it has changed."""
        state = self._teller.changed()
        if state is not None:
            for one in self._children:
                self._tell(one, state)

    def _bury(self, child: Child, how: str) -> None:
        """Take a process that has ended out of the books."""
        child.process, child.writer, child.fault = None, None, ""
        self._page.child_beat(child.number, 0)
        for task in child.tasks:
            task.cancel()
        child.tasks.clear()
        child.readers.forget()
        self._fail(child, how)

    def _fail(self, child: Child, how: str) -> None:
        now_s = time.monotonic()
        if child.process is None and now_s - child.started_s > _STEADY_S:
            child.failures = 0
        wait_s = min(MOST_WAIT_S, FIRST_WAIT_S * 2**child.failures)
        child.failures += 1
        child.start_at_s = now_s + wait_s
        self.restarts += 1
        child.problem = f"serving process {child.number + 1} {how}"
        log.warning("%s; it is started again after %g s", child.problem, wait_s)


def _new_news() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def _suppressed(call: Any, *arguments: Any) -> None:
    """Call what fails once the loop is closed: then nobody is left to tell."""
    with suppress(RuntimeError):
        call(*arguments)
