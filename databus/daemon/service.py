"""The shell of every daemon: listen, start, signals, drain, health, metrics.

The daemon's own work comes as a `Service`. The order of steps matters. The port is bound before
anything is started, so that a second copy ends at once and changes nothing. At the end the daemon
leaves the list of servers, if it is on one, so that clients go to others. Then listeners close,
held requests are answered, responses finish or are cut, and their requests end. Only then is the
work stopped, so that no request reads a closed file.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

import click
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from tornado.web import Application, RequestHandler

from databus.conf.settings import HttpSettings, is_loopback
from databus.daemon.access import Role
from databus.daemon.descriptors import fit_connections
from databus.daemon.fair_queue import FairQueue
from databus.daemon.http.at_once import AtOnceApplication
from databus.daemon.http.handlers import ApiHandler, UnknownCommandHandler
from databus.daemon.http.server import (
    BoundedServer,
    Connections,
    ServerMetrics,
    listen,
    make_server,
)
from databus.daemon.presence import Presence, PresenceMetrics, presence_details
from databus.daemon.tls import server_context
from databus.daemon.tokens import make_access
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

WHOLE_S = 5.0  # from the signal to the end of the process, whatever still runs then
LEAVE_S = 1.0  # for the list of servers, which may be out of reach
DRAIN_S = 1.0  # for responses that are being sent
END_S = 1.0  # for requests whose connections were cut; then they are cancelled
STOP_S = 4.5  # for all of that and the end of the work
LEAST_STOP_S = 1.0  # for the end of the work, however long the rest took
OWN_FILES = 64
_BACKLOG = 128
_DIED = "databus_died"  # a key of what the loop's exception handler is told


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a daemon; `details` go into the answer unchanged.

    `word` is the status of a daemon that is not well.
    """

    is_ok: bool
    details: dict[str, Any] = field(default_factory=dict)
    word: str = "error"


class FrontDoor(Protocol):
    """A listener with a protocol of its own, that the daemon's shell starts and ends."""

    name: str  # of the protocol, as messages have it

    def bind(self) -> str:
        """Bind and listen; return the address, as clients are given it. Raises SettingsError."""
        ...

    def serve(self, queue: FairQueue) -> None:
        """Begin to answer. Reads share the daemon's loop through its fair queue."""
        ...

    async def close(self, timeout_s: float) -> None:
        """Accept no more, let answers finish for a while, and end every session.

        Nothing of it may read afterwards: files are closed next.
        """
        ...


def bind_port(setting: str, host: str, port: int) -> socket.socket:
    """Bind and listen; raise SettingsError, which names the setting of the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        problem = error.strerror or error
        raise SettingsError(f"{setting}: {host}:{port} cannot be bound: {problem}") from error
    bound.setblocking(False)
    return bound


def _note_nothing(_handler: object) -> None:
    """Log no line per request; errors are logged where they are answered."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a daemon that the shell runs.

    `start` runs on the loop's thread and must not block. `let_go` runs there too and answers all
    held requests. `stop` runs on another thread, may block for the given seconds, and must leave
    nothing behind.
    """

    name: str
    http: HttpSettings
    routes: Sequence[tuple[str, type[ApiHandler], dict[str, Any]]]
    metrics: CollectorRegistry
    health: Callable[[], Health]
    start: Callable[[], None]
    let_go: Callable[[], None]
    stop: Callable[[float], None]
    # Called while the service is in the phase SERVING; without it, that phase is ready.
    ready: Callable[[], Health] | None = None
    own_files: int = OWN_FILES  # files that it may open later, all at once
    presence: Presence | None = None  # how clients find it, if they do
    entered: Callable[[str], None] | None = None  # called with the URL once it can be reached
    # Bind and listen; return the URL. Raises SettingsError.
    listen: Callable[[BoundedServer, HttpSettings], str] = listen
    # What `/metrics` says of connections: those of the server, or of others for it.
    connections: Connections | None = None
    renewed: Callable[[], None] | None = None  # called after tokens were read again
    front_doors: Sequence[FrontDoor] = ()  # further ports, with protocols of their own
    note_answer: Callable[[RequestHandler], None] = _note_nothing  # after each answer, on the loop


class Phase(StrEnum):
    """The phase of a service's life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True)
class Life:
    """The current phase of a service; the shell sets it."""

    phase: Phase = Phase.STARTING

    def readiness_of(self, service: Service) -> Health:
        """Return whether the service is ready for requests."""
        if self.phase is not Phase.SERVING:
            return Health(False, {"phase": self.phase})
        return _with_presence(service, service.ready() if service.ready else Health(True))


