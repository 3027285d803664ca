"""The relay as a daemon service: its routes, `/health`, `/metrics`, start and stop."""

from __future__ import annotations

import time
from typing import Any

from databus.daemon.http.handlers import ApiHandler
from databus.daemon.http.openapi import api_routes
from databus.daemon.service import FrontDoor, Health, Service
from databus.relay.admin.api import RelayApi
from databus.relay.admin.metrics import make_metrics
from databus.relay.admin.page import page_routes
from databus.relay.admin.page_parts.bootstrap_beside import BootstrapBeside
from databus.relay.cluster.cluster import Cluster
from databus.relay.listing import held_sources
from databus.relay.monitoring.monitor import Ticker
from databus.relay.relay import Relay
from databus.relay.serving.canal.door.door import CanalDoor
from databus.relay.serving.canal.door.status import CanalCollector
from databus.relay.serving.databus.handlers import COMMANDS
from databus.relay.serving.databus.parameters import StreamRequests
from databus.relay.serving.ptubes.door import PtubesDoor
from databus.relay.serving.ptubes.metrics import PtubesMetrics
from databus.relay.serving_processes.service import with_serving_processes
from databus.servers.announcer import make_presence

OWN_FILES = 40
_STOP_S = 1.0  # for what only looks at the cluster, and may wait for a store that is away
FILES_OF_A_SOURCE = 24  # connections to its database, its MaxSCN, schema files, its relay log


def routes(
    relay: Relay, api: RelayApi | None = None
) -> list[tuple[str, type[ApiHandler], dict[str, Any]]]:
    """Return the tornado routes of the relay's commands, API and page."""
    limits = relay.settings.http
    requests = StreamRequests(relay.catalog, limits)
    arguments = {"limits": limits, "relay": relay, "requests": requests}
    return [
        *((path, handler, arguments) for path, handler in COMMANDS),
        *api_routes((api or RelayApi(relay)).endpoints(), limits),
        *page_routes(limits),
    ]


def health_of(relay: Relay) -> Health:
    """Return the answer of `/health`: the worst state, and each trouble."""
    troubles = relay.troubles
    shown = [
        {
            "physicalSource": one.physical_source,
            "state": one.state.value,
            "problem": one.text,
            "since": one.since,
            "nextTryAt": one.next_try_at,
        }
        for one in troubles
    ]
    word = troubles[0].state.value if troubles else ""
    return Health(not troubles, {"troubles": shown, "physicalSources": relay.status()}, word)


def make_service(relay: Relay, beside: BootstrapBeside | None = None) -> Service:
    """Return the relay as a service of the daemon shell; `beside` knows of a pair."""
    cluster = Cluster(relay)
    canal = None if relay.settings.canal is None else CanalDoor(relay, relay.settings.canal)
    doors: list[FrontDoor] = [] if canal is None else [canal]
    ptubes = None if relay.settings.ptubes is None else PtubesDoor(relay, relay.settings.ptubes)
    api = RelayApi(relay, cluster, canal, ptubes, beside)
    ticker = Ticker(api.tick)
    metrics = make_metrics(relay, cluster)
    if canal is not None:
        metrics.register(CanalCollector(canal))
    if ptubes is not None:
        doors.append(ptubes)
        metrics.register(PtubesMetrics(ptubes))

    def start() -> None:
        ticker.start()  # first: the tables are counted from the first row
        relay.start()

    def let_go() -> None:
        ticker.stop()
        relay.let_go()

    def stop(timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        api.others.stop()
        cluster.watch.stop(min(_STOP_S, timeout_s))
        relay.stop(end_s - time.monotonic())

    service = Service(
        name="relay",
        http=relay.settings.http,
        routes=routes(relay, api),
        metrics=metrics,
        health=lambda: health_of(relay),
        ready=lambda: Health(relay.is_ready, {"physicalSources": relay.status()}),
        start=start,
        let_go=let_go,
        stop=stop,
        own_files=OWN_FILES
        + sum(FILES_OF_A_SOURCE * (1 + p.catch_ups) for p in relay.settings.physical_sources),
        entered=relay.enter,
        presence=make_presence(relay.settings, "relay", lambda: held_sources(relay)),
        front_doors=doors,
        note_answer=api.audit.note,
    )
    if relay.settings.serving_processes:
        return with_serving_processes(service, relay)
    return service
