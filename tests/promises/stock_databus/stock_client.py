"""A stand-in for LinkedIn's Java client: it asks as that one does and refuses what it refuses.

`StockClient` lives a whole life: sources, schemas, stream, bootstrap, online again. Each `step`
makes one request. What a stock client would fail on, or ask for again and again without end, is
a StockRefusalError. What it recovers from by picking its server again is counted.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.promises.stock_databus.stock_checkpoint import ONLINE, SNAPSHOT, StockCheckpoint
from tests.promises.stock_databus.stock_events import StockEvent, StockRefusalError, cut_events
from tests.promises.stock_databus.stock_http import (
    AnswerCutError,
    ConnectionEndedError,
    StockAnswer,
    StockConnection,
)
from tests.promises.stock_databus.stock_schemas import StockSchema

SCN_NOT_FOUND = "com.linkedin.databus.core.ScnNotFoundException"
STORE_TROUBLE = "com.linkedin.databus.bootstrap.api.BootstrapProcessingException"
TOO_OLD = "com.linkedin.databus2.core.container.request.BootstrapDatabaseTooOldException"
ANY_PARTITION = '{"id":-1,"name":"*"}'
SIZE_BYTES = 4_999_999
_EMPTY_PAGES = 50  # in a row, after which a client reads for ever
_PAUSE_S = 0.02

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StockRow:
    """One row's event, decoded."""

    source: str
    event: StockEvent
    row: Row


@dataclass(frozen=True, slots=True)
class StockWindow:
    """A whole window."""

    scn: int
    rows: tuple[StockRow, ...]


@dataclass
class StockTables:
    """A consumer: keeps the tables as their events make them."""

    rows: dict[str, dict[int | bytes, Row]] = field(default_factory=dict)
    windows: list[StockWindow] = field(default_factory=list)
    bootstrap_rows: int = 0

    def take_window(self, window: StockWindow) -> None:
        """Apply a window of the stream."""
        self.windows.append(window)
        for row in window.rows:
            self._apply(row)

    def take_bootstrap_row(self, row: StockRow) -> None:
        """Apply a row of a snapshot or of a catch-up."""
        self.bootstrap_rows += 1
        self._apply(row)

    def _apply(self, row: StockRow) -> None:
        table = self.rows.setdefault(row.source, {})
        if row.event.is_delete:
            table.pop(row.event.key, None)
        else:
            table[row.event.key] = row.row


class _BadAnswerError(Exception):
    """An error after which the client picks its server again, with a back-off."""


