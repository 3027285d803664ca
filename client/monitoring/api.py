"""The client's HTTP API: its report, pause and resume."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from databus.client.monitoring.watched import WatchedClient
from databus.daemon.access import Role
from databus.daemon.client_report import ClientReport
from databus.daemon.http.openapi import Call, Endpoint, with_document

TITLE = "A databus client"
DESCRIPTION = "Status of one client, pause and resume. Relays get the same report."


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
            "Status of the client and its registrations",
            ClientReport,
            after(lambda: None),
        ),
        Endpoint(
            "POST",
            "/api/v1/client/pause",
            "Make no callbacks until resumed; reading stops when the buffer is full",
            ClientReport,
            after(client.pause),
            role=Role.ADMIN,
        ),
        Endpoint(
            "POST",
            "/api/v1/client/resume",
            "Continue after a pause, or after an error with the failed window",
            ClientReport,
            after(client.resume),
            role=Role.ADMIN,
        ),
    ]
    return with_document(found, TITLE, DESCRIPTION)
