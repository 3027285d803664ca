"""The bootstrap server's HTTP handlers: the commands of the Databus protocol, and a few more.

Handlers are thin: parse the parameters (which raises), call the rules on a thread that
has the stores open, write the answer. The server is stateless between two requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from databus.bootstrap.pair import Pair
from databus.bootstrap.server.measure import measure
from databus.bootstrap.server.pages import Page, find_start, find_target
from databus.bootstrap.server.parameters import (
    parse_measure_request,
    parse_page_request,
    parse_sources,
    parse_start_request,
)
from databus.bootstrap.server.sessions import Caller, ServedPhase, Session, caller_of
from databus.bootstrap.server.source_lookup import Stores, all_sources, choose_sources
from databus.conf.settings import HttpSettings
from databus.daemon.access import Role
from databus.daemon.http.handlers import CommandHandler
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import (
    BootstrapError,
    BootstrapTooOldError,
    DatabusError,
    InvalidParameterError,
)
from databus.schemas.event.metadata import with_metadata_schemas
from databus.schemas.parameters import parse_protocol_version
from databus.schemas.protocol import Header, Parameter

_HOST_PORT = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}")

Result = TypeVar("Result")


class BootstrapHandler(CommandHandler):
    """The base class of the bootstrap server's handlers; counts refused requests."""

    pair: Pair

    def initialize(self, limits: HttpSettings, pair: Pair) -> None:  # type: ignore[override]
        """Store the pair that answers."""
        super().initialize(limits)
        self.pair = pair

    async def get(self, *path: str) -> None:
        """Handle a GET request."""
        try:
            await super().get(*path)
        except DatabusError as error:
            refusals = self.pair.traffic.refusals
            refusals[error.wire_name] = refusals.get(error.wire_name, 0) + 1
            raise

    def error_for_caller(self, error: DatabusError) -> DatabusError:
        """Return an error that a caller of LinkedIn's asks again after.

        "Not as far yet" suspends its client for ever. After a name that it does not know it
        waits, with its back-off.
        """
        if isinstance(error, BootstrapTooOldError) and not self.is_own_client():
            return BootstrapError(str(error))
        return error

    def may_read(self, source: str) -> bool:
        """Return whether the requester may read a source."""
        limit = self.read_limit()
        return limit is None or limit.may_read(source)

    def check_read(self, sources: Sequence[str]) -> None:
        """Raise ForbiddenError unless sources, given by name or id, may be read."""
        limit = self.read_limit()
        if limit is not None:
            limit.check(name for text in sources for name in self._meant_by(text))

    def _meant_by(self, text: str) -> list[str]:
        """Return the names of all sources that a text may mean: each store has ids of its own."""
        every = [source for store in self.pair.stores.values() for source in store.sources]
        return [one.name for one in every if text == str(one.src_id)] or [text]

    @property
    def caller(self) -> Caller:
        """The caller: its id, address and program."""
        headers = self.request.headers
        return caller_of(
            headers.get(Header.CLIENT_ID, ""),
            self.request.remote_ip or "",
            headers.get("User-Agent", ""),
        )

    def session(self, sources: Sequence[str]) -> AbstractContextManager[Session]:
        """Yield the caller's session for these sources, given by name or id."""
        return self.pair.sessions.asking(self.caller, self.pair.source_names(sources))

    async def ask(self, function: Callable[[Stores], Result]) -> Result:
        """Run a function of the stores on a thread that has them open; return its result."""
        return await self.in_time(asyncio.wrap_future(self.pair.readers.run(function)))


class SourcesHandler(BootstrapHandler):
    """`/sources`: names and ids, as the relay has them."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with every source that is served now or will be, and may be read."""
        sources = [source for _, source in await self.ask(all_sources)]
        found = [source for source in sources if self.may_read(source.name)]
        await self.send_json([{"name": one.name, "id": one.src_id} for one in found])


class RegisterHandler(BootstrapHandler):
    """`/register`: every schema version of the requested sources. Stores nothing."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer in the format of the requested protocol version."""
        parameters = self.parameters()
        version = parse_protocol_version(parameters)
        asked = (
            parse_sources(parameters, Parameter.SOURCES)
            if parameters.get(Parameter.SOURCES)
            else ()
        )
        self.check_read(asked)
        schemas = await self.ask(lambda stores: self._schemas(asked, stores))
        self.note_versions({schema["id"] for schema in schemas}, schemas)
        self.set_header(Header.PROTOCOL_VERSION, str(version))
        await self.send_json(schemas if version < 4 else with_metadata_schemas(schemas))

    def _schemas(self, asked: Sequence[str], stores: Stores) -> list[dict[str, Any]]:
        every = all_sources(stores)
        found = [(store, one.src_id) for store, one in every if self.may_read(one.name)]
        if asked:
            # One by one: unlike a page's, these sources may be in several stores.
            choices = [choose_sources([text], stores, self.pair.listed) for text in asked]
            found = [(choice.store, src_id) for choice in choices for src_id in choice.src_ids]
        return [
            {"id": src_id, "version": version, "schema": text}
            for store, wanted in found
            for src_id, version, text in store.schemas_until_now([wanted])
        ]


