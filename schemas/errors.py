"""Every error of the project: few types, with facts as attributes and advice in the text.

    DatabusError
    ├── ProtocolError                 bytes that do not conform to the wire format
    │   └── WindowTooLargeError       a window larger than the reader accepts
    ├── RequestError                  a request cannot be answered as it stands
    │   ├── InvalidParameterError     a parameter is missing, malformed or too large
    │   ├── UnknownCommandError       no such path
    │   ├── UnauthorizedError         no token, or an unknown one
    │   ├── ForbiddenError            not permitted for the token's role, or from that page
    │   ├── TooSlowError              the answer took longer than the limit
    │   ├── UnknownSourceError        no such source id or name
    │   ├── ControlRefusedError       an admin command is not possible now
    │   ├── UnusableSourceError       a physical source's files cannot be used; others are served
    │   ├── TableStoppedError         a table is stopped alone, and what follows lacks its rows
    │   ├── OtherLogError             the checkpoint is of another log
    │   ├── ScnNotFoundError          the requested point is no longer held
    │   │   └── DamagedWindowsError   the windows after it are damaged in a file
    │   ├── ScnAheadError             the requested point lies after the newest window
    │   ├── PlaceNotFoundError        no window has the GTID that names the requested point
    │   ├── BootstrapTooOldError      the bootstrap server has not reached that SCN: retry later
    │   │   └── RowsUnknownError      stored rows with unknown values: they are read again
    │   └── BootstrapTooYoungError    the bootstrap server does not reach back so far
    ├── BootstrapError                a store cannot be read, written or served from
    │   └── StoreDamagedError         its file is damaged
    ├── CheckpointError               a checkpoint that contradicts itself, or cannot be stored
    │   └── OtherTargetError          its batches went to another target than the given one
    ├── SchemaError
    │   ├── SchemaNotFoundError       no schema for that id, source or SCN
    │   ├── IncompatibleSchemaError   the reader cannot resolve it; names the field
    │   ├── ReloadNeededError         rows from before a schema change must be read again
    │   └── RestartNeededError        the query must be restarted after a schema change
    ├── RowError                      a row that does not fit its table's schema
    ├── RingError
    │   ├── RingCorruptError          the file is damaged beyond what can be served
    │   └── TransactionTooLargeError  a transaction larger than the ring
    ├── RelayLogError                 a relay log cannot be used, or has not what the ring had
    │   └── RelayLogDamagedError      a segment is not what was written
    ├── SourceError
    │   ├── SourceUnavailableError    cannot be reached now; retrying may help
    │   └── SourceStoppedError        capture stopped; a person must do what the text says
    ├── IllegalTransitionError        a step that a state machine's table does not have
    ├── ServerError                   a relay or bootstrap server answered with an error
    │   └── NoAnswerError             none of several servers answered in time
    ├── ConsumerError                 a callback failed or overran its time budget
    └── SettingsError                 a setting is missing, unknown or out of range
        └── ReadAgainError            the source changed during a read: start the read again

Each class has the HTTP status of its answer (`status`) and the class name on the wire
(`wire_name`). That is Databus' own name if there is one, because its clients distinguish errors
by it. `error_headers.py` adds Java's packages. `databus/leases/errors.py` has those of leases.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Self

from databus.schemas.log_mark import window_text


class DatabusError(Exception):
    """The base of all errors raised on purpose; `server`: URL of who answered with it, or ""."""

    status = 500
    wire_name = "RequestProcessingException"
    server = ""


class ProtocolError(DatabusError):
    """Bytes do not conform to the wire format; `offset` is the position in the given bytes."""

    status = 400
    wire_name = "InvalidEventException"

    def __init__(self, problem: str, offset: int = 0) -> None:
        super().__init__(f"{problem} (at byte {offset})")
        self.problem, self.offset = problem, offset


class WindowTooLargeError(ProtocolError):
    """A window is larger than the reader's `max_window_bytes`."""

    def __init__(self, size_bytes: int, max_window_bytes: int, offset: int = 0) -> None:
        super().__init__(
            f"a window of {size_bytes} bytes or more; at most {max_window_bytes} are taken "
            "(max_window_bytes)",
            offset,
        )


