"""The pair's JSON API, `/api/v1`: status, sessions, pause and resume."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from databus import __version__
from databus.bootstrap.admin.models import (
    LeaseView,
    PairProblem,
    PairView,
    ProducerView,
    RelayView,
    SeedView,
    SessionsView,
    SessionView,
    StoredSourceView,
    Stores,
    StoreView,
)
from databus.bootstrap.admin.status import StoreStatus
from databus.bootstrap.ownership.workers import Ownership
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.producer.relay_monitor import behind_s
from databus.bootstrap.server.checks import seeded_percent
from databus.bootstrap.server.sessions import Session
from databus.bootstrap.store.values import SourceSizes, SourceState, SourceStatus
from databus.daemon.access import Role
from databus.daemon.http.openapi import Call, Endpoint, with_document
from databus.schemas.errors import UnknownSourceError

ROOT = "/api/v1"
TITLE = "Databus bootstrap server"
DESCRIPTION = (
    "The status of a running bootstrap pair. SCNs are strings of digits: they may "
    "exceed 2**53. Times are in seconds since 1970, sizes in bytes. null = not known."
)
_NO_SUCH = {404: "There is no such physical source"}
_ONE = f"{ROOT}/physicalSources/{{name}}"
_SEEDED = (SourceStatus.SEEDING, SourceStatus.SEEDING_CATCH_UP)


class PairApi:
    """The endpoints of one pair."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the table of endpoints."""
        pair = "The pair: version, problems, counters of what was served"
        rest = "Pause its producer and seeder until it is resumed or the process is restarted"
        found = [
            Endpoint("GET", f"{ROOT}/bootstrap", pair, PairView, self.pair),
            Endpoint(
                "GET",
                f"{ROOT}/physicalSources",
                "Every store: its newest window, its lag behind the relay, its sources",
                Stores,
                self.stores,
            ),
            Endpoint("GET", _ONE, "One store", StoreView, self.store, errors=_NO_SUCH),
            Endpoint(
                "POST",
                f"{_ONE}/pause",
                rest,
                StoreView,
                self.pause,
                role=Role.ADMIN,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "POST",
                f"{_ONE}/resume",
                "Continue after a pause",
                StoreView,
                self.resume,
                role=Role.ADMIN,
                errors=_NO_SUCH,
            ),
            Endpoint(
                "GET",
                f"{ROOT}/sessions",
                "The clients that are served: phase, rows, bytes",
                SessionsView,
                self.sessions,
            ),
        ]
        return with_document(found, TITLE, DESCRIPTION)

    async def pair(self, call: Call) -> PairView:
        """Return the pair as a whole."""
        pair, traffic = self._pair, self._pair.traffic
        problems = pair.problems()
        return PairView(
            name=call.peer.host,
            version=__version__,
            process_id=os.getpid(),
            started_at=pair.started_at_s,
            is_healthy=not problems,
            is_ready=pair.is_ready,
            role="admin" if call.peer.role is Role.ADMIN else "reader",
            problems=[
                PairProblem(physical_source=name, text=text)
                for name, texts in problems.items()
                for text in texts
            ],
            physical_sources=len(pair.paths),
            sessions=len(pair.sessions.look()),
            pages=traffic.pages,
            rows=traffic.rows,
            served_bytes=traffic.size_bytes,
            refusals=dict(traffic.refusals),
        )

    async def stores(self, _call: Call) -> Stores:
        """Return every store."""
        return Stores(physical_sources=[self._view(name) for name in self._pair.paths])

    async def store(self, call: Call) -> StoreView:
        """Return one store."""
        return self._view(self._find(call))

    async def pause(self, call: Call) -> StoreView:
        """Pause the producer and the seeder of a store."""
        return await self._after(self._pair.pause, call)

    async def resume(self, call: Call) -> StoreView:
        """Resume the producer and the seeder of a store."""
        return await self._after(self._pair.resume, call)

    async def sessions(self, _call: Call) -> SessionsView:
        """Return the clients that were served in the last hour."""
        return SessionsView(sessions=[self._session(s) for s in self._pair.sessions.look()])

    async def _after(self, act: Callable[[str], None], call: Call) -> StoreView:
        name = self._find(call)
        # On a thread: it may wait for a lock that a worker holds while it writes.
        await asyncio.get_running_loop().run_in_executor(None, act, name)
        return self._view(name)

    def _find(self, call: Call) -> str:
        name = call.path["name"]
        if name not in self._pair.paths:
            raise UnknownSourceError(name, list(self._pair.paths))
        return name

    def _view(self, name: str) -> StoreView:
        pair = self._pair
        store, point = pair.stores[name], pair.relays.newest.get(name)
        is_paused = pair.is_paused(name)
        # While the relay has trouble with its source, its newest window is not the source's.
        is_current = name not in pair.relays.troubles
        is_known = point is not None and store.scn >= 0
        return StoreView(
            name=name,
            state="absent" if is_paused is None else "paused" if is_paused else "running",
            lease=_lease_view(pair.ownership(name)),
            problems=pair.problems().get(name, []),
            scn=_scn(store.scn),
            at=store.timestamp_ns / 1e9 if store.timestamp_ns > 0 else None,
            file_bytes=store.sizes.file_bytes if store.sizes else None,
            packed_bytes=store.sizes.packed_bytes if store.sizes else None,
            relay=point
            and RelayView(server=point.server, scn=point.scn, at=point.timestamp_ns / 1e9),
            behind_scn=max(0, point.scn - store.scn) if point and is_known else None,
            behind_s=behind_s(point, store.scn, store.timestamp_ns)
            if point and is_current
            else None,
            producer=_producer_view(pair.producers.get(name)),
            sources=[self._source(name, store, source) for source in store.sources],
        )

    def _source(self, name: str, store: StoreStatus, source: SourceState) -> StoredSourceView:
        sizes: SourceSizes | None = store.sizes.sources.get(source.name) if store.sizes else None
        return StoredSourceView(
            name=source.name,
            id=source.src_id,
            status=source.status,
            problem=source.problem,
            rows=sizes.rows if sizes else None,
            tombstones=sizes.tombstones if sizes else None,
            log_rows=sizes.log_rows if sizes else None,
            log_bytes=sizes.log_bytes if sizes else None,
            floor_scn=_scn(source.floor_scn),
            log_floor_scn=_scn(source.log_floor_scn),
            tombstone_floor_scn=_scn(source.tombstone_floor_scn),
            seed=self._seed(name, source) if source.status in _SEEDED else None,
        )

    def _seed(self, name: str, source: SourceState) -> SeedView:
        rate = self._pair.seed_rates.rows_per_s(name, source.name)
        left = source.seed_estimate - source.seed_rows
        is_reading = source.status is SourceStatus.SEEDING
        return SeedView(
            rows=source.seed_rows,
            estimate=source.seed_estimate if source.seed_estimate > 0 else None,
            percent=seeded_percent(source) if is_reading else 100,
            rows_per_s=rate,
            left_s=left / rate if is_reading and rate and left > 0 else None,
            scn=_scn(source.seed_scn),
            until_scn=_scn(source.seed_until_scn),
        )

    def _session(self, session: Session) -> SessionView:
        return SessionView(
            client=session.caller.id,
            address=session.caller.address,
            agent=session.caller.agent,
            sources=list(session.sources),
            phase=session.phase,
            snapshot_source=session.snapshot_source,
            start_scn=_scn(session.start_scn),
            target_scn=_scn(session.target_scn),
            pages=session.pages,
            rows=session.rows,
            size_bytes=session.size_bytes,
            first_seen_at=session.first_seen_s,
            last_seen_at=session.last_seen_s,
            problem=session.problem,
        )


def _lease_view(lease: Ownership | None) -> LeaseView | None:
    return lease and LeaseView(**lease._asdict())


def _producer_view(producer: object) -> ProducerView | None:
    if not isinstance(producer, Producer):
        return None
    status = producer.status()
    return ProducerView(
        is_running=status.is_running,
        server=status.server or "",
        windows=status.windows,
        events=status.events,
        fell_off=status.fell_off,
        problem=status.problem,
    )


def _scn(scn: int) -> int | None:
    return scn if scn >= 0 else None
