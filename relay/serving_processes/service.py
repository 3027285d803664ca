"""A relay's service with serving processes around it."""

from __future__ import annotations

import time
from dataclasses import replace

from databus.daemon.service import Health, Service
from databus.relay.relay import Relay
from databus.relay.serving_processes.supervisor import ServingProcesses


def with_serving_processes(service: Service, relay: Relay) -> Service:
    """Return the service of a capturing process, whose readers are served by others.

    `service` is that of a relay that serves them itself.
    """
    processes = ServingProcesses(relay)

    def start() -> None:
        service.start()
        processes.start()

    def let_go() -> None:
        service.let_go()
        processes.let_go()

    def stop(timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        processes.stop(timeout_s / 2)
        service.stop(end_s - time.monotonic())
        processes.close()

    def health() -> Health:
        found = service.health()
        return replace(found, details=found.details | {"servingProcesses": processes.status()})

    return replace(
        service,
        http=processes.private_http,
        health=health,
        start=start,
        let_go=let_go,
        stop=stop,
        listen=processes.listen,
        connections=processes,
        renewed=processes.renew,
    )
