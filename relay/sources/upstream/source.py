"""A physical source that is another relay: its windows, as they are.

The next window is asked for by the SCN of the newest one here, and by a window with rows that came
before (`Checkpoint.mark_scn`): a relay of another log has another one there, and refuses. Before
that, names, ids, schemas and epochs are compared (`identity.py`). A relay that does not have the
windows that follow is refused too: nothing is ever left out.

Schemas come from the other relay's registry, before a window that has rows of them is handed over,
and so do epochs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from databus.conf.named_places import NamedPlace, ScnPlace, Word, parse_source_start
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.epochs import Epoch, Lineage
from databus.relay.sources.source import Captured, Newest, Source
from databus.relay.sources.upstream.answers import (
    StreamAnswer,
    read_epochs,
    read_schemas,
    read_sources,
    read_state,
)
from databus.relay.sources.upstream.identity import (
    RELAY_ID,
    epochs_problem,
    schemas_problem,
    sources_problem,
    versions_to_add,
)
from databus.relay.sources.upstream.requests import Upstream
from databus.relay.sources.upstream.windows import WINDOW_DONE, WindowCutter
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, SchemaError, SourceStoppedError
from databus.schemas.log_mark import LogMark
from databus.schemas.protocol import Parameter
from databus.schemas.scn import binlog_position
from databus.schemas.stream.row_event import NO_ROW_DIGEST
from databus.schemas.table import Table

WAIT_MS = 500  # a request is held so long: capture can be stopped between two
SIZE_BYTES = 4 << 20
_STATE_EVERY_S = 1.0
_WELL = "running"


class UpstreamSource(Source):
    """Reads a physical source of the same name from another relay."""

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = settings.name
        self._settings, self._clock = settings, clock
        self._upstream = Upstream(settings)
        self._lineage = Lineage()
        self._marks: list[tuple[int, int]] = []
        self._cutter = WindowCutter(-1)
        self._at: tuple[int, int] | None = None  # where to go on; None = at the oldest window
        self._is_from_latest = self._is_at_end = False
        self._size_bytes = SIZE_BYTES
        self._ids: Mapping[str, int] = {}
        self._epochs: tuple[Epoch, ...] = ()
        self._epoch = -1  # up to which `_epochs` is known to be whole
        self._state_at_s = 0.0
        self._relays: tuple[str, ...] = ()

    def expect(self, marks: Sequence[LogMark]) -> None:
        """Take the windows with rows that were taken over, by which their log is known again."""
        self._marks = [found for mark in marks if (found := _window_of(mark)) is not None]

    def follow(self, lineage: Lineage) -> None:
        """Take the epochs that are known here."""
        self._lineage = lineage

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Connect, compare the two relays, and go on after `after_scn`."""
        scn = -1 if after_scn is None else after_scn
        self._upstream.scn = scn
        self._ids = self._source_ids()
        self._check_epochs()
        self._cutter = WindowCutter(scn)
        self._take_schemas(scn)
        # An empty window will do where none with rows is known: other relays may lack it.
        known = self._marks or ([] if newest is None else [(newest.scn, newest.timestamp_ns)])
        self._cutter.mark = max((mark for mark in known if mark[0] <= scn), default=None)
        self._at, self._is_from_latest = None, False
        if after_scn is not None:
            self._at = scn, WINDOW_DONE
        else:
            self._start()
        self._is_at_end, self._state_at_s = False, float("-inf")

    def scn_at(self, place: NamedPlace) -> int:
        """Return the SCN of a place that the other relay holds."""
        if isinstance(place, ScnPlace):
            return place.scn
        if isinstance(place, Word):
            state = self._upstream.get(self._upstream.path(), read_state)
            return max(0, state.newest_scn if place is Word.LATEST else state.after_scn)
        source, *others = self._settings.source_names
        return self._upstream.get(
            f"/api/v1/sources/{source}/position",
            lambda value: int(value["scn"]),
            {"at": str(place), "others": ",".join(others)},
        )

    def tables(self) -> Sequence[Table]:
        """Return nothing: schemas come from the other relay's registry."""
        return ()

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epochs of the other relay."""
        return self._epochs

    def read(self) -> Sequence[Captured]:
        """Return the next windows; waits for half a second for the first."""
        self._is_at_end = False
        if self._upstream.is_followed:
            body = self._upstream.next_part()
            return self._take(StreamAnswer(body, None, None, False)) if body else []
        answer = self._upstream.stream(self._parameters())
        if answer.is_ahead:
            raise self._upstream.unavailable(f"it has not reached scn {self._cutter.scn} yet")
        if answer.pending_event_bytes is not None:
            self._make_room(answer.pending_event_bytes)
            return []
        if not answer.body:
            self._take_place(answer)
            self._check_state()
            self._is_at_end = not self._cutter.is_inside
            return []
        return self._take(answer)

    def _take(self, answer: StreamAnswer) -> Sequence[Captured]:
        try:
            found = self._cut(answer)
        except ProtocolError as error:
            raise self._upstream.unavailable(f"bad bytes in /stream: {error}") from error
        self._take_place(answer)
        self._upstream.scn = self._cutter.scn
        return found

    @property
    def is_at_end(self) -> bool:
        """Whether the other relay has said that it has nothing more."""
        return self._is_at_end

    @property
    def relays(self) -> tuple[str, ...]:
        """The other relay, and those through which it reads."""
        return self._relays

    def mark_of(self, scn: int) -> LogMark | None:
        """Return the newest window with rows as the identity of the log at an SCN."""
        mark = self._cutter.mark
        if mark is None or scn < mark[0]:
            return None
        return mark_of_window(scn, *mark)

    def close(self) -> None:
        """Close the connection."""
        self._upstream.close()

    def _source_ids(self) -> Mapping[str, int]:
        """Return the ids of the sources; raises ServerRefusedError for other sources."""
        found = self._upstream.get("/physicalSources", lambda value: read_sources(value, self.name))
        if isinstance(found, list):
            listed = ", ".join(found)
            raise self._upstream.refused(
                f"it has no physical source {self.name}; it has {listed}. The names must be equal"
            )
        own = found if self._encoder is None else self._encoder.src_ids
        names = dict.fromkeys(self._settings.source_names, -1)
        problem = sources_problem({name: own.get(name, -1) for name in names}, found)
        if problem:
            raise self._upstream.refused(problem)
        return found

    def _check_epochs(self) -> None:
        self._epochs = self._upstream.get(self._upstream.path("/epochs"), read_epochs)
        self._epoch = -1
        problem = epochs_problem(self._lineage.epochs, self._epochs)
        if problem:
            raise self._upstream.refused(
                f"{problem}: one SCN would name two transactions. To follow it, use a new data_dir"
            )

    def _take_schemas(self, scn: int = -1) -> None:
        """Register what the other relay's registry has more; check it at `scn`, if that is one."""
        if self._encoder is None:
            return
        own = self._encoder.schemas()
        theirs = self._upstream.get("/api/v1/schemas", lambda value: read_schemas(value, self.name))
        problem = schemas_problem(own, theirs, scn) if scn >= 0 else ""
        try:
            if not problem:
                self._encoder.adopt(versions_to_add(own, theirs))
        except SchemaError as error:
            problem = str(error)
        if problem:
            raise self._upstream.refused(
                f"its schemas are not those that are known here: {problem}. To follow it, use a "
                "new data_dir"
            )
        known = {(src_id, NO_ROW_DIGEST) for src_id in self._ids.values()}
        for source, schemas in self._encoder.schemas().items():
            known |= {(self._ids[source], schema.schema_id) for schema in schemas}
        self._cutter.schemas = frozenset(known)

    def _start(self) -> None:
        """Go to where a first start begins."""
        place = parse_source_start(self._settings.start)
        if place is Word.LATEST:
            self._is_from_latest = True
        elif place is not Word.EARLIEST:
            self._at = self.scn_at(place), WINDOW_DONE
            self._cutter.scn = self._at[0]

    def _parameters(self) -> dict[str, str]:
        left_out = self._left_out
        ids = [str(src_id) for name, src_id in self._ids.items() if name not in left_out]
        parameters = {
            Parameter.SOURCES: ",".join(ids),
            Parameter.CHECKPOINT: self._checkpoint().to_json(),
            Parameter.SIZE: str(self._size_bytes),
            Parameter.OUTPUT: "binary",
            Parameter.EVENT_VERSION: "2",
            Parameter.DDL: "true",
            Parameter.TRUNCATE: "true",
            Parameter.WAIT_MS: str(WAIT_MS),
            Parameter.FOLLOW: "true",
        }
        if self._settings.upstream_compression == "zstd":
            parameters[Parameter.COMPRESS] = "true"
        if self._is_from_latest:
            parameters[Parameter.FROM_LATEST] = "true"
        return parameters

    def _checkpoint(self) -> Checkpoint:
        if self._at is None:
            return Checkpoint.flexible()
        scn, offset = self._at
        found = replace(Checkpoint.at(max(scn, 0)), window_offset=offset)
        mark = self._cutter.mark
        return found if mark is None else replace(found, mark_scn=mark[0], mark_ts_ns=mark[1])

    def _take_place(self, answer: StreamAnswer) -> None:
        """Go on where the answer ends: what does not say it has whole windows."""
        resume = answer.resume
        if answer.body and resume is None:
            resume = self._cutter.scn, WINDOW_DONE
        if resume is not None and resume[0] >= 0:
            self._at, self._is_from_latest = resume, False
            if resume[1] == WINDOW_DONE:
                self._cutter.scn = max(self._cutter.scn, resume[0])
                self._upstream.scn = self._cutter.scn

    def _cut(self, answer: StreamAnswer) -> list[Captured]:
        body, resume = answer.body, answer.resume
        self._size_bytes = SIZE_BYTES
        if resume is not None and resume[1] != WINDOW_DONE:
            if not self._cutter.is_inside:
                self._know(resume[0])
            return self._cutter.take_part(body)
        windows = self._cutter.read(body)
        last_scn = windows[-1].scn
        if self._encoder is not None and self._cutter.unknown_in(windows):
            self._know(last_scn)
            unknown = self._cutter.unknown_in(windows)
            if unknown:
                src_id, digest = min(unknown)
                raise self._upstream.unavailable(
                    f"up to window {last_scn} there are rows of source {src_id} with schema "
                    f"{digest.hex()}, which its registry does not have"
                )
        elif any(window.statements for window in windows):
            self._take_schemas()
        self._take_epochs(last_scn)
        return self._cutter.take(body, windows)

    def _know(self, scn: int) -> None:
        """Take over what windows up to `scn` may refer to: those can be read there already."""
        self._take_schemas()
        self._take_epochs(scn)

    def _take_epochs(self, scn: int) -> None:
        number = binlog_position(scn).epoch
        if number > self._epoch:
            self._check_epochs()
            self._epoch = number

    def _make_room(self, event_bytes: int) -> None:
        """Ask for more at a time: an event is larger than what was asked for."""
        if self._size_bytes >= event_bytes:
            raise SourceStoppedError(
                self.name,
                self._cutter.scn,
                f"relay {self._upstream.url}: the next event has {event_bytes} bytes, and it sends "
                "fewer at a time: raise http.max_response_bytes there",
            )
        self._size_bytes = event_bytes + (64 << 10)

    def _check_state(self) -> None:
        """Raise SourceUnavailableError if the other relay does not read its source either."""
        now_s = self._clock()
        if now_s - self._state_at_s < _STATE_EVERY_S:
            return
        state = self._upstream.get(self._upstream.path(), read_state)
        self._relays = state.relays
        if RELAY_ID in state.relays:
            raise self._upstream.unavailable(
                "it reads this relay, itself or through others: one of them must read the database"
            )
        if not state.is_connected:
            problem = state.problem or "its source was not heard from"
            raise self._upstream.unavailable(f"there, capture is {state.state}: {problem}")
        self._state_at_s = now_s


def mark_of_window(scn: int, window: int, timestamp_ns: int) -> LogMark:
    """Return the mark of a log at an SCN: the newest window with rows up to there, and its time."""
    return LogMark(scn, json.dumps({"window": window, "timestamp_ns": timestamp_ns}))


def is_mark_of_window(mark: LogMark) -> bool:
    """Whether a mark is of windows that were taken over, not of a database's log."""
    return _window_of(mark) is not None


def _window_of(mark: LogMark) -> tuple[int, int] | None:
    """Return the window that a mark names; None for one of another kind of source."""
    try:
        found = json.loads(mark.text)
        return int(found["window"]), int(found["timestamp_ns"])
    except (ValueError, KeyError, TypeError):
        return None
