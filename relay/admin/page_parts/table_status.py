"""The endpoint `GET /api/v1/tables`: rows, rates and newest commit of each table."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from databus.daemon.http.openapi import ApiModel, Call, Endpoint
from databus.relay.admin.page_parts.table_counts import TableCounts
from databus.relay.relay import Relay


class TableView(ApiModel):
    """One source: what was captured of it since the relay's start."""

    source: str
    id: int
    physical_source: str
    rows: int
    size_bytes: int
    rows_per_s: float
    bytes_per_s: float
    newest_at: float | None = Field(description="Commit time of its newest row; None = none yet")


class Tables(ApiModel):
    """The sources of all physical sources."""

    tables: list[TableView]
    missed_bytes: int = Field(
        description="Of events that were overwritten before they could be counted; 0 = the figures "
        "are complete"
    )


class TableStatus:
    """Counts the tables of all rings, and answers with them."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._counts: dict[str, TableCounts] = {}

    def _follow(self) -> None:
        """Count the rings that there are now: physical sources come and go while it runs."""
        counts = {}
        for name, source in self._relay.physical_sources.items():
            known = self._counts.get(name)
            if known is None or known.reader is not source.reader:
                known = TableCounts(source.reader, self._relay.catalog.src_ids_of(name).values())
            counts[name] = known
        self._counts = counts

    def tick(self) -> None:
        """Count what this second has brought."""
        self._follow()
        now_s = self._relay.clock.monotonic_s()
        for counts in self._counts.values():
            counts.tick(now_s)

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return its endpoint."""
        text = "Each table: rows since the start, rates, newest commit"
        return (Endpoint("GET", f"{root}/tables", text, Tables, self.tables, is_by_source=True),)

    async def tables(self, call: Call) -> Tables:
        """Return all tables that may be read, with what was captured up to now."""
        self._follow()
        for counts in self._counts.values():
            counts.count()
        return Tables(
            tables=[
                one
                for name in self._counts
                for one in self._views(name)
                if call.peer.may_read(one.source)
            ],
            missed_bytes=sum(counts.missed_bytes for counts in self._counts.values()),
        )

    def _views(self, name: str) -> list[TableView]:
        now_s = self._relay.clock.monotonic_s()
        found = []
        for source, src_id in self._relay.catalog.src_ids_of(name).items():
            count = self._counts[name].by_source.get(src_id)
            if count is None:
                continue
            rows_per_s, bytes_per_s = count.rates(now_s)
            found.append(
                TableView(
                    source=source,
                    id=src_id,
                    physical_source=name,
                    rows=count.rows,
                    size_bytes=count.size_bytes,
                    rows_per_s=rows_per_s,
                    bytes_per_s=bytes_per_s,
                    newest_at=count.newest_ns / 1e9 if count.newest_ns else None,
                )
            )
        return found
