"""A relay and its bootstrap pair as one process, from the relay's settings.

The pair reads its own relay over HTTP, as any pair does, so nothing about either is different
from two processes. What it has to know of the relay is filled in here: address, token, databases.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from databus.bootstrap.packs.thread import PackingThread
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.seeder.job import SeedingThread
from databus.bootstrap.service import make_service as make_pair_service
from databus.client.sinks.isolated.secret_variables import secret_variables
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.serving.garbage import collect_rarely
from databus.client.sinks.serving.process import make_plans
from databus.conf.addresses import EVERYWHERE
from databus.conf.loading import build_settings
from databus.conf.settings import BootstrapSettings, HttpSettings, PairSettings, RelaySettings
from databus.conf.sinks_beside import sinks_beside
from databus.daemon.http.server import BoundedServer, bind, url_of
from databus.daemon.service import Health, Service
from databus.daemon.tokens import has_whole_reader
from databus.relay.admin.page_parts.bootstrap_beside import BootstrapBeside
from databus.relay.relay import Relay
from databus.relay.service import make_service as make_relay_service
from databus.relay.sources.kind import kind_of
from databus.schemas.errors import DatabusError, SettingsError
from databus.standalone.pair_view import pairs_of
from databus.standalone.sinks_beside import SinksBeside
from databus.standalone.together import run_together

log = logging.getLogger(__name__)

PORT_SETTING = "bootstrap.port"


def pair_settings(
    settings: RelaySettings, relay_url: str = "http://127.0.0.1"
) -> BootstrapSettings:
    """Return the settings of the pair beside a relay, which serves at `relay_url`.

    Raises SettingsError.
    """
    own = settings.bootstrap
    http = settings.http.model_dump() | {"port": own.port}
    kept = own.model_dump(exclude={"data_dir", "port", "public_url", "relay_tls_ca"})
    raw: dict[str, Any] = kept | {
        "http": http,
        "data_dir": own.data_dir or settings.data_dir / "bootstrap",
        "relays": (_own_url(settings, relay_url),),
        "relay_access": _own_access(settings.http, own),
        # The tables of patterns that are known now: a pair keeps what is listed.
        "physical_sources": tuple(p.only(p.source_names) for p in settings.physical_sources),
        "coordinator": settings.coordinator,
        "public_url": own.public_url,
        "room": settings.room,
        "log_format": settings.log_format,
    }
    return build_settings(raw, BootstrapSettings, "[bootstrap]")


def run_both(
    settings: RelaySettings, started: Callable[[str, str], object], file: Path | None = None
) -> None:
    """Run a relay and its pair until SIGTERM or Ctrl-C; `started` gets the URLs of both.

    Sinks of the settings run beside them; paths in their options are relative to `file`.

    Raises SettingsError, and other errors of the relay's or the pair's start.
    """
    _check_kinds(settings)
    http = pair_settings(settings).http
    with ExitStack() as opened:
        if settings.sinks:
            collect_rarely()
        sinks = _make_sinks(settings, file)
        opened.callback(sinks.close)
        # Both ports are bound before anything is started: a second copy changes nothing.
        pair_socket = opened.enter_context(bind(http, PORT_SETTING))
        relay = Relay(settings)
        opened.callback(relay.stop)
        relay.changes.has_pair = True
        beside = PairBeside(relay, pair_socket, opened)

        def make_third(relay_url: str, pair_url: str) -> Service:
            access = _own_access(relay.settings.http, relay.settings.bootstrap)
            urls = _own_url(relay.settings, relay_url), _pair_url(relay.settings, pair_url)
            return sinks.service(sinks_beside(settings, *urls, access))

        first = _with_pair(relay, beside, sinks)
        third = make_third if settings.sinks else None
        run_together(first, beside.make, started, third, beside.is_outdated)


def _make_sinks(settings: RelaySettings, file: Path | None) -> SinksBeside:
    """Return the sinks, which start later; raise SettingsError for what they cannot start with."""
    if not settings.sinks:
        return SinksBeside([])
    hidden = secret_variables(settings)
    return SinksBeside(make_plans(sinks_beside(settings), file, hidden=hidden))


def _check_kinds(settings: RelaySettings) -> None:
    """Raise SettingsError for a source whose tables a bootstrap pair cannot read."""
    for source in settings.physical_sources:
        if kind_of(source.uri).scan is None:
            raise SettingsError(
                f"physical source {source.name}: uri = {source.uri!r}: a bootstrap pair cannot "
                "read its tables; `databus relay run` captures it without one"
            )


def _check_found(settings: RelaySettings) -> None:
    """Raise SettingsError for a source whose patterns have found nothing that a pair could keep."""
    for source in settings.physical_sources:
        if not source.source_names:
            raise SettingsError(
                f"physical source {source.name}: its patterns have found no table yet, and the "
                "bootstrap pair beside the relay needs one at its start: make a table, see with "
                "`databus doctor` whether the database is reached, or use `databus relay run`"
            )


def _own_url(settings: RelaySettings, url: str) -> str:
    """Return the URL at which the pair reads the relay: one that its certificate is for."""
    if settings.http.tls_cert and settings.public_url:
        return settings.public_url
    return _reachable(url)


def _pair_url(settings: RelaySettings, url: str) -> str:
    """Return the URL at which sinks read the pair: one that its certificate is for."""
    if settings.http.tls_cert and settings.bootstrap.public_url:
        return settings.bootstrap.public_url
    return _reachable(url)


def _reachable(url: str) -> str:
    """Return the URL at which this machine reaches a server."""
    parts = urlsplit(url)
    if parts.hostname in EVERYWHERE:
        host = "[::1]" if ":" in parts.hostname else "127.0.0.1"
        return f"{parts.scheme}://{host}:{parts.port}"
    return url


def _own_access(http: HttpSettings, own: PairSettings) -> dict[str, Any]:
    """Return the access to the relay, with the first of its own tokens that is for all sources."""
    file = http.reader_tokens_file
    if file is None or not has_whole_reader(file):
        file = http.admin_tokens_file or file
    variable = http.reader_token_env or http.admin_token_env
    token = {"token_env": variable} if variable else {"token_file": file} if file else {}
    return token | {"tls_ca": own.relay_tls_ca}


def _with_pair(relay: Relay, beside: PairBeside, sinks: SinksBeside) -> Service:
    """Return the relay's service, whose `/health` has the problems of pair and sinks, too."""
    service = make_relay_service(relay, beside.view)

    def health() -> Health:
        found = service.health()
        problems, warnings = beside.problems(), beside.warnings()
        details = found.details | {"bootstrap": {"problems": problems, "warnings": warnings}}
        states = sinks.states
        if states:
            details |= {"sinks": states}
        is_well = not problems and SinkState.STOPPED not in states.values()
        return Health(found.is_ok and is_well, details, found.word or "error")

    return replace(service, health=health)


