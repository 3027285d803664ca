"""Relays and bootstrap servers as the planner sees them: what `/measure` and its kin answer.

One window has one row. What was asked is kept, so that a test can look at it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from databus.client.spark.options import parse_options
from databus.client.spark.planning.measure_client import MeasureClient
from databus.client.spark.planning.server_pool import Answer
from databus.conf.named_places import NamedPlace, TimePlace, parse_place
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    InvalidParameterError,
    RequestError,
    ScnAheadError,
    ScnNotFoundError,
    TableStoppedError,
    UnknownSourceError,
)
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, with_change
from databus.schemas.table_schema import avro_schema

SOURCES = ("shop.orders", "shop.people")


def answer(value: Any, **headers: str) -> Answer:
    """Return an answer with a JSON body."""
    return Answer("http://fake", headers, bytearray(json.dumps(value).encode()))


def refusal(kind: type[RequestError], text: str = "") -> RequestError:
    """Return a server's refusal as its client raises it."""
    return kind.answered("http://fake", text)


@dataclass
class FakeRelay:
    """A ring that holds the windows after `floor` up to `newest`."""

    newest: int = 100
    floor: int = 0
    oldest: int = 1
    state: str = "running"
    physical: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"shop": SOURCES})
    unknown: Collection[str] = ()  # sources without a schema
    stopped: Mapping[str, int] = field(default_factory=dict)  # by source, after which SCN
    made: Mapping[str, int] = field(default_factory=dict)  # by source, the SCN of its CREATE
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def get(self, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        self.asked.append((path, dict(parameters)))
        if path == "/physicalSources":
            return answer(
                [
                    {"name": name, "sources": [{"name": s, "id": i + 1} for i, s in enumerate(of)]}
                    for name, of in self.physical.items()
                ]
            )
        if path.startswith("/bufferInfo/inbound/"):
            return answer({"minScn": self.oldest})
        if path == "/controlSources/status":
            return answer({name: {"state": self.state, "problem": ""} for name in self.physical})
        if path.startswith("/api/v1/sources/"):
            return answer({"scn": str(self._scn_at(parse_place(parameters["at"])))})
        assert path == "/measure"
        checkpoint = Checkpoint.from_json(parameters["checkPoint"])
        begin = self.floor if checkpoint.is_flexible else checkpoint.window_scn
        if "streamFromLatestScn" in parameters:
            begin = self.newest
        for source in parameters["sources"].split(","):
            if source in self.stopped and begin >= self.stopped[source]:
                stopped = refusal(TableStoppedError, f"{source} is stopped alone")
                stopped.source = source  # type: ignore[attr-defined]
                raise stopped
        if int(parameters.get("untilScn", begin)) < checkpoint.window_scn:
            raise refusal(InvalidParameterError, "untilScn")
        if begin < self.floor:
            raise ScnNotFoundError(begin, self.floor)
        return answer(measure(begin, self.newest, parameters))

    def register(self, sources: Sequence[str]) -> dict[str, list[WriterSchema]]:
        text = avro_schema(Table("shop.t", (Column("id", "bigint", 0, False),), "mysql"))
        texts = {
            source: with_change(text, TableChange(self.made[source], "", is_emptied=True))
            if source in self.made
            else text
            for source in sources
        }
        return {
            source: [] if source in self.unknown else [WriterSchema(source, 1, 1, one)]
            for source, one in texts.items()
        }

    def _scn_at(self, place: NamedPlace) -> int:
        """Return the window before the first one at a time; window n is committed in second n."""
        assert isinstance(place, TimePlace)
        before = place.time_ns // 1_000_000_000 - 1
        if before < self.floor:
            raise ScnNotFoundError(before, self.floor)
        if before >= self.newest:
            raise refusal(ScnAheadError)
        return before


@dataclass
class FakeBootstrap:
    """A store: rows 1 to `rows` of each source, and a log after `log_floor` up to `newest`."""

    newest: int = 100
    log_floor: int = 50
    rows: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 10))
    store: str = "store-1"
    is_seeded: bool = True
    refused: Collection[str] = ()  # sources whose rows cannot be read
    knows_deleted_since: int = 0
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    preferred: list[str] = field(default_factory=list)

    def prefer(self, url: str) -> None:
        self.preferred.append(url)

    def offered(self) -> dict[str, int]:
        return {source: number for number, source in enumerate(self.rows)}

    def get(self, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        self.asked.append((path, dict(parameters)))
        if not self.is_seeded:
            raise refusal(BootstrapTooOldError)
        if path == "/targetSCN":
            return answer(str(self.newest))
        checkpoint = Checkpoint.from_json(parameters["checkPoint"])
        wanted = parameters["sources"].split(",")
        if path == "/startSCN" and any(source in self.refused for source in wanted):
            raise refusal(BootstrapTooOldError, f"a row of {self.refused} is not a valid date")
        if path == "/startSCN":
            if 0 < checkpoint.bootstrap_since_scn < self.knows_deleted_since:
                raise refusal(BootstrapTooYoungError, "deleted rows are forgotten")
            return answer(str(self.newest), **{"x-databus-store": self.store})
        assert path == "/measure"
        if checkpoint.mode is ConsumptionMode.CATCHUP:
            if checkpoint.window_scn < self.log_floor:
                raise refusal(BootstrapTooYoungError)
            end = checkpoint.bootstrap_target_scn
            return answer(measure(checkpoint.window_scn, end, parameters))
        if checkpoint.snapshot_source not in self.rows:
            raise refusal(UnknownSourceError, "unknown source")
        if checkpoint.extra["bootstrap_store_id"] != self.store:
            raise refusal(BootstrapTooYoungError, "another store")
        assert int(parameters["rows"]) > 0, "a server refuses to count no rows"
        left = self.rows[checkpoint.snapshot_source] - checkpoint.snapshot_offset
        count = max(0, min(left, int(parameters["rows"])))
        end_row = checkpoint.snapshot_offset + count
        return answer(
            {
                "snapshotOffset": end_row,
                "rows": count,
                "bytes": 0,
                "isLast": left <= count,
                "maxRow": self.rows[checkpoint.snapshot_source],
            }
        )


def measuring_of(
    relay: FakeRelay, bootstrap: FakeBootstrap | None = None, **options: str
) -> MeasureClient:
    """Return what asks them for a query of both sources."""
    given = {"sources": ",".join(SOURCES), "relays": "http://fake", **options}
    return MeasureClient(parse_options(given), relay, bootstrap)  # type: ignore[arg-type]


def measure(begin: int, newest: int, parameters: Mapping[str, str]) -> dict[str, int]:
    """Return how far the rows asked for reach, one a window."""
    end = min(begin + int(parameters["rows"]), int(parameters.get("untilScn", newest)), newest)
    end = max(begin, end)
    return {
        "fromScn": begin,
        "scn": end,
        "rows": end - begin,
        "bytes": 100 * (end - begin),
        "timestampNs": end * 10**9,
        "maxScn": newest,
        "maxTimestampNs": newest * 10**9,
    }
