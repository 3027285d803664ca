"""What the API, the metrics and `/health` ask of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from databus.client.machines.reach import Silence
from databus.client.machines.states import Lifecycle
from databus.client.monitoring.reporter import Told
from databus.client.registration import Registration
from databus.daemon.client_report import ClientReport


class WatchedClient(Protocol):
    """A client, as it is seen from outside."""

    @property
    def state(self) -> Lifecycle:
        """Where it is in its life."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What suspended it."""
        ...

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong with it."""
        ...

    @property
    def registrations(self) -> Sequence[Registration]:
        """Everything that it reads."""
        ...

    @property
    def told(self) -> Told:
        """What its relays said last."""
        ...

    def silence_of(self, registration: Registration) -> Silence | None:
        """Return since when a registration hears of no server."""
        ...

    def report(self) -> ClientReport:
        """Return its state, as relays are sent it."""
        ...

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read on."""
