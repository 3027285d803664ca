"""The relay's JSON API, `/api/v1`: the state of a running relay, and actions on it.

One table of endpoints; the modules imported here build the answers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from databus import __version__
from databus.conf.named_places import ScnPlace, parse_place, parse_restart
from databus.daemon.access import Role
from databus.daemon.client_report import ClientReport
from databus.daemon.http.openapi import Call, Endpoint, with_document
from databus.relay.admin.changes_api import ChangesApi
from databus.relay.admin.client_status import client_view
from databus.relay.admin.definitions import (
    DefinitionsQuery,
    DefinitionsView,
    definitions_view,
)
from databus.relay.admin.epochs import Epochs, epochs_view
from databus.relay.admin.kept_places import kept_places
from databus.relay.admin.models import (
    Clients,
    ClientView,
    History,
    HistoryQuery,
    PhysicalSources,
    PhysicalSourceView,
    PositionQuery,
    PositionView,
    Problem,
    Problems,
    RelayView,
    RepairTable,
    Restart,
    Rows,
    RowsQuery,
    Schemas,
    SourceSchemas,
    Switch,
)
from databus.relay.admin.newest_rows import NewestRows
from databus.relay.admin.page_parts.audit import AuditStatus
from databus.relay.admin.page_parts.bootstrap_beside import BootstrapBeside
from databus.relay.admin.page_parts.columns import ColumnStatus
from databus.relay.admin.page_parts.other_relays import RelaysElsewhere
from databus.relay.admin.page_parts.settings_view import SettingsStatus
from databus.relay.admin.page_parts.table_status import TableStatus
from databus.relay.admin.position_view import position_view
from databus.relay.admin.schema_versions import version_views
from databus.relay.admin.source_status import physical_source_view, ring_marks
from databus.relay.admin.trouble import Trouble
from databus.relay.cluster.api import ClusterApi
from databus.relay.cluster.cluster import Cluster
from databus.relay.log.archive.away import once_here
from databus.relay.monitoring.clients import Caller, StreamKey
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.serving.canal.door.door import CanalDoor
from databus.relay.serving.canal.door.status import CanalStatus
from databus.relay.serving.ptubes.door import PtubesDoor
from databus.relay.serving.ptubes.status import PtubesStatus
from databus.relay.serving.reading.position_search import PositionSearch
from databus.schemas.errors import InvalidParameterError, SettingsError, UnknownSourceError

ROOT = "/api/v1"
TITLE = "Databus relay"
DESCRIPTION = (
    "State of a running relay, and actions on it. SCNs are strings of digits, because they "
    "may exceed 2**53. Times are seconds since 1970, sizes bytes, rates per second."
)
_UNUSABLE = {503: "Its files cannot be used; the message says what to do"}
_NO_SUCH = {404: "Unknown physical source"} | _UNUSABLE
_ONE = f"{ROOT}/physicalSources/{{name}}"
_CLIENTS_A_TURN = 100

Answer = TypeVar("Answer")


class RelayApi:
    """The endpoints of one relay."""

    def __init__(
        self,
        relay: Relay,
        cluster: Cluster | None = None,
        canal: CanalDoor | None = None,
        ptubes: PtubesDoor | None = None,
        beside: BootstrapBeside | None = None,
    ) -> None:
        self._relay = relay
        pairs = beside or BootstrapBeside(relay)
        self._tables = TableStatus(relay)
        self.audit = AuditStatus(relay)
        self.others = RelaysElsewhere(relay)
        for_page = (ColumnStatus(relay), SettingsStatus(relay), self.audit, self.others)
        parts = (pairs, self._tables, *for_page)
        self._doors = (
            ChangesApi(relay),
            CanalStatus(relay, canal),
            PtubesStatus(ptubes),
            *parts,
        )
        self._cluster = ClusterApi(cluster or Cluster(relay))

    def endpoints(self) -> list[Endpoint]:
        """Return all endpoints, including that of the OpenAPI document."""
        table = [*self._others(), *self._sources(), *self._to_do(), *self._from_clients()]
        for part in (self._cluster, *self._doors):
            table += part.endpoints(ROOT)
        return with_document(table, TITLE, DESCRIPTION)

    def _sources(self) -> Sequence[Endpoint]:
        return (
            Endpoint(
                "GET",
                f"{ROOT}/physicalSources",
                "All physical sources: capture, ring, the database's log",
                PhysicalSources,
                self.physical_sources,
            ),
            Endpoint(
                "GET",
                _ONE,
                "One physical source",
                PhysicalSourceView,
                self.physical_source,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "GET",
                f"{_ONE}/history",
                "Rates, lag and fill of the ring over time",
                History,
                self.history,
                query=HistoryQuery,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "GET",
                f"{_ONE}/rows",
                "The newest rows of a source, if they are near the ring's end",
                Rows,
                self.rows,
                query=RowsQuery,
                errors={404: "Unknown physical source, or it has no such source"} | _UNUSABLE,
                is_by_source=True,
            ),
            Endpoint(
                "GET",
                f"{ROOT}/sources/{{name}}/position",
                "The SCN of a named place in the history of a source",
                PositionView,
                self.position,
                query=PositionQuery,
                errors={404: "Unknown source; or the ring does not hold the place, or not yet"}
                | _UNUSABLE,
                is_by_source=True,
            ),
        )

    def _others(self) -> Sequence[Endpoint]:
        return (
            Endpoint("GET", f"{ROOT}/relay", "The relay as a whole", RelayView, self.relay),
            Endpoint(
                "GET",
                f"{ROOT}/schemas",
                "The schemas of all sources, and what each version changed",
                Schemas,
                self.schemas,
            ),
            Endpoint("GET", f"{ROOT}/clients", "All recent clients", Clients, self.clients),
            Endpoint(
                "GET",
                f"{_ONE}/epochs",
                "The servers that it was read from, as its other relays ask for them",
                Epochs,
                self.epochs,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "GET",
                f"{_ONE}/definitions",
                "The definitions of its tables over time, for a relay that stands by",
                DefinitionsView,
                self.definitions,
                query=DefinitionsQuery,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "GET",
                f"{ROOT}/problems",
                "The last errors, with their positions",
                Problems,
                self.problems,
            ),
        )

    def _to_do(self) -> Sequence[Endpoint]:
        verbs = (
            ("pause", "Pause capture; the ring is still served", self.pause),
            ("resume", "Continue after a pause, a drain or an error", self.resume),
            (
                "drain",
                "Pause capture, and report which clients have not read everything",
                self.drain,
            ),
        )
        return (
            *(
                Endpoint(
                    "POST",
                    f"{_ONE}/{verb}",
                    text,
                    PhysicalSourceView,
                    do,
                    role=Role.ADMIN,
                    errors=_NO_SUCH | {409: "A restart or a switch is in progress"},
                )
                for verb, text, do in verbs
            ),
            *self._to_change(),
        )

    def _to_change(self) -> Sequence[Endpoint]:
        restart = "Empty the ring and capture again from a place in the database's log on"
        return (
            Endpoint(
                "POST",
                f"{_ONE}/switch",
                "Read another server of the list, if it has all that was delivered",
                PhysicalSourceView,
                self.switch,
                role=Role.ADMIN,
                body=Switch,
                errors=_NO_SUCH | {409: "That server is not in the settings"},
            ),
            Endpoint(
                "POST",
                f"{_ONE}/repair",
                "Take a source that is stopped alone in again, with the rows since its stop",
                PhysicalSourceView,
                self.repair,
                role=Role.ADMIN,
                body=RepairTable,
                errors=_NO_SUCH | {409: "It is not stopped, or cannot be repaired so"},
            ),
            Endpoint(
                "POST",
                f"{_ONE}/restart",
                restart,
                PhysicalSourceView,
                self.restart,
                role=Role.ADMIN,
                body=Restart,
                errors=_NO_SUCH | {409: "The source lacks the place, or the changes after it"},
            ),
        )

    def _from_clients(self) -> Sequence[Endpoint]:
        return (
            Endpoint(
                "POST",
                f"{ROOT}/clients/{{id}}",
                "Report of a client",
                ClientView,
                self.report,
                body=ClientReport,
                is_by_source=True,
            ),
        )

    def tick(self) -> None:
        """Record a sample of every source; called once a second, on the loop."""
        at = self._at()
        samples = {status.name: status.sample(at) for status in self._relay.statuses()}
        self._relay.monitor.tick(self._now_s(), samples, self._relay.traffic.stream_bytes)
        for source in self._relay.physical_sources.values():
            source.tick(self._relay.monitor.clients)
        self._tables.tick()

    async def relay(self, call: Call) -> RelayView:
        """Return the state of the whole relay."""
        relay = self._relay
        traffic = relay.traffic
        served = relay.monitor.served
        troubles = relay.troubles
        return RelayView(
            name=call.peer.host,
            version=__version__,
            process_id=os.getpid(),
            started_at=traffic.started_at_s,
            is_healthy=not troubles,
            is_ready=relay.is_ready,
            troubles=[Trouble.model_validate(one, from_attributes=True) for one in troubles],
            role="admin" if call.peer.role is Role.ADMIN else "reader",
            clients=len(relay.monitor.clients),
            held_requests=traffic.held_requests,
            stream_requests=traffic.stream_requests,
            served_bytes=traffic.stream_bytes,
            served_bytes_per_s=served.rate(self._now_s(), traffic.stream_bytes),
        )

    async def physical_sources(self, _call: Call) -> PhysicalSources:
        """Return all physical sources."""
        found = [self._view(source) for source in self._relay.physical_sources.values()]
        return PhysicalSources(physical_sources=found)

    async def physical_source(self, call: Call) -> PhysicalSourceView:
        """Return one physical source."""
        return self._view(self._find(call))

    async def epochs(self, call: Call) -> Epochs:
        """Return the table of epochs of a physical source."""
        return epochs_view(self._find(call))

    async def definitions(self, call: Call) -> DefinitionsView:
        """Return the definitions of a physical source's tables over time."""
        source, folder = self._find(call), self._relay.settings.data_dir
        return await asyncio.to_thread(definitions_view, source, folder, call)

    async def history(self, call: Call) -> History:
        """Return the history of a physical source."""
        source = self._find(call)
        steps = self._relay.monitor.histories[source.name].steps(call.query.seconds)
        later = steps.samples[1:]
        return History(
            physical_source=source.name,
            step_s=steps.step_s,
            at=steps.times(),
            events_per_s=steps.rates(lambda sample: sample.events),
            bytes_per_s=steps.rates(lambda sample: sample.size_bytes),
            delay_s=[sample.delay_s for sample in later],
            behind_s=[sample.behind_s for sample in later],
            used_bytes=[sample.used_bytes for sample in later],
            capacity_bytes=source.reader.capacity_bytes,
        )

    async def rows(self, call: Call) -> Rows:
        """Return the newest rows of a source."""
        physical = self._find(call)
        ids = self._relay.catalog.src_ids_of(physical.name)
        name = call.query.source
        call.peer.check_read(name)
        if name not in ids:
            raise UnknownSourceError(name, list(ids))
        schema_by_id = self._relay.registry.by_id
        job = NewestRows(physical.reader, name, ids[name], call.query.limit, schema_by_id)
        return Rows(rows=await _in_steps(job.step))

    async def position(self, call: Call) -> PositionView:
        """Return the SCN of a named place."""
        catalog = self._relay.catalog
        src_id = catalog.resolve(call.path["name"])
        physical = self._relay.physical_source(catalog.physical_source_of(src_id))
        try:
            place = parse_place(call.query.at)
        except SettingsError as error:
            raise InvalidParameterError("at", call.query.at, str(error)) from None
        others = filter(None, call.query.others.split(","))
        src_ids = {src_id, *map(catalog.resolve, others)}
        call.peer.check_read(*map(catalog.name_of, src_ids))
        first = physical.spans.of(src_ids).first
        epoch = physical.epoch_of(place)
        nearest = call.query.nearest
        reader, name = physical.history, physical.name
        job = PositionSearch(reader, place, name, epoch, first, takes_nearest=nearest)
        found = await _in_steps(job.step)
        return position_view(catalog.name_of(src_id), physical, place, found)

    async def pause(self, call: Call) -> PhysicalSourceView:
        """Pause capture."""
        return await self._do(call, self._relay.control.pause)

    async def resume(self, call: Call) -> PhysicalSourceView:
        """Continue capturing."""
        return await self._do(call, self._relay.control.resume)

    async def drain(self, call: Call) -> PhysicalSourceView:
        """Pause capture until all clients have read everything."""
        return await self._do(call, self._relay.control.drain)

    async def switch(self, call: Call) -> PhysicalSourceView:
        """Read another server of the list from now on."""
        source = self._find(call)
        await asyncio.to_thread(self._relay.control.switch, source, call.body.uri)
        return self._view(source)

    async def repair(self, call: Call) -> PhysicalSourceView:
        """Take a source that is stopped alone in again."""
        source, body = self._find(call), call.body
        await asyncio.to_thread(
            self._relay.control.repair, source, body.source, body.scn, body.create_table or None
        )
        source.notifier.notify_all()
        return self._view(source)

    async def restart(self, call: Call) -> PhysicalSourceView:
        """Empty the ring and capture again from a place in the database's log on."""
        source, body = self._find(call), call.body
        try:
            place = parse_restart(body.at) if body.scn is None else ScnPlace(body.scn)
        except SettingsError as error:
            raise InvalidParameterError("at", body.at, str(error)) from None
        await asyncio.to_thread(self._relay.control.restart, source, place)
        # The ring was emptied: the reader must reopen it before it is asked again.
        source.reader.follow()
        self._relay.monitor.clients.forget_positions(source.name)
        source.notifier.notify_all()  # held requests read the new ring
        return self._view(source)

    async def _do(self, call: Call, act: Callable[[PhysicalSource], None]) -> PhysicalSourceView:
        source = self._find(call)
        await asyncio.to_thread(act, source)
        return self._view(source)

    async def schemas(self, _call: Call) -> Schemas:
        """Return the schemas of all sources."""
        catalog, registry = self._relay.catalog, self._relay.registry
        return Schemas(
            sources=[
                SourceSchemas(
                    source=name,
                    id=src_id,
                    physical_source=physical,
                    versions=version_views(registry.versions(name)),
                )
                for physical in catalog.members
                for name, src_id in catalog.src_ids_of(physical).items()
            ]
        )

    async def clients(self, _call: Call) -> Clients:
        """Return all recent clients."""
        rings, now_s, at = ring_marks(self._relay), self._now_s(), self._at()
        found = []
        for client in self._relay.monitor.clients:
            found.append(client_view(client, rings, self._names_of, now_s, at))
            if len(found) % _CLIENTS_A_TURN == 0:
                await asyncio.sleep(0)  # 2000 of them would block the loop
        return Clients(clients=found)

    async def report(self, call: Call) -> ClientView:
        """Store a client's report, and answer with its positions."""
        report: ClientReport = call.body
        if report.id != call.path["id"]:
            raise InvalidParameterError("id", report.id, f"the id in the path, {call.path['id']!r}")
        known = self._relay.monitor.clients.get(report.id)
        for key in known.streams if known else ():
            call.peer.check_read(*self._names_of(key))
        now_s, at = self._now_s(), self._at()
        caller = Caller(report.id, call.peer.address, call.peer.agent)
        client = self._relay.monitor.clients.reported(caller, report, now_s)
        client.kept = kept_places(self._relay, client, report, call.peer.host)
        for registration in report.registrations:
            # Reports repeat a problem every few seconds; it is recorded once.
            if registration.problem and registration.problem != client.last_error:
                self._relay.monitor.clients.failed(client, now_s, registration.problem)
                self._relay.monitor.problems.note_text(
                    at, "", registration.problem, client=client.name, scn=registration.scn
                )
        return client_view(client, ring_marks(self._relay), self._names_of, now_s, at)

    async def problems(self, _call: Call) -> Problems:
        """Return the last errors."""
        noted = self._relay.monitor.problems.newest_first()
        return Problems(
            problems=[Problem.model_validate(one, from_attributes=True) for one in noted]
        )

    def _find(self, call: Call) -> PhysicalSource:
        return self._relay.physical_source(call.path["name"])

    def _view(self, source: PhysicalSource) -> PhysicalSourceView:
        return physical_source_view(self._relay, source.name)

    def _names_of(self, key: StreamKey) -> list[str]:
        catalog = self._relay.catalog
        if key.src_ids is None:
            return list(catalog.members[key.physical_source])
        return [catalog.name_of(src_id) for src_id in sorted(key.src_ids)]

    def _now_s(self) -> float:
        return self._relay.clock.monotonic_s()

    def _at(self) -> float:
        return self._relay.clock.wall_ns() / 1e9


async def _in_steps(step: Callable[[], Answer | None]) -> Answer:
    """Run all steps, yielding to other requests after each."""
    while (answer := await once_here(step)) is None:
        await asyncio.sleep(0)
    return answer
