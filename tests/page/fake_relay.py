"""A relay that says what a test wants: the real page and roles, made-up figures."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from databus.conf.settings import HttpSettings
from databus.daemon.access import Role
from databus.daemon.client_report import ClientReport, RegistrationReport
from databus.daemon.http.openapi import Call, Endpoint, api_routes
from databus.daemon.service import Health, Service
from databus.demo.processes import free_port
from databus.relay.admin.models import (
    Clients,
    ClientState,
    ClientView,
    ColumnChange,
    History,
    HistoryQuery,
    PhysicalSources,
    PhysicalSourceView,
    Problem,
    Problems,
    RelayView,
    Restart,
    Rows,
    RowsQuery,
    RowView,
    Schemas,
    SchemaVersionView,
    SourceSchemas,
)
from databus.relay.admin.page import page_routes
from databus.relay.admin.page_parts.audit import Audit
from databus.relay.admin.page_parts.bootstrap_beside import Pairs
from databus.relay.admin.page_parts.columns import Columns, ColumnsQuery
from databus.relay.admin.page_parts.other_relays import OtherRelay, OtherRelays
from databus.relay.admin.page_parts.settings_view import SettingsView
from databus.relay.admin.page_parts.table_status import Tables, TableView
from databus.relay.admin.trouble import Trouble
from databus.relay.cluster.models import Chains, GroupsView, GroupView, LeasesView, ServersView
from databus.schemas.errors import UnknownSourceError
from tests.page.fake_cluster import ALONE
from tests.relay.fakes import ServiceThread

API = "/api/v1"
CAPACITY = 64 << 20
TEXT = '{"type": "record", "name": "orders", "fields": [{"name": "id", "type": "long"}]}'


COLUMNS = Columns.model_validate(
    {
        "source": "shop.orders",
        "version": 3,
        "columns": [
            {"name": "id", "type": "bigint", "key_position": 1},
            {"name": "note", "type": "varchar(200) null", "key_position": None},
        ],
    }
)


def make_relay_log(now: float) -> dict[str, Any]:
    """Return what a relay says of a log of two days."""
    return {
        "folder": "/var/lib/databus/shop.relay-log",
        "min_scn": (9 << 32) + 4_567,
        "prev_scn": (9 << 32) + 3_999,
        "durable_scn": (14 << 32) + 893_311_004,
        "oldest_at": now - 180_000,
        "newest_at": now - 0.4,
        "segments": 50,
        "size_bytes": 7 << 30,
        "retention_share": 0.7,
        "problem": "",
        "since": None,
        "began_anew": "",
        "held_after_scn": None,
        "unread": "",
        "capture_waits_s": None,
        "archive": None,
    }


def make_source(name: str = "shop", **changes: Any) -> PhysicalSourceView:
    """Return a physical source as the API shows it."""
    now = time.time()
    found: dict[str, Any] = {
        "name": name,
        "uri": "mysql://databus@db.example:3306",
        "state": "running",
        "problem": "",
        "since": now - 3_600,
        "next_try_at": None,
        "is_connected": True,
        "heard_at": now - 0.2,
        "warnings": [],
        "sources": [
            {"name": f"{name}.orders", "id": 1},
            {"name": f"{name}.customers", "id": 2},
        ],
        "ring": {
            "capacity_bytes": CAPACITY,
            "used_bytes": 50 << 20,
            "min_scn": (12 << 32) + 4_567,
            "max_scn": (14 << 32) + 893_311_004,
            "prev_scn": (12 << 32) + 3_999,
            "oldest_at": now - 754,
            "newest_at": now - 0.4,
            "sleep_s": 812.0,
        },
        "relay_log": make_relay_log(now),
        "log": {
            "holding": "yes",
            "behind_bytes": 1_204,
            "behind_s": 0.2,
            "hours_left": 61.5,
            "warning": "",
        },
        "delay_s": 0.0043,
        "events": 1_234_567,
        "windows": 412_009,
        "size_bytes": 912 << 20,
        "reconnects": 1,
        "events_per_s": 843.7,
        "windows_per_s": 281.2,
        "bytes_per_s": 96_312.0,
        "drain": None,
    }
    return PhysicalSourceView.model_validate(found | changes)


def make_registration(**changes: Any) -> RegistrationReport:
    """Return what a client says of one registration."""
    found: dict[str, Any] = {
        "name": "orders",
        "sources": ["shop.orders"],
        "mode": "online",
        "connection": "streaming",
        "server": "http://127.0.0.1:11115",
        "scn": (14 << 32) + 893_310_000,
        "events": 90_210,
        "windows": 30_070,
        "events_per_s": 412.5,
        "buffered_bytes": 18_000,
        "callback_p50_s": 0.0004,
        "callback_p99_s": 0.0121,
        "retries": 2,
        "bootstraps": 1,
    }
    return RegistrationReport.model_validate(found | changes)


def make_client(
    name: str = "billing", state: str = "live", edge: float | None = 1.0, **changes: Any
) -> ClientView:
    """Return a consumer as the API shows it; `edge` is the share of the ring left."""
    now = time.time()
    falls = 14.0 if state == "falling" else None
    found: dict[str, Any] = {
        "id": f"{name}-1",
        "name": name,
        "address": "10.0.3.17",
        "agent": "databus-client/0.1.0",
        "state": ClientState(state),
        "sources": ["shop.orders"],
        "filters": "",
        "positions": [
            {
                "physical_source": "shop",
                "scn": (14 << 32) + 893_310_000,
                "behind_bytes": None if edge is None else int((1 - edge) * CAPACITY),
                "behind_s": None if edge is None else (1 - edge) * 754,
                "edge_share": edge,
                "falls_in_s": falls,
            }
        ],
        "first_seen_at": now - 90_000,
        "last_seen_at": now - 0.3,
        "requests": 55_013,
        "served_bytes": 81 << 20,
        "bytes_per_s": 48_100.0,
        "last_error": "",
        "last_error_at": None,
        "report": ClientReport(
            id="client-1",
            name=name,
            state="running",
            version="0.1.0",
            started_at=now - 90_000,
            registrations=[make_registration()],
        ),
    }
    return ClientView.model_validate(found | changes)


def make_row(number: int, **changes: Any) -> RowView:
    """Return a row as it passed."""
    found: dict[str, Any] = {
        "scn": (14 << 32) + number,
        "index": 0,
        "at": time.time(),
        "source": "shop.orders",
        "op": "insert",
        "schema_version": 1,
        "row": {"id": number, "customer": "Ada", "note": None},
        "before": None,
    }
    return RowView.model_validate(found | changes)


class FakeRelay:
    """Answers as a relay does, with what its fields hold; `asked` is what was POSTed."""

    def __init__(self, **http: Any) -> None:
        self.sources = [make_source()]
        self.clients = [make_client()]
        self.rows = [make_row(number) for number in range(1, 6)]
        self.problems: list[Problem] = []
        self.troubles: list[Trouble] = []  # the worst first
        self.schemas = [make_schemas()]
        self.pairs = Pairs(sources=[])
        self.others: list[OtherRelay] = []
        self.tables: Tables | None = None  # None: of the sources
        self.cluster: Mapping[str, Any] = ALONE
        self.history = make_history
        self.failure: Exception | None = None
        self.asked: list[tuple[str, Any]] = []
        self.settings = HttpSettings.model_validate({"port": free_port()} | http)
        self._server: ServiceThread | None = self._serve(self.settings)
        self.url = self._server.url

    def stop(self) -> None:
        """Go away."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def come_back(self) -> None:
        """Listen again, where it did."""
        port = int(self.url.rpartition(":")[2])
        self._server = self._serve(self.settings.model_copy(update={"port": port}))

    def source(self, name: str) -> PhysicalSourceView:
        """Return a physical source; raises UnknownSourceError."""
        for source in self.sources:
            if source.name == name:
                return source
        raise UnknownSourceError(name, [source.name for source in self.sources])

    def change_source(self, name: str, **changes: Any) -> PhysicalSourceView:
        """Change fields of a physical source."""
        changed = self.source(name).model_copy(update=changes)
        self.sources = [changed if one.name == name else one for one in self.sources]
        return changed

    def _serve(self, settings: HttpSettings) -> ServiceThread:
        return ServiceThread(
            Service(
                name="relay",
                http=settings,
                routes=[*api_routes(self._endpoints(), settings), *page_routes(settings)],
                metrics=CollectorRegistry(),
                health=lambda: Health(True),
                start=lambda: None,
                let_go=lambda: None,
                stop=lambda _: None,
            )
        )

    def _endpoints(self) -> list[Endpoint]:
        one = f"{API}/physicalSources/{{name}}"
        return [
            self._get("/relay", RelayView, self._relay),
            self._get(
                "/physicalSources",
                PhysicalSources,
                lambda _: PhysicalSources(physical_sources=self.sources),
            ),
            self._get("/clients", Clients, lambda _: Clients(clients=self.clients)),
            self._get("/problems", Problems, lambda _: Problems(problems=self.problems)),
            self._get("/schemas", Schemas, lambda _: Schemas(sources=self.schemas)),
            self._get("/bootstrap", Pairs, lambda _: self.pairs),
            self._get("/relays", OtherRelays, lambda _: OtherRelays(relays=self.others)),
            self._get("/tables", Tables, lambda _: self.tables or make_tables(self.sources)),
            self._get("/groups", GroupsView, lambda _: self.cluster["groups"]),
            self._get("/groups/{name}", GroupView, self._group),
            self._get("/leases", LeasesView, lambda _: self.cluster["leases"]),
            self._get("/servers", ServersView, lambda _: self.cluster["servers"]),
            self._get("/chain", Chains, lambda _: self.cluster["chain"]),
            Endpoint(
                "GET",
                f"{API}/sources/{{name}}/columns",
                "",
                Columns,
                lambda _: _now(COLUMNS),
                query=ColumnsQuery,
            ),
            self._get("/audit", Audit, lambda _: Audit(actions=[], problem="")),
            self._get("/settings", SettingsView, lambda _: SettingsView(settings=[])),
            Endpoint("GET", f"{one}/history", "", History, self._history, query=HistoryQuery),
            Endpoint("GET", f"{one}/rows", "", Rows, self._rows, query=RowsQuery),
            self._post("pause", state="paused"),
            self._post("resume", state="running"),
            self._post("drain", state="paused"),
            self._post("restart", body=Restart, state="running"),
        ]

    def _get(
        self, path: str, model: type[BaseModel], answer: Callable[[Call], BaseModel]
    ) -> Endpoint:
        async def do(call: Call) -> BaseModel:
            if self.failure is not None:
                raise self.failure
            return answer(call)

        return Endpoint("GET", API + path, "", model, do)

    def _post(self, verb: str, body: Any = None, **changes: Any) -> Endpoint:
        async def do(call: Call) -> BaseModel:
            self.asked.append((verb, call.body))
            return self.change_source(call.path["name"], **changes)

        path = f"{API}/physicalSources/{{name}}/{verb}"
        return Endpoint("POST", path, "", PhysicalSourceView, do, Role.ADMIN, body=body)

    def _group(self, call: Call) -> BaseModel:
        self.asked.append(("group", call.path["name"]))
        found: BaseModel = self.cluster["group"]
        return found

    def _history(self, call: Call) -> Awaitable[BaseModel]:
        return _now(self.history(call.path["name"], call.query.seconds))

    def _rows(self, call: Call) -> Awaitable[BaseModel]:
        return _now(Rows(rows=[row for row in self.rows if row.source == call.query.source]))

    def _relay(self, call: Call) -> RelayView:
        return RelayView(
            name="127.0.0.1:11115",
            version="0.1.0",
            process_id=1,
            started_at=time.time() - 93_784,
            is_healthy=not self.troubles,
            troubles=self.troubles,
            is_ready=True,
            role="admin" if call.peer.role is Role.ADMIN else "reader",
            clients=len(self.clients),
            held_requests=3,
            stream_requests=123_456,
            served_bytes=3 << 30,
            served_bytes_per_s=144_300.0,
        )


