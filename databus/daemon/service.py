"""The shell that every daemon is: listen, start, signals, drain, health, metrics.

It knows nothing of what the daemon does: that comes as a `Service`. The order
matters: the port is bound before anything is started, so that a second copy
ends at once and touches nothing; and at the end listeners close first, held
requests are let go, responses finish or are cut, their requests end, and only
then is the work stopped: nobody reads what is closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import click
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from tornado.web import Application

from databus.conf.settings import HttpSettings, is_loopback
from databus.daemon.access import Role
from databus.daemon.descriptors import fit_connections
from databus.daemon.fair_queue import FairQueue
from databus.daemon.http import ApiHandler, UnknownCommandHandler
from databus.daemon.http_server import BoundedServer, ServerMetrics, listen, make_server
from databus.daemon.tls import server_context
from databus.daemon.tokens import make_access
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

WHOLE_S = 5.0  # from the signal to the end of the process, whatever still runs then
DRAIN_S = 1.0  # responses that are being sent may take so long
END_S = 1.0  # requests whose connections were cut so long, and are cancelled then
STOP_S = 4.5  # all of that and the work's own end so long
LEAST_STOP_S = 1.0  # but the work's own end at least so long
OWN_FILES = 64


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a daemon; `details` go into the answer unchanged.

    `word` says in what way all is not well, where there is more than one.
    """

    is_ok: bool
    details: dict[str, Any] = field(default_factory=dict)
    word: str = "error"


@dataclass(frozen=True, slots=True)
class Service:
    """What a daemon gives to the shell.

    `start` runs on the loop's thread and must not block; `let_go` runs there
    too and ends whatever requests are held; `stop` runs on another thread, may
    block for the seconds it is given, and must leave nothing behind.
    """

    name: str
    http: HttpSettings
    routes: Sequence[tuple[str, type[ApiHandler], dict[str, Any]]]
    metrics: CollectorRegistry
    health: Callable[[], Health]
    start: Callable[[], None]
    let_go: Callable[[], None]
    stop: Callable[[float], None]
    # Asked between start and drain, when the shell itself has nothing against it.
    ready: Callable[[], Health] | None = None
    own_files: int = OWN_FILES  # that it may have open at once, beside those of now


class Phase(StrEnum):
    """The phase of a service's life, as its shell knows it."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True)
class Life:
    """The phase of a service; its shell moves it on."""

    phase: Phase = Phase.STARTING

    def readiness_of(self, service: Service) -> Health:
        """Return whether others may come to it: it serves, and has nothing against it."""
        if self.phase is not Phase.SERVING:
            return Health(False, {"phase": self.phase})
        return service.ready() if service.ready else Health(True)


class HealthHandler(ApiHandler):
    """`/health`: 200 when all is well, 503 otherwise, with the reasons.

    And `/ready`: 200 when it does its work by now, so that others may come to it.
    Whoever may not read is told the status alone. Neither says whether to start a daemon
    anew, which mends nothing of what they tell: that it lives shows any answer at all.
    """

    def initialize(  # type: ignore[override]
        self, limits: HttpSettings, name: str, look: Callable[[], Health]
    ) -> None:
        """Take the service's name and what to ask it."""
        super().initialize(limits)
        self._name = name
        self._look = look

    def role_needed(self) -> Role:
        """Return NOBODY: what watches a daemon has no token, and is told no more than it needs."""
        return Role.NOBODY

    async def get(self) -> None:
        """Answer with how the service is."""
        health = self._look()
        status = "ok" if health.is_ok else health.word
        body = {"service": self._name, "status": status}
        if self.may(Role.READER):
            body |= health.details
        await self.send_json(body, 200 if health.is_ok else 503)


class MetricsHandler(ApiHandler):
    """`/metrics`: Prometheus' text format."""

    def initialize(self, limits: HttpSettings, metrics: CollectorRegistry) -> None:  # type: ignore[override]
        """Take the registry to print."""
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

    limits: dict[str, Any] = {"limits": service.http}
    named = limits | {"name": service.name}
    return Application(
        [
            *service.routes,
            ("/health", HealthHandler, named | {"look": service.health}),
            ("/ready", HealthHandler, named | {"look": readiness}),
            ("/metrics", MetricsHandler, limits | {"metrics": service.metrics}),
        ],
        default_handler_class=UnknownCommandHandler,
        default_handler_args=limits,
        log_function=_log_nothing,
        access=make_access(service.http),
        fair_queue=FairQueue(),
        requests=set(),
    )