class StartScnHandler(BootstrapHandler):
    """`/startSCN`: the SCN at which a snapshot is read."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with the SCN, and the host and port that serve the pages."""
        request = parse_start_request(self.parameters())
        self.check_read(request.sources)
        with self.session(request.sources) as session:
            start = await self.ask(lambda stores: find_start(request, stores, self.pair.listed))
            session.phase, session.start_scn = ServedPhase.STARTING, start.scn
        self.set_header(Header.BOOTSTRAP_SERVER, self._host_port())
        self.set_header(Header.STORE_ID, start.store_id)
        await self.send_json(str(start.scn))

    def _host_port(self) -> str:
        """Return this server's host and port: from the Host header, or else from the socket."""
        asked = self.request.host
        if _HOST_PORT.fullmatch(asked):
            return asked
        connection: Any = self.request.connection
        host, port = connection.stream.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TargetScnHandler(BootstrapHandler):
    """`/targetSCN`: the SCN at which a catch-up ends."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with the SCN."""
        named = parse_sources(self.parameters(), Parameter.SOURCE)
        if len(named) != 1:
            raise InvalidParameterError(Parameter.SOURCE, ",".join(named), "the name of one source")
        self.check_read(named)
        target = await self.ask(lambda stores: find_target(named[0], stores, self.pair.listed))
        (name,) = self.pair.source_names(named)
        self.pair.sessions.set_target(self.caller, name, target.scn)
        if target.mark is not None:
            self.set_header(Header.MARK, "{},{}".format(*target.mark))
        await self.send_json(str(target.scn))


class PageHandler(BootstrapHandler):
    """`/bootstrap`: a page of a snapshot or of a catch-up."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with events, followed by a checkpoint event."""
        request = parse_page_request(self.event_parameters(), self.limits)
        self.check_read(request.sources)
        with self.session(request.sources) as session:
            page = await self.in_time(asyncio.wrap_future(self.pair.pages.read(request)))
            # A page has its rows in the newest version.
            is_newer = bool(self.versions_sent) and await self.ask(
                lambda stores: self._has_newer_version(request.sources, stores)
            )
            if is_newer:
                await self._end_connection(request.form.content_type)
                return
            self._count(page)
            _note_page(session, request.checkpoint, page)
        self.pair.pages.read_after(request, page)
        if page.is_phase_over:
            self.set_header(Header.PHASE_COMPLETED, "TRUE")
        if page.pending_event_bytes is not None:
            self.set_header(Header.PENDING_EVENT_BYTES, str(page.pending_event_bytes))
        await self.send_parts(page.parts, request.form.content_type)

    def _has_newer_version(self, sources: Sequence[str], stores: Stores) -> bool:
        """Whether a source has a schema after those that were sent on this connection."""
        choice = choose_sources(sources, stores, self.pair.listed)
        return any(
            version > self.versions_sent.get(src_id, version)
            for src_id, version, _ in choice.store.schemas_until_now(choice.src_ids)
        )

    async def _end_connection(self, content_type: str) -> None:
        """Answer with nothing, and close: the client connects again and fetches the schemas."""
        self.set_header("Connection", "close")
        await self.send(b"", content_type)
        await self.close_connection()

    def _count(self, page: Page) -> None:
        traffic = self.pair.traffic
        traffic.pages += 1
        traffic.rows += page.rows
        traffic.size_bytes += page.size_bytes


def _note_page(session: Session, checkpoint: Checkpoint, page: Page) -> None:
    is_snapshot = checkpoint.mode is ConsumptionMode.SNAPSHOT
    session.pages += 1
    session.rows += page.rows
    session.size_bytes += page.size_bytes
    session.snapshot_source = checkpoint.snapshot_source if is_snapshot else ""
    session.start_scn = checkpoint.bootstrap_start_scn
    session.target_scn = checkpoint.bootstrap_target_scn
    if is_snapshot:
        session.phase = ServedPhase.SNAPSHOT
    else:
        session.phase = ServedPhase.FINISHED if page.is_phase_over else ServedPhase.CATCH_UP


class MeasureHandler(BootstrapHandler):
    """`/measure`: how far a number of rows reaches, for read planning."""

    is_by_source = True

    async def answer(self, *_path: str) -> None:
        """Answer with the last row or window within the limits, and the number of rows."""
        request = parse_measure_request(self.event_parameters(), self.limits)
        self.check_read(request.sources)
        await self.send_json(
            await self.ask(lambda stores: measure(request, stores, self.pair.listed))
        )


class StatusHandler(BootstrapHandler):
    """`/bootstrapStatus`: the newest status of every store."""

    async def answer(self, *_path: str) -> None:
        """Answer with the status as JSON."""
        await self.send_json({"physicalSources": self.pair.status()})


class AdminHandler(BootstrapHandler):
    """`/admin`: the liveness check for load balancers."""

    def role_needed(self) -> Role:
        """Return NOBODY: a load balancer has no token, and the answer reveals nothing."""
        return Role.NOBODY

    async def answer(self, *_path: str) -> None:
        """Answer GOOD."""
        await self.send(b"GOOD", "text/plain; charset=UTF-8")


COMMANDS: tuple[tuple[str, type[BootstrapHandler]], ...] = (
    ("/sources", SourcesHandler),
    ("/register", RegisterHandler),
    ("/startSCN", StartScnHandler),
    ("/targetSCN", TargetScnHandler),
    ("/bootstrap", PageHandler),
    ("/measure", MeasureHandler),
    ("/bootstrapStatus", StatusHandler),
    ("/admin", AdminHandler),
)