class PairBeside:
    """The pair beside a relay, on its bound socket; made again when the relay has more tables."""

    def __init__(self, relay: Relay, bound: socket.socket, opened: ExitStack) -> None:
        self.view = BootstrapBeside(relay)
        self._relay, self._bound, self._opened = relay, bound, opened
        self._pair: Pair | None = None
        self._problem = ""  # why it cannot be made
        self._new: list[str] = []  # tables that the pair did not keep at the last look

    def make(self, relay_url: str) -> Service:
        """Return the service of a pair that keeps all tables of now. Raises SettingsError."""
        _check_found(self._relay.settings)
        settings = pair_settings(self._relay.settings, relay_url)
        try:
            if self._pair is not None:
                # Once more: a thread that took long to stop keeps the store's lock until then.
                self._pair.stop(0.0)
            pair = Pair(settings, Producer, SeedingThread, PackingThread)
        except DatabusError as error:
            self._problem = str(error)
            raise
        self._problem, self._pair = "", pair
        self._opened.callback(pair.stop)
        url = url_of(self._bound, settings.http)
        self.view.in_process = lambda: pairs_of(pair, url)
        return replace(make_pair_service(pair), listen=self._listen)

    def _listen(self, server: BoundedServer, settings: HttpSettings) -> str:
        # A copy: the server closes what it is given, and the next one needs the port.
        server.add_socket(self._bound.dup())
        return url_of(self._bound, settings)

    def is_outdated(self) -> bool:
        """Return whether the relay has more tables, and no other ones than at the last look."""
        before, self._new = self._new, [name for _, name in self._not_kept()]
        if self._new and self._new == before:
            log.warning("the bootstrap pair starts again, to keep %s, too", ", ".join(self._new))
            return True
        return False

    def problems(self) -> dict[str, list[str]]:
        """Return the problems of each physical source that has any, and why there is no pair."""
        found = {} if self._pair is None else self._pair.problems()
        if self._problem:
            found["pair"] = [f"it cannot start again, which is tried on: {self._problem}"]
        return found

    def warnings(self) -> list[str]:
        """Return a warning for each table that the pair does not keep yet."""
        return [
            f"{physical}: the bootstrap pair does not keep {name} yet: it takes it in just now"
            for physical, name in self._not_kept()
        ]

    def _not_kept(self) -> Iterator[tuple[str, str]]:
        """Yield physical source and name of each table that came after the pair's start."""
        if self._pair is None:
            return
        sources = self._pair.settings.physical_sources
        kept = {name for source in sources for name in source.source_names}
        for physical, names in self._relay.catalog.members.items():
            yield from ((physical, name) for name in names if name not in kept)