class StockClient:
    """One registration of a stock client, with one relay and one bootstrap server."""

    def __init__(
        self,
        relay_port: int,
        sources: Sequence[str],
        *,
        bootstrap_port: int | None = None,
        protocol: int = 2,
        event_version: int = 2,
        filters: Mapping[str, Any] | None = None,
        checkpoint: StockCheckpoint | None = None,
        size_bytes: int = SIZE_BYTES,
    ) -> None:
        """`filters`: the server-side filter of a source, by name."""
        for source in sources:
            if source.count(".") == 1:
                raise StockRefusalError(f"{source}: two parts are an Espresso database and table")
        self.tables = StockTables()
        self.checkpoint = checkpoint or StockCheckpoint.from_nothing()
        self.is_cut_expected = False  # a server is being killed
        self.picks = 0
        self.bootstraps = 0
        self.waits = 0  # after an error that it does not know
        self.requests: list[str] = []
        self._relay_port = relay_port
        self._bootstrap_port = bootstrap_port
        self._sources = list(sources)
        self._protocol = protocol
        self._event_version = event_version
        self._filters = filters or {}
        self._size_bytes = size_bytes
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._schemas: dict[bytes, StockSchema] = {}
        self._metadata_digests: set[bytes] = set()
        self._relay: StockConnection | None = None
        self._bootstrap: StockConnection | None = None
        self._window: list[StockRow] = []
        self._empty_pages = 0

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._relay, self._bootstrap):
            if connection is not None:
                connection.close()
        self._relay = self._bootstrap = None

    def run(self, is_done: Callable[[], bool], within_s: float = 60.0) -> None:
        """Step until something is so."""
        end = time.monotonic() + within_s
        while not is_done():
            assert time.monotonic() < end, f"not done within {within_s} s: {self.checkpoint.text}"
            self.step()

    def step(self) -> None:
        """Make one request, of whatever kind is next."""
        try:
            if self.checkpoint.mode != ONLINE and self._schemas:
                self._read_bootstrap(self._bootstrap or self._pick_bootstrap())
            elif self._relay is None:
                self._pick_relay()
            else:
                self._read_stream(self._relay)
        except ConnectionEndedError:
            self._pick_again()
        except _BadAnswerError:
            self.waits += 1
            self._pick_again()
        except AnswerCutError as error:
            if not self.is_cut_expected:
                raise StockRefusalError(f"an answer that ends early: {error}") from error
            self._pick_again()

    # The relay's side

    def _pick_relay(self) -> None:
        connection = self._relay = StockConnection(self._relay_port)
        self.picks += 1
        answer = self._get(connection, f"/sources?protocolVersion={self._protocol}")
        self._take_sources(_checked(answer, "/sources"))
        target = f"/register?protocolVersion={self._protocol}"
        if self._protocol < 3:
            target += f"&sources={self._id_list()}"
        answer = self._get(connection, f"{target}&compress=true")
        self._take_schemas(_checked(answer, "/register"))
        self.checkpoint.regress()

    def _take_sources(self, answer: StockAnswer) -> None:
        listed = {one["name"]: one["id"] for one in json.loads(answer.body)}
        missing = [name for name in self._sources if name not in listed]
        if missing:
            raise StockRefusalError(f"sources that the relay does not have: {missing}")
        self._ids = {name: int(listed[name]) for name in self._sources}
        self._names = {src_id: name for name, src_id in self._ids.items()}

    def _take_schemas(self, answer: StockAnswer) -> None:
        found = json.loads(answer.body)
        said = int(answer.headers.get("x-dbus-protocol-version", "3"))
        if not 2 <= said <= 4 or isinstance(found, dict) != (said == 4):
            raise StockRefusalError(f"/register of version {said} with a {type(found).__name__}")
        self._metadata_digests = set()
        if said == 4:
            for one in found.get("metadataSchemas") or []:
                digest = base64.b64decode(_text(one["crc32"]), validate=True)
                if len(digest) != 4 or not isinstance(one["version"], int):
                    raise StockRefusalError(f"a metadata schema's crc32 or version: {one}")
                _text(one["schema"])
                self._metadata_digests.add(digest)
            found = found["sourceSchemas"]
        schemas = [StockSchema(one["id"], one["version"], one["schema"]) for one in found]
        self._schemas = {schema.schema_id: schema for schema in schemas}
        if len({schema.src_id for schema in schemas}) < len(self._sources):
            raise StockRefusalError(f"schemas of {len(schemas)} sources of {len(self._sources)}")

    def _read_stream(self, connection: StockConnection) -> None:
        answer = self._get(connection, self._stream_target())
        error = _error_of(answer, "/stream")
        if error == SCN_NOT_FOUND:
            if self._bootstrap_port is None:
                raise StockRefusalError("suspended: ScnNotFound, and no bootstrap server")
            self.bootstraps += 1
            self.checkpoint.begin_bootstrap(self._sources)
            self._window = []
            return
        if error is not None:
            raise StockRefusalError(f"/stream: {error}")
        for event, _ in cut_events(answer.body):
            self._take_event(event)
        if not answer.body:
            time.sleep(_PAUSE_S)

    def _stream_target(self) -> str:
        subscribed, checkpoint = self._id_list(), f"checkPoint={self.checkpoint.text}"
        key = "sources"
        if self._protocol >= 3:
            key, subscribed = "subs", self._subscriptions()
            by_partition = json.dumps({ANY_PARTITION: self.checkpoint.text}, separators=(",", ":"))
            checkpoint = f"checkPointMult={by_partition}"
        target = (
            f"/stream?protocolVersion={self._protocol}&{key}={subscribed}"
            f"&streamFromLatestScn=false&{checkpoint}&output=binary&size={self._size_bytes}"
        )
        if self._filters:
            by_id = {str(self._ids[name]): one for name, one in self._filters.items()}
            target += f"&filters={json.dumps(by_id, separators=(',', ':'))}"
        return f"{target}&maxev={self._event_version}" if self._event_version else target

    def _subscriptions(self) -> str:
        return json.dumps(
            [
                {
                    "physicalSource": {"uri": "databus:physical-source:ANY", "role": "ANY"},
                    "physicalPartition": {"id": -1, "name": "*"},
                    "logicalPartition": {"source": {"id": src_id, "name": name}, "id": -1},
                }
                for name, src_id in self._ids.items()
            ],
            separators=(",", ":"),
        )

    def _take_event(self, event: StockEvent) -> None:
        if event.version == 2 and not self._event_version:
            raise StockRefusalError("an event of version 2, which was not asked for")
        at = self.checkpoint.scn
        is_inside = self.checkpoint.is_inside
        if event.scn < at or (event.scn == at and not is_inside):
            raise StockRefusalError(f"SCN {event.scn} after {at}")
        if is_inside and event.scn > at:
            raise StockRefusalError(f"window {at} has no end before {event.scn}")
        if event.is_end_of_period:
            self.tables.take_window(StockWindow(event.scn, tuple(self._window)))
            self._window = []
        elif not event.is_control:
            self._window.append(self._decode(event))
        self.checkpoint.read(event)

    def _decode(self, event: StockEvent) -> StockRow:
        """Return a row; raises StockRefusalError for what ends a dispatcher."""
        if not event.has_payload:
            raise StockRefusalError(f"an event without payload at SCN {event.scn}")
        if event.src_id not in self._names:
            raise StockRefusalError(f"an event of source {event.src_id}, which was not asked for")
        schema = self._schemas.get(event.schema_id)
        if schema is None or schema.src_id != event.src_id:
            raise StockRefusalError(
                f"unable to find schema {event.schema_id.hex()} of {self._names[event.src_id]}: "
                f"registered are {[(s.src_id, s.version) for s in self._schemas.values()]}"
            )
        metadata = event.metadata
        if self._metadata_digests and metadata is not None and len(metadata.digest) == 4:
            assert metadata.digest in self._metadata_digests, "the metadata's schema is not known"
        return StockRow(self._names[event.src_id], event, schema.decode(event.value))

    # The bootstrap server's side

    def _pick_bootstrap(self) -> StockConnection:
        self.close()
        assert self._bootstrap_port is not None
        self._bootstrap = StockConnection(self._bootstrap_port)
        return self._bootstrap

    def _read_bootstrap(self, connection: StockConnection) -> None:
        checkpoint = self.checkpoint
        if checkpoint.mode == SNAPSHOT and checkpoint.fields["bootstrap_start_scn"] < 0:
            self._ask_start(connection)
        elif not checkpoint.is_phase_over:
            self._read_page(connection)
        elif checkpoint.mode == SNAPSHOT:
            self._ask_target(connection)
        elif not checkpoint.end_catch_up(self._sources):
            self.close()

    def _ask_start(self, connection: StockConnection) -> None:
        target = f"/startSCN?sources={','.join(self._sources)}&checkPoint={self.checkpoint.text}"
        answer = _checked(self._get(connection, target), "/startSCN")
        server = answer.headers.get("x-dbus2-bs-hostport", "")
        host, _, port = server.rpartition(":")
        if int(port or -1) != self._bootstrap_port or socket.gethostbyname(host) != "127.0.0.1":
            raise StockRefusalError(f"another server's session, it picks that one: {server!r}")
        self.checkpoint.fields |= {
            "bootstrap_start_scn": _scn_of(answer),
            "bootstrap_server_info": server,
        }

    def _ask_target(self, connection: StockConnection) -> None:
        source = self.checkpoint.fields["snapshot_source"]
        target = f"/targetSCN?source={source}&checkPoint={self.checkpoint.text}"
        answer = _checked(self._get(connection, target), "/targetSCN")
        self.checkpoint.take_target(_scn_of(answer), self._sources)

    def _read_page(self, connection: StockConnection) -> None:
        source = self.checkpoint.source
        # With protocol 3 it has no list of ids any more, and sends none.
        ids = self._id_list() if self._protocol < 3 else ""
        target = (
            f"/bootstrap?sources={ids}&checkPoint={self.checkpoint.text}"
            f"&output=binary&batchSize={self._size_bytes}"
        )
        if source in self._filters:
            target += f"&filter={json.dumps(self._filters[source], separators=(',', ':'))}"
        answer = _checked(self._get(connection, target), "/bootstrap")
        events = [event for event, _ in cut_events(answer.body)]
        rows = [self._decode(event) for event in events if not event.is_control]
        for row in rows:
            self.tables.take_bootstrap_row(row)
        is_over = "phasecompleted" in answer.headers
        self._empty_pages = 0 if rows or is_over else self._empty_pages + 1
        if self._empty_pages > _EMPTY_PAGES:
            raise StockRefusalError(f"{_EMPTY_PAGES} pages without a row: {self.checkpoint.text}")
        self.checkpoint.read_page(events, is_over=is_over)

    # Both sides

    def _pick_again(self) -> None:
        """Forget the connection; a window that was half read is read again."""
        self.close()
        self._window = []
        time.sleep(_PAUSE_S)

    def _get(self, connection: StockConnection, target: str) -> StockAnswer:
        self.requests.append(target)
        return connection.get(target)

    def _id_list(self) -> str:
        return ",".join(str(src_id) for src_id in self._ids.values())