async def _now(answer: BaseModel) -> BaseModel:
    return answer


def make_history(name: str, seconds: int) -> History:
    """Return figures that go up and down, without those of a minute."""
    step = max(1.0, seconds / 600)
    end = time.time()
    count = int(seconds * 0.9 / step)
    at = [end - (count - 1 - n) * step for n in range(count)]
    known = [not 100 <= n < 120 for n in range(count)]
    waves = [(n * 37 % 101) / 100 for n in range(count)]
    return History(
        physical_source=name,
        step_s=step,
        at=at,
        events_per_s=[600 + 300 * w if k else None for w, k in zip(waves, known, strict=True)],
        bytes_per_s=[90_000.0 if k else None for k in known],
        delay_s=[0.002 + 0.004 * w if k else None for w, k in zip(waves, known, strict=True)],
        behind_s=[0.003 if k else None for k in known],
        used_bytes=[min(50 << 20, n << 18) if k else None for n, k in enumerate(known)],
        capacity_bytes=CAPACITY,
    )


def make_tables(sources: list[PhysicalSourceView]) -> Tables:
    """Return figures of each table, larger ones for later ones."""
    now = time.time()
    names = [(one.name, source) for one in sources for source in one.sources]
    return Tables(
        missed_bytes=0,
        tables=[
            TableView(
                source=source.name,
                id=source.id,
                physical_source=physical,
                rows=number * 1000,
                size_bytes=number * 50_000,
                rows_per_s=number * 1.5,
                bytes_per_s=number * 75.0,
                newest_at=now - number if number else None,
            )
            for number, (physical, source) in enumerate(names)
        ],
    )


def make_schemas(source: str = "shop.orders") -> SourceSchemas:
    """Return a source with three versions."""

    def version(number: int, *changes: ColumnChange, is_compatible: bool = True) -> Any:
        return SchemaVersionView(
            version=number,
            schema_id=f"{number:032x}",
            since_scn=(12 << 32) + number,
            is_compatible=is_compatible,
            changes=list(changes),
            schema_text=TEXT,
        )

    return SourceSchemas(
        source=source,
        id=1,
        physical_source="shop",
        versions=[
            version(1),
            version(2, ColumnChange(kind="added", column="price", text="price decimal(8,2)")),
            version(
                3,
                ColumnChange(kind="changed", column="id", text="id int → bigint"),
                ColumnChange(kind="removed", column="note", text="note varchar(200)"),
                is_compatible=False,
            ),
        ],
    )