class RequestError(DatabusError):
    """A request cannot be answered as it stands; clients raise the class that the server raised."""

    status = 400

    @classmethod
    def answered(cls, server: str, text: str) -> Self:
        """Return the error that a server answered; facts that no header carries are empty."""
        error = cls.__new__(cls)
        Exception.__init__(error, f"{server}: {text}")
        error.server = server
        return error


class InvalidParameterError(RequestError):
    """A parameter is missing, malformed or beyond its limit."""

    wire_name = "InvalidRequestParamValueException"
    parameter = ""
    rule = ""

    def __init__(self, parameter: str, value: str, rule: str) -> None:
        shown = value if len(value) <= 80 else f"{value[:77]}..."
        super().__init__(f"parameter {parameter!r} is {shown!r}: {rule}")
        self.parameter, self.rule = parameter, rule


class UnknownCommandError(RequestError):
    """No such path."""

    status = 404
    wire_name = "UnknownCommandException"

    def __init__(self, command: str, advice: str = "") -> None:
        super().__init__(f"unknown command {command!r}" + (f"; {advice}" if advice else ""))


class UnknownSourceError(RequestError):
    """No such source, by id or by name."""

    status = 404
    wire_name = "UnknownSourceException"
    source: str | int = ""

    def __init__(self, source: str | int, known: list[str]) -> None:
        # Of all of very many names it would take seconds.
        near = get_close_matches(str(source), known[:1000], 10) if len(known) > 10 else []
        shown = ", ".join(sorted(known, key=lambda name: name not in near)[:10]) or "none"
        more = f" and {len(known) - 10} more" if len(known) > 10 else ""
        super().__init__(f"unknown source {source!r}; known: {shown}{more}")
        self.source = source


class UnauthorizedError(RequestError):
    """The request has no token, or an unknown one."""

    status = 401
    wire_name = "UnauthorizedException"

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}: send `Authorization: Bearer <token>` with a token of this server "
            "(clients: token_file or token_env; commands: --token-file)"
        )


class ForbiddenError(RequestError):
    """The role of the caller, or its page, does not permit this; the text says what would."""

    status = 403
    wire_name = "ForbiddenException"


class TooSlowError(RequestError):
    """The work for one request took longer than the limit; the same request may do so again."""

    status = 503
    wire_name = "RequestTimedOutException"

    def __init__(self, max_answer_s: float) -> None:
        super().__init__(
            f"the answer took more than {max_answer_s:g} s (http.max_answer_s): "
            "ask for less at a time, or try again when the server has less to do"
        )


class ControlRefusedError(RequestError):
    """An admin command is not possible now; the text says why, and nothing was changed."""

    status = 409


class UnusableSourceError(RequestError):
    """A physical source whose files cannot be used; the relay serves the others."""

    status = 503

    def __init__(self, physical_source: str, problem: Exception) -> None:
        super().__init__(f"physical source {physical_source} is not served: {problem}")
        self.physical_source = physical_source


class TableStoppedError(RequestError):
    """A table is stopped alone: what follows is captured without its rows. "" = unknown source."""

    status = 503
    wire_name = "TableStoppedException"
    source = ""


class ScnNotFoundError(RequestError):
    """The requested point has been overwritten.

    Not worth retrying on this relay; on every relay of the source the client must bootstrap. On
    the wire it is the *cause* of a RequestProcessingException, where Databus clients look for it.
    """

    status = 404
    wire_name = "ScnNotFoundException"

    def __init__(self, scn: int, oldest: int, advice: str = "") -> None:
        self.oldest_text = str(oldest) if oldest >= 0 else "unknown"
        what, more = f"scn {scn}" if scn >= 0 else "what is older", f"; {advice}" if advice else ""
        super().__init__(f"{what} is gone; the oldest held is {self.oldest_text}{more}")
        self.scn, self.oldest, self.advice = scn, oldest, advice


class ScnAheadError(RequestError):
    """The requested place lies after the newest window: ask again later, or name another one."""

    status = 404
    wire_name = "ScnAheadException"

    def __init__(self, place: str, newest: int, advice: str = "") -> None:
        shown = f"scn {newest}" if newest >= 0 else "none"
        super().__init__(f"{place} is not reached yet; the newest window is {shown}{advice}")


