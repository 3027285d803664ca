"""A client's own HTTP server: health, metrics, and the API of `api`.

It runs on the client's loop, beside reading, because its answers are small. It starts and
ends with the client.
"""

from __future__ import annotations

from typing import Any

from databus.client.machines.reachability import Silence
from databus.client.machines.states import Connection, Lifecycle
from databus.client.monitoring.api import endpoints
from databus.client.monitoring.metrics import make_metrics
from databus.client.monitoring.watched import WatchedClient
from databus.client.registration import Registration
from databus.conf.settings import ClientHttpSettings
from databus.daemon.http.handlers import ApiHandler, CommandHandler
from databus.daemon.http.openapi import api_routes
from databus.daemon.service import Health, Service

_BY_SOMEBODY = ("paused", "stopped")  # states of a source that are no alarm at the relay either


class AdminHandler(CommandHandler):
    """`/admin`: the health check of load balancers."""

    async def answer(self, *_path: str) -> None:
        """Answer GOOD."""
        await self.send(b"GOOD", "text/plain; charset=UTF-8")


def make_service(client: WatchedClient, http: ClientHttpSettings) -> Service:
    """Return the client as a service, which neither starts nor stops the client."""
    limits: dict[str, Any] = {"limits": http}
    routes: list[tuple[str, type[ApiHandler], dict[str, Any]]] = [
        ("/admin", AdminHandler, limits),
        *api_routes(endpoints(client), http),
    ]
    return Service(
        name="client",
        http=http,
        routes=routes,
        metrics=make_metrics(client),
        health=lambda: health_of(client),
        start=lambda: None,
        let_go=lambda: None,  # no request is held
        stop=lambda _: None,
        ready=lambda: readiness_of(client),
    )


def health_of(client: WatchedClient) -> Health:
    """Return the health: no error, checkpoints written, servers and sources answering."""
    error, (behind, waits_for, _, state) = client.error, client.report_answer
    registrations = _registrations(client)
    details = {
        "state": client.shown_state.value,
        "problem": "" if error is None else str(error),
        "behindSeconds": None if behind is None else behind.seconds,
        "relaySays": state,
        "waitsFor": [one.model_dump(by_alias=True) for one in waits_for],
        "registrations": registrations,
    }
    if not client.is_healthy:
        return Health(False, details, "error")
    # Windows are still delivered, but a crash would repeat more and more of them.
    if any(one.unsaved for one in client.registrations):
        return Health(False, details, "retrying")
    if any(one.blocked for one in client.registrations):
        return Health(False, details, "waiting")
    if any(one["silentSince"] is not None for one in registrations):
        return Health(False, details, "waiting")
    if not all(one.has_heard or one.is_idle for one in client.registrations):
        return Health(False, details, "starting")
    is_heard_of = all(one.state in _BY_SOMEBODY for one in waits_for)
    return Health(is_heard_of, details, "waiting")


def readiness_of(client: WatchedClient) -> Health:
    """Return the readiness: the client runs, and every registration streams from a relay."""
    found = client.registrations
    are_reading = bool(found) and all(one.connection is Connection.STREAMING for one in found)
    is_ready = client.shown_state is Lifecycle.RUNNING and are_reading
    details = {"state": client.shown_state.value, "registrations": _registrations(client)}
    return Health(is_ready, details)


def _registrations(client: WatchedClient) -> list[dict[str, Any]]:
    return [_registration(one, client.silence_of(one)) for one in client.registrations]


def _registration(one: Registration, silence: Silence | None) -> dict[str, Any]:
    return {
        "name": one.subscription.name,
        "sources": list(one.subscription.sources),
        "connection": one.connection.value,
        "problem": one.problem or ("" if silence is None else silence.problem),
        "silentSince": None if silence is None else silence.since_s,
    }