def _log_nothing(_handler: object) -> None:
    """Keep tornado from a line per request; errors are logged where they are answered."""


async def serve(
    service: Service, until: asyncio.Event, listening: Callable[[str, BoundedServer], object]
) -> None:
    """Run a service until the event is set; `listening` is told the URL.

    Raises SettingsError when the port cannot be bound, or tokens or TLS not be had.
    """
    life = Life()
    application = make_application(service, life)
    most = fit_connections(service.http.max_connections, service.own_files)
    server = make_server(application, service.http, most)
    figures = ServerMetrics(server)
    url = listen(server, service.http)
    if service.http.has_tokens and not (service.http.tls_cert or is_loopback(service.http.host)):
        log.warning("tokens and rows pass %s in clear text: set http.tls_cert and tls_key", url)
    try:
        service.metrics.register(figures)
        service.start()
        life.phase = Phase.SERVING
        listening(url, server)
        await until.wait()
    finally:
        life.phase = Phase.DRAINING
        await _drain(service, server, application.settings["requests"])
        service.metrics.unregister(figures)


async def _drain(service: Service, server: BoundedServer, requests: set[asyncio.Task[Any]]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + STOP_S
    server.stop()
    service.let_go()
    await server.drain(DRAIN_S)
    await _end_all(requests)
    left_s = max(LEAST_STOP_S, end - loop.time())
    await loop.run_in_executor(None, service.stop, left_s)


async def _end_all(requests: set[asyncio.Task[Any]]) -> None:
    """Wait until no request runs: each step of one is short, and none may meet what is closed."""
    if requests:
        await asyncio.wait(set(requests), timeout=END_S)
    while requests:
        for request in requests:
            request.cancel()
        await asyncio.wait(set(requests), timeout=END_S)


def renew_secrets(server: BoundedServer, settings: HttpSettings) -> None:
    """Read tokens and certificate again, for every request and connection from now on.

    Raises SettingsError when one of them cannot be used, and then takes none.
    """
    access, context = make_access(settings), server_context(settings)
    application: Any = server.request_callback
    application.settings["access"] = access
    server.ssl_options = context


def run(service: Service) -> None:
    """Run a service in this process until SIGTERM or SIGINT; a second signal kills.

    SIGHUP takes tokens and certificate anew, but where a terminal sends it when it closes.
    """
    asyncio.run(_run_until_signal(service))


async def _run_until_signal(service: Service) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()

    signals = (signal.SIGTERM, signal.SIGINT)

    def end() -> None:
        until.set()
        _end_within(WHOLE_S)
        for number in signals:  # the next one, whichever it is, does what it does by default
            loop.remove_signal_handler(number)

    def listening(url: str, server: BoundedServer) -> None:
        if sys.stdin is None or not sys.stdin.isatty():
            loop.add_signal_handler(signal.SIGHUP, _renew_or_say_why, server, service.http)
        settle()
        click.echo(f"listening on {url}")

    for number in signals:
        loop.add_signal_handler(number, end)
    await serve(service, until, listening)


def _end_within(seconds: float) -> None:
    """End this process after so long, whatever still runs: a supervisor would kill it later.

    What a thread is cut in is as after a SIGKILL: whole, or done again at the next start.
    """
    timer = threading.Timer(seconds, _cut_short)
    timer.daemon = True  # it is not waited for itself
    timer.start()


def _cut_short() -> None:
    ours = (threading.main_thread(), threading.current_thread())
    names = ", ".join(sorted(one.name for one in threading.enumerate() if one not in ours))
    log.warning("ended after %g s without waiting for %s", WHOLE_S, names or "its connections")
    logging.shutdown()
    os._exit(0)


def _renew_or_say_why(server: BoundedServer, settings: HttpSettings) -> None:
    try:
        renew_secrets(server, settings)
    except SettingsError as error:
        log.error("tokens and certificate stay as they were: %s", error)
    else:
        log.warning("tokens and certificate were read again")


def settle() -> None:
    """Take what a process has made by now for what it keeps: for one that is all daemon.

    With all modules among what is looked at, a full garbage collection stops the
    loop for 70 ms and more.
    """
    gc.collect()
    gc.freeze()
