"""The client's own API: what it tells of itself, and pause and resume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from databus.client.monitoring.watched import WatchedClient
from databus.daemon.access import Role
from databus.daemon.client_report import ClientReport
from databus.daemon.openapi import Call, Endpoint, with_document

TITLE = "A databus client"
DESCRIPTION = "How one client is, and pausing it. It sends relays the same report."


def endpoints(client: WatchedClient) -> list[Endpoint]:
    """Return every endpoint of a client's API."""

    def after(do: Callable[[], None]) -> Callable[[Call], Awaitable[ClientReport]]:
        async def answer(_call: Call) -> ClientReport:
            do()
            return client.report()

        return answer

    found = [
        Endpoint(
            "GET",
            "/api/v1/client",
            "What the client does, by registration",
            ClientReport,
            after(lambda: None),
        ),
        Endpoint(
            "POST",
            "/api/v1/client/pause",
            "Make no more callbacks until it is resumed; the buffer fills, then reading stops",
            ClientReport,
            after(client.pause),
            role=Role.ADMIN,
        ),
        Endpoint(
            "POST",
            "/api/v1/client/resume",
            "Go on after a pause, or after an error, with the window that failed",
            ClientReport,
            after(client.resume),
            role=Role.ADMIN,
        ),
    ]
    return with_document(found, TITLE, DESCRIPTION)