def _error_of(answer: StockAnswer, path: str) -> str | None:
    """Return the error's class; raises StockRefusalError for one that is not recognised.

    A stock client looks at the cause only: without it an error's text is read as events.
    """
    error, cause = answer.headers.get("x-dbus-error"), answer.headers.get("x-dbus-error-cause")
    for name in (error, cause):
        if name is not None and not name.startswith(("com.linkedin.", "java.")):
            raise StockRefusalError(f"{path}: unexpected error {name!r}")
    if cause is None and (error is not None or answer.status != 200):
        raise StockRefusalError(
            f"{path}: status {answer.status}, {error}, and no cause: "
            f"{answer.headers.get('x-dbus-error-message')}"
        )
    return cause


def _checked(answer: StockAnswer, path: str) -> StockAnswer:
    """Return an answer; raises StockRefusalError for an error, or that it asks again after it."""
    error = _error_of(answer, path)
    text = f"{path}: {error}: {answer.headers.get('x-dbus-error-message')}"
    if error == TOO_OLD:
        raise StockRefusalError(f"suspended: {text}")
    if error == STORE_TROUBLE:
        raise _BadAnswerError(text)
    if error is not None:
        raise StockRefusalError(text)
    return answer


def _scn_of(answer: StockAnswer) -> int:
    return int(_text(json.loads(answer.body)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise StockRefusalError(f"{value!r} is not a string")
    return value
