"""A bootstrap server that does what a test says: real HTTP on a real port, no store behind it.

It knows the windows of a source up to `position` and answers from them as
protocol.md says. What is put into `acts` under a path is done instead to the
next requests for that path, one each.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence

from tornado.web import RequestHandler

from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.event.control import checkpoint_event
from databus.schemas.event.event import Event, Opcode
from databus.schemas.event.v2 import encode
from databus.schemas.filters import parse_filters
from tests.client.fake_relay import FakeRelay

Act = Callable[["BootstrapHandler"], None]


class FakeBootstrap(FakeRelay):
    """A scripted bootstrap server; use as a context manager."""

    def __init__(
        self, windows: Sequence[Sequence[Event]] = (), page_events: int = 1000, store: str = "one"
    ) -> None:
        super().__init__(windows)
        self.page_events = page_events
        self.store = store
        self.acts: dict[str, deque[Act]] = defaultdict(deque)
        self.on_page: Callable[[], None] = lambda: None
        self.knows_register = True

    @property
    def position(self) -> int:
        """The SCN up to which it knows everything."""
        return self.windows[-1][0].scn if self.windows else 0

    def pages(self) -> list[Checkpoint]:
        """Return the checkpoints of the `/bootstrap` requests so far."""
        return [
            Checkpoint.from_json(p["checkPoint"]) for path, p in self.requests if "boot" in path
        ]

    def events(self) -> Iterator[Event]:
        """Yield what it knows, in order."""
        for window in self.windows:
            yield from window


class BootstrapHandler(RequestHandler):
    """Every command."""

    def initialize(self, relay: FakeBootstrap) -> None:
        self.relay = relay

    def get(self) -> None:
        parameters = {k: v[-1].decode() for k, v in self.request.arguments.items()}
        relay, path = self.relay, self.request.path
        relay.requests.append((path, parameters))
        if relay.acts[path]:
            relay.acts[path].popleft()(self)
        elif path == "/register" and relay.knows_register:
            fields = [
                {"id": s.src_id, "version": s.version, "schema": s.text} for s in relay.schemas
            ]
            self.finish(json.dumps(fields))
        elif path == "/startSCN":
            self.set_header("X-DBUS2-BS-HOSTPORT", "nowhere.example:1")
            self.set_header("x-databus-store", relay.store)
            self.finish(json.dumps(str(relay.position)))
        elif path == "/targetSCN":
            self.finish(json.dumps(str(relay.position)))
        elif path == "/bootstrap":
            self.bootstrap(parameters)
        else:
            self.set_status(404)
            self.set_header("x-dbus-error", "com.linkedin.UnknownCommandException")

    def bootstrap(self, parameters: dict[str, str]) -> None:
        """Answer a page."""
        since = Checkpoint.from_json(parameters["checkPoint"])
        is_snapshot = since.mode is ConsumptionMode.SNAPSHOT
        if is_snapshot and since.extra.get("bootstrap_store_id") != self.relay.store:
            too_young("another store's")(self)
            return
        rows = self._snapshot_rows(since) if is_snapshot else self._log_rows(since, parameters)
        filters = parse_filters(parameters.get("filter", "{}"))
        answer, after, left = b"", since, int(parameters["batchSize"])
        for count, (checkpoint, event) in enumerate(rows):
            one = filters.get(event.src_id)
            data = encode(event) if one is None or one.matches(event.key) else b""
            if not answer and len(data) > left:
                self.set_header("x-dbus-pending-event-size", str(len(data)))
                break
            if len(data) > left or count == self.relay.page_events:
                break
            answer, after, left = answer + data, checkpoint, left - len(data)
        else:
            self.set_header("PhaseCompleted", "TRUE")
            after = self._end(since, is_snapshot)
        self.relay.on_page()
        self.finish(answer + encode(checkpoint_event(after)))

    def _end(self, since: Checkpoint, is_snapshot: bool) -> Checkpoint:
        if is_snapshot:
            return since.end_snapshot()
        return since.after_log_rows(since.bootstrap_target_scn, -1)

    def _snapshot_rows(self, since: Checkpoint) -> Iterator[tuple[Checkpoint, Event]]:
        src_id = self.relay.sources[since.snapshot_source]
        rows: dict[int | bytes, Event] = {}
        for event in self.relay.events():
            if event.src_id == src_id:
                rows[event.key] = event
        for row_id, event in enumerate(rows.values(), 1):
            is_wanted = since.bootstrap_since_scn < event.scn <= since.bootstrap_start_scn
            is_shown = event.opcode is not Opcode.DELETE or since.bootstrap_since_scn > 0
            if is_wanted and is_shown and row_id > since.snapshot_offset:
                yield since.after_snapshot_row(row_id), event

    def _log_rows(
        self, since: Checkpoint, parameters: dict[str, str]
    ) -> Iterator[tuple[Checkpoint, Event]]:
        wanted = {int(i) for i in parameters["sources"].split(",")}
        for window in self.relay.windows:
            scn = window[0].scn
            events = [event for event in window if event.src_id in wanted]
            consumed = since.window_offset if scn == since.window_scn else 0
            if not since.window_scn <= scn <= since.bootstrap_target_scn or consumed == -1:
                continue
            for index, event in enumerate(events):
                if index >= consumed:
                    offset = -1 if index + 1 == len(events) else index + 1
                    yield since.after_log_rows(scn, offset), event


FakeBootstrap.handler = BootstrapHandler


def refuse(name: str, text: str, code: int = 503) -> Act:
    """Answer with an error of this class."""

    def act(handler: BootstrapHandler) -> None:
        handler.set_status(code)
        handler.set_header("x-dbus-error", f"com.linkedin.{name}")
        handler.set_header("x-dbus-error-message", text)

    return act


def too_old(text: str) -> Act:
    """Answer that the server is not as far yet."""
    return refuse("BootstrapDatabaseTooOldException", text)


def too_young(text: str) -> Act:
    """Answer that the server does not reach back so far."""
    return refuse("BootstrapDatabaseTooYoungException", text, 410)


def drop(handler: BootstrapHandler) -> None:
    """Close the connection here and now."""
    connection: object = handler.request.connection
    connection.stream.close()  # type: ignore[attr-defined]
    handler._finished = True
