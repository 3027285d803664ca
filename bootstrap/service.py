"""The bootstrap pair as a daemon's service: routes, `/health`, `/ready`, start and stop."""

from __future__ import annotations

import asyncio
from typing import Any

from databus.bootstrap.admin.api import PairApi
from databus.bootstrap.admin.metrics import make_metrics
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.server.handlers import COMMANDS
from databus.bootstrap.store.values import SourceStatus
from databus.daemon.http.handlers import ApiHandler
from databus.daemon.http.openapi import api_routes
from databus.daemon.service import Health, Service, run_for_life
from databus.servers.announcer import make_presence
from databus.servers.entry import HeldSource

OWN_FILES = 32
FILES_OF_A_STORE = 40  # three for each connection: producer, seeder, checks, readers


def routes(pair: Pair) -> list[tuple[str, type[ApiHandler], dict[str, Any]]]:
    """Return the server's routes, for tornado."""
    arguments = {"limits": pair.settings.http, "pair": pair}
    commands = [(path, handler, arguments) for path, handler in COMMANDS]
    return [*commands, *api_routes(PairApi(pair).endpoints(), pair.settings.http)]


def make_service(pair: Pair) -> Service:
    """Return the pair as a `Service`."""
    tasks: list[asyncio.Task[None]] = []

    def start() -> None:
        pair.start()
        tasks.append(run_for_life(pair.relays.run(), "the monitor of the relays"))

    def let_go() -> None:  # no request waits for new data here
        for task in tasks:
            task.cancel()

    return Service(
        name="bootstrap",
        http=pair.settings.http,
        routes=routes(pair),
        metrics=make_metrics(pair),
        health=lambda: _health(pair),
        start=start,
        let_go=let_go,
        stop=pair.stop,
        own_files=OWN_FILES + FILES_OF_A_STORE * len(pair.paths),
        ready=lambda: _readiness(pair),
        presence=make_presence(pair.settings, "bootstrap", lambda: _held(pair)),
    )


def _health(pair: Pair) -> Health:
    problems = pair.problems()
    return Health(not problems, {"problems": problems, "physicalSources": pair.status()})


def _readiness(pair: Pair) -> Health:
    statuses = {
        name: {source.name: source.status.value for source in store.sources}
        for name, store in pair.stores.items()
    }
    return Health(pair.is_ready, {"physicalSources": statuses})


def _held(pair: Pair) -> dict[str, HeldSource]:
    """Return the tables that are served here, by physical source; snapshots have no oldest SCN."""
    return {
        name: HeldSource(
            active,
            newest_scn=store.scn,
            reads=_read_from(pair, name),
            newest_at=max(0.0, store.timestamp_ns / 1e9),
        )
        for name, store in pair.stores.items()
        if not store.problem
        and (active := tuple(s.name for s in store.sources if s.status is SourceStatus.ACTIVE))
    }


def _read_from(pair: Pair, name: str) -> str:
    """Return the URL of the relay that fills a store; "" if none does here."""
    producer = pair.producers.get(name)
    return producer.status().server or "" if isinstance(producer, Producer) else ""
