"""The interface of a client that its API, metrics and `/health` use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from databus.client.machines.reachability import Silence
from databus.client.machines.states import Lifecycle
from databus.client.monitoring.reporter import ReportAnswer, Reporter, text_for_relays
from databus.client.puller.loop_thread import LoopThread
from databus.client.puller.transport import make_transport
from databus.client.registration import Registration
from databus.conf.settings import ClientSettings
from databus.daemon.client_report import ClientReport

if TYPE_CHECKING:
    from databus.client.monitoring.loop_server import LoopServer


class WatchedClient(Protocol):
    """A client that can be monitored, paused and resumed."""

    id: str

    @property
    def state(self) -> Lifecycle:
        """State of the client."""
        ...

    @property
    def shown_state(self) -> Lifecycle:
        """The same, but suspended once an error has stopped a registration."""
        ...

    @property
    def error(self) -> BaseException | None:
        """The error that suspended the client, or None."""
        ...

    @property
    def is_healthy(self) -> bool:
        """Whether no error has stopped the client."""
        ...

    @property
    def registrations(self) -> Sequence[Registration]:
        """The running registrations."""
        ...

    @property
    def report_answer(self) -> ReportAnswer:
        """Last answers of the relays."""
        ...

    def silence_of(self, registration: Registration) -> Silence | None:
        """Return since when no server answers a registration; None if one does."""
        ...

    def report(self) -> ClientReport:
        """Return the report that relays get."""
        ...

    def pause(self) -> None:
        """Make no callbacks until `resume`."""

    def resume(self) -> None:
        """Continue after `pause`, or after an error."""


def make_server(
    client: WatchedClient, settings: ClientSettings, loop: LoopThread
) -> LoopServer | None:
    """Return the client's own HTTP server, if the settings have one."""
    if settings.http is None:
        return None
    # Imported only here: most clients have no server, and its modules load slowly.
    from databus.client.monitoring.http import make_service
    from databus.client.monitoring.loop_server import LoopServer

    return LoopServer(make_service(client, settings.http), loop)


def make_reporter(
    client: WatchedClient,
    settings: ClientSettings,
    relays: Callable[[], Sequence[str]],
    clock: Callable[[], float],
) -> Reporter:
    """Return the reporter of a client, which reports to the relays in use or to one of `relays`."""
    return Reporter(
        settings.report_every_s,
        f"/api/v1/clients/{client.id}",
        lambda: text_for_relays(client.report()),
        lambda: [relay for one in client.registrations if (relay := one.relay) is not None],
        relays,
        lambda: make_transport(settings, client.id),
        clock,
    )