class HealthHandler(ApiHandler):
    """`/health`: 200 if all is well, otherwise 503 with the reasons. `/ready`: 200 if it serves.

    A caller without the right to read gets the status only. Neither is a liveness probe: a
    restart does not solve the problems that they report. Any answer shows that the daemon lives.
    """

    def initialize(  # type: ignore[override]
        self, limits: HttpSettings, name: str, look: Callable[[], Health]
    ) -> None:
        """Set the service's name and the function that returns its health."""
        super().initialize(limits)
        self._name = name
        self._look = look

    def role_needed(self) -> Role:
        """Return NOBODY, because monitoring has no token; it gets the status only."""
        return Role.NOBODY

    async def get(self) -> None:
        """Answer with the service's health."""
        health = self._look()
        status = "ok" if health.is_ok else health.word
        body = {"service": self._name, "status": status}
        if self.may(Role.READER):
            body |= health.details
        await self.send_json(body, 200 if health.is_ok else 503)


class MetricsHandler(ApiHandler):
    """`/metrics`: Prometheus' text format."""

    def initialize(self, limits: HttpSettings, metrics: CollectorRegistry) -> None:  # type: ignore[override]
        """Set the registry to print."""
        super().initialize(limits)
        self._metrics = metrics

    async def get(self) -> None:
        """Answer with every metric."""
        await self.send(generate_latest(self._metrics), CONTENT_TYPE_LATEST)


def make_application(service: Service, life: Life) -> Application:
    """Return the tornado application: the service's routes, health, metrics, the rest 404.

    Raises SettingsError when tokens cannot be read.
    """

    def readiness() -> Health:
        return life.readiness_of(service)

    def health() -> Health:
        return _with_presence(service, service.health())

    limits: dict[str, Any] = {"limits": service.http}
    named = limits | {"name": service.name}
    return AtOnceApplication(
        [
            *service.routes,
            ("/health", HealthHandler, named | {"look": health}),
            ("/ready", HealthHandler, named | {"look": readiness}),
            ("/metrics", MetricsHandler, limits | {"metrics": service.metrics}),
        ],
        default_handler_class=UnknownCommandHandler,
        default_handler_args=limits,
        log_function=service.note_answer,
        access=make_access(service.http),
        fair_queue=FairQueue(),
        requests=set(),
    )


def _with_presence(service: Service, health: Health) -> Health:
    # A list that is out of reach makes no server ill: who knows it is served.
    return replace(health, details=health.details | presence_details(service.presence))


async def serve(
    service: Service, until: asyncio.Event, listening: Callable[[str, BoundedServer], object]
) -> None:
    """Run a service until the event is set; call `listening` with the URL when it serves.

    Raises SettingsError if the port cannot be bound, or tokens or TLS files cannot be used.
    """
    life = Life()
    application = make_application(service, life)
    most = fit_connections(service.http.max_connections, service.own_files)
    server = make_server(application, service.http, most)
    connections: Connections = service.connections or server
    figures: list[Collector] = [ServerMetrics(connections)]
    if service.presence is not None:
        figures.append(PresenceMetrics(service.presence))
    url = service.listen(server, service.http)
    doors = _bind(service.front_doors, server)
    if service.http.has_tokens and not (service.http.tls_cert or is_loopback(service.http.host)):
        log.warning("tokens and rows pass %s in clear text: set http.tls_cert and tls_key", url)
    try:
        for one in figures:
            service.metrics.register(one)
        service.start()
        life.phase = Phase.SERVING
        for door in service.front_doors:
            door.serve(application.settings["fair_queue"])
        if service.entered is not None:
            service.entered(url)
        if service.presence is not None:
            service.presence.enter(url, lambda: connections.open_connections)
        listening(url, server)
        for name, address in doors.items():
            log.warning("clients of %s are served at %s", name, address)
        await until.wait()
    finally:
        life.phase = Phase.DRAINING
        await _drain(service, server, application.settings["requests"])
        for one in figures:
            service.metrics.unregister(one)


def _bind(doors: Sequence[FrontDoor], server: BoundedServer) -> dict[str, str]:
    """Bind the front doors' ports; return the address of each; raises SettingsError."""
    try:
        return {door.name: door.bind() for door in doors}
    except BaseException:
        server.stop()
        raise