class PlaceNotFoundError(RequestError):
    """No window that is held has what names the requested place, for example its GTID."""

    status = 404
    wire_name = "PlaceNotFoundException"


class OtherLogError(RequestError):
    """A consumer's checkpoint names a window that the log of this server does not have.

    It is the checkpoint of another log: of another database, or of the same one before it was
    reset. Nothing is sent, because SCNs of two logs cannot be compared.
    """

    status = 409
    wire_name = "OtherLogException"

    @classmethod
    def of(cls, name: str, mark: tuple[int, int], held: tuple[int, int] | None) -> Self:
        """Return the error for a window (SCN, timestamp in ns) and the newest held up to there."""
        here = f"window {window_text(*held)}" if held else "no window up to there"
        return cls(
            f"the checkpoint is of another log of {name}: the consumer read one with rows of "
            f"window {window_text(*mark)}, and here there is {here}. Nothing was sent. Use the "
            "server of that log; or, if the source was begun anew or restored, remove the "
            "checkpoint and what was made of the rows, and read all again"
        )


class DamagedWindowsError(ScnNotFoundError):
    """Windows in the middle of a ring's file, or in a segment of a relay log, are damaged.

    On the wire it is a ScnNotFoundException, unless the source's own log has them: a client before
    those windows can continue on another server. Those at the last one or after it are served.
    """

    def __init__(self, path: str, physical_source: str, scns: tuple[int, int], at: int) -> None:
        after, until = scns
        super().__init__(
            after,
            until,
            f"file {path} is damaged at byte {at}: its windows after scn {after}, up to {until}, "
            "cannot be read. Consumers before them get them from the source's own log (catch_ups), "
            "or need a bootstrap server or another relay. A restart puts all older history aside: "
            f'POST /api/v1/physicalSources/{physical_source}/restart {{"scn": "{after}"}}',
        )
        self.path, self.physical_source, self.until, self.at = path, physical_source, until, at


class BootstrapTooOldError(RequestError):
    """The bootstrap server has not reached the SCN that it needs to answer: retry later.

    A source is being seeded, or the producer is behind the consumer's SCN; the text says which,
    and how far it is.
    """

    status = 503
    wire_name = "BootstrapDatabaseTooOldException"


class RowsUnknownError(BootstrapTooOldError):
    """The values of stored rows are unknown since a schema change at `scn`: read them again."""

    def __init__(self, source: str, scn: int, why: str) -> None:
        self.source, self.scn = source, scn
        self.problem = f"its rows are read again, for not all are as the table of scn {scn}: {why}"
        super().__init__(
            f"source {source}: {self.problem}; ask again later (where no seeding runs: "
            f"`databus bootstrap seed --source {source}`)"
        )


class BootstrapTooYoungError(RequestError):
    """A bootstrap server has no data that old, or no row ids; the text says where to begin."""

    status = 410
    wire_name = "BootstrapDatabaseTooYoungException"


class BootstrapError(DatabusError):
    """A bootstrap store cannot be read, written or served from; the text says what to do."""

    wire_name = "BootstrapProcessingException"


class StoreDamagedError(BootstrapError):
    """A bootstrap store's file is damaged; it is no longer served."""


class CheckpointError(DatabusError):
    """A checkpoint that contradicts itself, or that cannot be read or stored."""

    status = 400
    wire_name = "InvalidRequestParamValueException"


class OtherTargetError(CheckpointError):
    """A Spark query's batches went to another target than the one that is given now."""

    def __init__(self, checkpoint: str, target: str, problem: str) -> None:
        super().__init__(problem)
        self.checkpoint, self.target = checkpoint, target


class SchemaError(DatabusError):
    """Something is wrong with a schema."""

    wire_name = "DatabusSchemaException"


class SchemaNotFoundError(SchemaError):
    """No schema for that id, source or SCN."""

    status = 404


class IncompatibleSchemaError(SchemaError):
    """A schema cannot be resolved to the reader's, because of `field`."""

    status = 409

    def __init__(self, source: str, field: str, reason: str) -> None:
        super().__init__(f"schema of {source}: field {field!r}: {reason}")
        self.source, self.field, self.reason = source, field, reason