async def _drain(service: Service, server: BoundedServer, requests: set[asyncio.Task[Any]]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + STOP_S
    if service.presence is not None:
        await service.presence.leave(LEAVE_S)
    server.stop()
    service.let_go()
    await asyncio.gather(
        server.drain(DRAIN_S), *(one.close(DRAIN_S) for one in service.front_doors)
    )
    await _end_all(requests)
    left_s = max(LEAST_STOP_S, end - loop.time())
    await loop.run_in_executor(None, service.stop, left_s)


async def _end_all(requests: set[asyncio.Task[Any]]) -> None:
    """Wait until no request runs, because none may use a file that is closed next."""
    if requests:
        await asyncio.wait(set(requests), timeout=END_S)
    while requests:
        for request in requests:
            request.cancel()
        await asyncio.wait(set(requests), timeout=END_S)


def renew_secrets(server: BoundedServer, settings: HttpSettings) -> None:
    """Read tokens and certificate again, for all later requests and connections.

    Raises SettingsError if one of them cannot be used, and then replaces none.
    """
    access, context = make_access(settings), server_context(settings)
    application: Any = server.request_callback
    application.settings["access"] = access
    server.ssl_options = context


def run(service: Service) -> None:
    """Run a service in this process until SIGTERM or SIGINT; a second signal kills.

    SIGHUP reads tokens and certificate again, unless stdin is a terminal, which sends SIGHUP when
    it closes. Raises SystemExit(1) when a task of `run_for_life` has died.
    """
    asyncio.run(_run_until_signal(service))


async def _run_until_signal(service: Service) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()

    signals = (signal.SIGTERM, signal.SIGINT)
    dead: list[str] = []

    def died(name: str, error: BaseException) -> None:
        log_death(name, error)
        dead.append(name)
        end_within(WHOLE_S, 1)
        until.set()

    def end() -> None:
        until.set()
        end_within(WHOLE_S)
        for number in signals:  # the next signal ends the process at once
            loop.remove_signal_handler(number)

    def listening(url: str, server: BoundedServer) -> None:
        if sys.stdin is None or not sys.stdin.isatty():
            loop.add_signal_handler(signal.SIGHUP, renew_or_say_why, server, service)
        settle()
        click.echo(f"listening on {url}")

    for number in signals:
        loop.add_signal_handler(number, end)
    watch_tasks(died)
    await serve(service, until, listening)
    if dead:
        sys.exit(1)


def run_for_life(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task that lasts as long as the daemon, and whose error ends it: see `watch_tasks`."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(_tell_death)
    return task


def _tell_death(task: asyncio.Task[None]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    context = {"message": "a task has died", "exception": error, _DIED: task.get_name()}
    task.get_loop().call_exception_handler(context)


def watch_tasks(died: Callable[[str, BaseException], None]) -> None:
    """Have the running loop call `died` with the name and the error of each task that dies.

    Only for tasks of `run_for_life`: nobody awaits them, and without them a daemon looks well.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if _DIED in context:
            died(context[_DIED], context["exception"])
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)


def log_death(name: str, error: BaseException | None) -> None:
    """Log that a thread or a task has died, and what follows."""
    log.error("%s has died, and so the process ends: %s", name, error, exc_info=error)


def end_within(seconds: float, exit_code: int = 0) -> None:
    """End this process after some seconds, whatever still runs, before a supervisor kills it.

    An interrupted thread leaves the same state as after SIGKILL, which every start can handle.
    """
    timer = threading.Timer(seconds, _cut_short, (seconds, exit_code))
    timer.daemon = True  # the process does not wait for the timer itself
    timer.start()


def _cut_short(seconds: float, exit_code: int) -> None:
    ours = (threading.main_thread(), threading.current_thread())
    names = ", ".join(sorted(one.name for one in threading.enumerate() if one not in ours))
    log.warning("ended after %g s without waiting for %s", seconds, names or "its connections")
    logging.shutdown()
    os._exit(exit_code)


def renew_or_say_why(server: BoundedServer, service: Service) -> None:
    """Read tokens and certificate again; if they cannot be used, log why and keep the old ones."""
    try:
        renew_secrets(server, service.http)
    except SettingsError as error:
        log.error("tokens and certificate stay as they were: %s", error)
    else:
        log.warning("tokens and certificate were read again")
        if service.renewed is not None:
            service.renewed()


def settle() -> None:
    """Exclude all current objects from garbage collection, in a process that is only a daemon.

    With the modules' objects included, a full collection stops the loop for 70 ms and more.
    """
    gc.collect()
    gc.freeze()