class ReloadNeededError(SchemaError):
    """The values of stored rows after a schema change are unknown: read the rows again.

    Read them as of `scn`, the SCN of the change, or later; 0 if it is not known.
    """

    def __init__(self, problem: str, scn: int = 0) -> None:
        super().__init__(problem)
        self.scn = scn


class RestartNeededError(SchemaError):
    """A schema changed after a query was started; restart the query to use the new one."""


class RowError(DatabusError):
    """A row that does not fit its table's schema: never guessed, never skipped."""

    def __init__(self, source: str, column: str, problem: str) -> None:
        super().__init__(f"{source}, column {column!r}: {problem}")
        self.source, self.column = source, column


class RingError(DatabusError):
    """Something is wrong with a ring file."""


class RingCorruptError(RingError):
    """The ring file is damaged beyond what can be served.

    Nothing is lost by moving the file away: capture then starts from MaxSCN.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"ring {path}: {problem}; move the file away and restart: "
            "capture continues from MaxSCN, and clients that are behind it bootstrap"
        )
        self.path = path


class TransactionTooLargeError(RingError):
    """A transaction larger than the ring, without a relay log to take it.

    A transaction that arrives in pieces is noticed before its end: then `scn` is that of the one
    before it, and `size_bytes` is the size so far.
    """

    def __init__(
        self, source: str, scn: int, size_bytes: int, capacity_bytes: int, *, is_whole: bool = True
    ) -> None:
        size = f"at scn {scn} has" if is_whole else f"after scn {scn} has more than"
        super().__init__(
            f"source {source}: the transaction {size} {size_bytes} bytes and the ring "
            f"{capacity_bytes}; give this physical source a relay log ([physical_sources.log]), "
            "which takes transactions of any size, or raise its ring_bytes; restart the relay"
        )
        self.scn, self.size_bytes = scn, size_bytes


class RelayLogError(DatabusError):
    """A relay log cannot be written or read, or a part of the history is not in it."""

    status = 503


class RelayLogDamagedError(RelayLogError):
    """Bytes of a segment are not what was written; `problem` says which."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"relay log {path}: {problem}")
        self.path, self.problem = path, problem


class SourceError(DatabusError):
    """Something is wrong between the relay and a physical source."""


class SourceUnavailableError(SourceError):
    """The source cannot be reached now; retrying with back-off may help."""


class SourceStoppedError(SourceError):
    """Capture stopped at a position, and a person must do what the text says.

    `scn` is the last SCN handed over; `position` names the position in the source's own terms
    (file and offset, row of the change log), or is empty. `evidence` identifies the bytes that
    were read there: if the next read finds other bytes, they were damaged in transit. `remedy`
    tells how to skip the position, after a second read. `tables` are those that alone must stop.
    """

    def __init__(
        self,
        source: str,
        scn: int,
        problem: str,
        position: str = "",
        *,
        evidence: bytes = b"",
        remedy: str = "",
        tables: tuple[str, ...] = (),
    ) -> None:
        place, self.advice = position and f" at {position}", remedy and f" ({remedy})"
        super().__init__(f"source {source} stopped after scn {scn}{place}: {problem}{self.advice}")
        self.source, self.scn, self.position = source, scn, position
        self.problem, self.evidence, self.tables = problem, evidence, tables


class IllegalTransitionError(DatabusError):
    """A state machine was to take a step that its table does not have: a defect of ours."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"state {state} has no step {event}: a defect of databus, report it")
        self.state, self.event = state, event


class ServerError(DatabusError):
    """A relay or bootstrap server answered with an error, or with nonsense."""

    status = 502

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(f"{server}: {problem}")
        self.server = server


class NoAnswerError(ServerError):
    """No server answered, or had what was to come, for as long as they were asked."""


class ConsumerError(DatabusError):
    """A callback failed for good; `scn` is the window it failed in."""

    def __init__(self, scn: int, problem: str) -> None:
        super().__init__(f"consumer failed in window {scn}: {problem}" if scn > 0 else problem)
        self.scn, self.problem = scn, problem


class SettingsError(DatabusError):
    """A setting is missing, unknown or out of range."""


class ReadAgainError(SettingsError):
    """The data has changed since the reading began: begin the reading again."""
