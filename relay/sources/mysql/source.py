"""Captures whole transactions from the binlog of a MySQL or MariaDB server.

The SCN of a transaction is the position after its commit (epoch, file, offset), so
reading resumes there. Everything in a transaction comes from the server: two sources
that read one server yield equal transactions.

Some changes are not in the binlog: those of sessions without row format, rows of
dropped partitions, columns missing from a row image. Capture stops there with an error
that names the position and the remedy. After the remedy, the SCN from the message is
added to `acknowledged_scns`, and capture passes that one position.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from databus.conf.column_settings import unnamed
from databus.conf.named_places import NamedPlace
from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.faults import is_transient
from databus.relay.sources.epochs import Lineage, Serving
from databus.relay.sources.mysql.binlog.packets import SAME_ID, StreamBrokenError, StreamEnded
from databus.relay.sources.mysql.binlog.stopped import AssemblyStopped
from databus.relay.sources.mysql.binlog.xa import PreparedTransactions
from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.dump import BinlogDump
from databus.relay.sources.mysql.replication.log_identities import Identities
from databus.relay.sources.mysql.replication.log_identity import AnotherLogError
from databus.relay.sources.mysql.replication.same_log import SameLog, wrong_connection
from databus.relay.sources.mysql.search.definition_scan import log_scanner
from databus.relay.sources.mysql.search.prepared_search import PreparedInLog
from databus.relay.sources.mysql.search.start_search import StartSearch
from databus.relay.sources.mysql.search.succession import Succession
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.checks import (
    filter_problems,
    replica_id_problem,
    replication_problem,
    variable_problems,
)
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.findings import findings_of
from databus.relay.sources.mysql.server.initial_history import (
    HistoryOfServer,
    rules_of,
    versions_after,
)
from databus.relay.sources.mysql.server.matched_tables import watched_names
from databus.relay.sources.mysql.server.replica import (
    check_replica_id,
    evicted,
    replica_host,
    replica_id,
)
from databus.relay.sources.mysql.server.start_position import (
    FIRST_OFFSET,
    LogFile,
    Start,
    end_scn,
    start_at_setting,
)
from databus.relay.sources.mysql.server.variables import (
    dialect_of,
    gtid_start_problem,
    is_mariadb_of,
    read_facts,
    with_log_ends,
)
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.source import (
    Captured,
    Findings,
    Newest,
    ReadItem,
    Source,
    TablesFoundError,
    Transaction,
)
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.errors import SourceError, SourceStoppedError, SourceUnavailableError
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import BinlogPosition, binlog_position
from databus.schemas.table import Table
from databus.schemas.windows import WindowBatch, WindowPiece

try:
    from databus.relay.sources.mysql.replication.compiled_assembler import CompiledAssembler
except ImportError:  # not built: the assembler in Python does all the work
    CompiledAssembler = None  # type: ignore[assignment,misc]

# How long `read` waits for the first byte, and for the first complete transaction.
WAIT_S = 0.5
READ_S = 1.0


class MysqlSource(Source):
    """Reads the changes of the watched tables from one server's binlog. Used by one thread."""

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        clock: Callable[[], float] = time.monotonic,
        history: Path | None = None,
    ) -> None:
        self.name = settings.name
        self._history = HistoryOfServer(history, settings.epoch)
        self._settings = settings
        self._address = address_of(settings)
        self._sources = settings.source_names
        self._server_id = replica_id(settings)
        self._clock = clock
        self._scn, self._is_mariadb = 0, True
        self._tables: WatchedTables | None = None
        self._assembler: Assembler | None = None
        self._dump: BinlogDump | None = None
        self._stopped: SourceError | TablesFoundError | None = None
        self._start_of_dump, self._seeks_gtids = Start(), False
        self._same_log = SameLog(self.name, settings.epoch)
        self._marked: LogMark | None = None
        self._newest: Newest | None = None
        self._lineage: Lineage | None = None  # what was executed is of no interest
        self._serving: Serving | None = None
        self._is_reading, self._findings = False, Findings()  # something was yielded
        self._writer = WindowWriter(self.name)

    def expect(self, marks: Sequence[LogMark]) -> None:
        """Set the marks of the log read before; `read` checks that the log still matches them."""
        self._same_log.expect(marks)

    def follow(self, lineage: Lineage) -> None:
        """Set what is known of the servers before, and of what was delivered."""
        self._lineage = lineage

    @property
    def serving(self) -> Serving | None:
        """The epoch of the server that is read."""
        at = None if self._assembler is None else self._assembler.position.rpartition(":")[0]
        return None if at is None or self._serving is None else self._serving._replace(file=at)

    @property
    def executed(self) -> str | None:
        """GTIDs of all that was handed over; None if something was read that was not."""
        if self._assembler is None or self._stopped is not None or not self._writer.is_whole:
            return None
        executed = self._assembler.identities.executed
        return None if executed is None else executed.text

    def mark_of(self, scn: int) -> LogMark | None:
        """Return the mark that identifies the log at the SCN of a delivered transaction."""
        if self._assembler is None or (self._marked is not None and self._marked.scn == scn):
            return self._marked
        found = self._assembler.identities.at(scn)
        self._marked = None if found is None else found.mark()
        return self._marked

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Check the server and start after an SCN; None starts at the `start` setting."""
        self.close()
        self._scn = after_scn or 0
        self._newest = newest
        self._writer = WindowWriter(self.name, self._encoder, newest)
        with self._errors():
            self._open(after_scn)

    def scn_at(self, place: NamedPlace) -> int:
        """Look for a place in the server's log; see `Source.scn_at`."""
        catalog = ServerCatalog(self._address, self._settings, self._scn)
        with self._errors(), catalog.session():
            files = catalog.needed_log_files()
            start = self._start_at(str(place), files, is_mariadb_of(catalog.variables()))
            number = next(file.number for file in files if file.name == start.file)
            return BinlogPosition(self._settings.epoch, number, start.offset).to_scn()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise what a server answers, or what its log does not have, as SourceError."""
        try:
            yield
        except ValueError as error:
            if is_transient(error):  # such as a full disk when the history is written
                raise
            raise SourceStoppedError(self.name, self._scn, str(error)) from error
        except StreamBrokenError as error:
            raise wrong_connection(error, self.name, f"reading {self._address}") from error

    @property
    def silence_s(self) -> float:
        """Seconds since the server last sent a packet; it sends a heartbeat each second."""
        return 0.0 if self._dump is None else self._dump.silence_s

    @property
    def is_at_end(self) -> bool:
        """Whether the log is read to its end, and verified up to there."""
        return self._stopped is None and self._assembler is not None and self._assembler.is_at_end

    def tables(self) -> Sequence[Table]:
        """Return the watched tables as they were last read, but for those made after this place."""
        return self._tables.tables(self._scn) if self._tables is not None else []

    @property
    def findings(self) -> Findings:
        """The facts and warnings found when the source was opened."""
        return self._findings

    def read(self) -> Sequence[Captured]:
        """Return the transactions that have arrived, as windows; see `read_transactions`."""
        return self._writer.write_from(self.read_transactions)

    def read_transactions(self) -> Sequence[ReadItem]:
        """Return the transactions that have arrived; wait half a second for the first.

        With an encoder, the compiled decoder returns those that it reads as windows.
        """
        deadline = self._clock() + READ_S
        while True:
            if self._stopped is not None:
                raise self._stopped
            if self._dump is None or self._assembler is None:
                raise SourceUnavailableError(f"source {self.name} is not open")
            found: list[ReadItem] | None = self._receive(self._dump, self._assembler)
            if found is None:
                # Nothing arrived for a while: the last empty transaction moves the SCN now.
                held = self._assembler.take_held()
                found = [held] if held is not None else []
                deadline = 0.0
            if self._seeks_gtids:
                found = self._from_gtids_on(found)
            is_over = self.is_at_end or self._clock() >= deadline
            if found or (self._stopped is None and is_over):
                return found

    def _from_gtids_on(self, found: list[ReadItem]) -> list[ReadItem]:
        """Drop the items that mark file starts, up to the first other item.

        Resuming from the start of a file would deliver transactions that the GTID set excludes.
        """
        for index, item in enumerate(found):
            if (
                not isinstance(item, Transaction)
                or item.changes
                or (item.origin.offset != FIRST_OFFSET)
            ):
                self._seeks_gtids = False
                return found[index:]
        return []

    def close(self) -> None:
        """Close the connection."""
        dump, self._dump = self._dump, None
        self._assembler = self._stopped = None
        self._is_reading = False
        if dump is not None:
            dump.close()

    def _receive(self, dump: BinlogDump, assembler: Assembler) -> list[ReadItem] | None:
        """Return what the received bytes complete; None when no bytes were received.

        An error that ends the stream is raised by the next `read`, after the items that
        came before it were returned.
        """
        found: list[ReadItem] = []
        try:
            if not self._assemble(dump, assembler, found):
                return None
        except AssemblyStopped as stop:
            self._stopped = SourceStoppedError(
                self.name,
                self._scn,
                stop.problem,
                stop.position,
                evidence=stop.evidence,
                remedy=stop.remedy,
                tables=stop.tables,
            )
        except StreamEnded as ended:
            self._stopped = self._end_of(dump, ended, assembler)
        except TablesFoundError as new:
            self._stopped = new
        except (StreamBrokenError, AnotherLogError) as error:
            self._stopped = self._not_same(error)
        if assembler.identities.rotated_from is None or self._look_behind(assembler.identities):
            return found
        return []

    def _assemble(self, dump: BinlogDump, assembler: Assembler, found: list[ReadItem]) -> bool:
        """Add what the received bytes complete to `found`; return False when there were none."""
        if CompiledAssembler is None or not isinstance(assembler, CompiledAssembler):
            events = dump.receive(WAIT_S)
            for event in events or ():
                transaction = assembler.receive(event)
                if transaction is not None:
                    self._keep(found, transaction)
            return events is not None
        chunk = dump.receive_chunk(WAIT_S)
        if chunk is None:
            return False
        for item in assembler.receive_bytes(*chunk):
            self._keep(found, item)
        return True

    def _look_behind(self, identities: Identities) -> bool:
        """Return whether the file before a rotation is the one that was read."""
        rotated_from, identities.rotated_from = identities.rotated_from, None
        assert rotated_from is not None
        catalog = ServerCatalog(self._address, self._settings, self._scn)
        open_dump = self._open_dump_to_scan(self._is_mariadb)
        try:
            self._same_log.look_behind(rotated_from, catalog.log_files(), open_dump)
        except SourceUnavailableError as error:
            self._stopped = error
            return False
        except (SourceStoppedError, AnotherLogError, StreamBrokenError, ValueError) as error:
            # Retried: reopening compares the log with the saved marks.
            self._stopped = SourceUnavailableError(
                f"source {self.name}: the file before a rotation is not what was read: {error}"
            )
            return False
        return True

    def _not_same(self, error: StreamBrokenError | AnotherLogError) -> SourceError:
        if isinstance(error, AnotherLogError):
            return self._same_log.another(error, self._scn)
        return wrong_connection(error, self.name, f"reading the binlog of {self._address}")

    def _keep(self, found: list[ReadItem], item: ReadItem) -> None:
        found.append(item)
        self._is_reading = True
        if isinstance(item, WindowBatch):
            self._scn = item.last_scn
        elif not isinstance(item, WindowPiece):
            self._scn = item.scn

    def _end_of(self, dump: BinlogDump, ended: StreamEnded, assembler: Assembler) -> SourceError:
        if SAME_ID in ended.text:
            server = str(self._address)
            return evicted(self.name, self._scn, self._server_id, server, self._clock())
        catalog = ServerCatalog(self._address, self._settings, self._scn)
        ended = with_log_ends(ended, self._start_of_dump, catalog)
        error = dump.explain(ended)
        if not isinstance(error, SourceStoppedError):
            return error
        if self._is_reading:
            # The log may have been replaced while it was read: reopening tells whether it was.
            return SourceUnavailableError(f"source {self.name}: {ended.text}")
        if self._same_log.newest is None:
            return error
        text = self._same_log.not_there(ended.text)
        return SourceStoppedError(self.name, self._scn, text, assembler.position)

    def _open(self, after_scn: int | None) -> None:
        catalog = ServerCatalog(self._address, self._settings, self._scn, self._left_out)
        with catalog.session():
            self._begin(catalog, after_scn)

    def _begin(self, catalog: ServerCatalog, after_scn: int | None) -> None:
        variables = catalog.variables()
        self._is_mariadb = is_mariadb = is_mariadb_of(variables)
        self._check_server(variables, catalog)
        fold_case = variables.get("lower_case_table_names", "0") != "0"
        must_exist, files = self._history.asked_for, catalog.needed_log_files()
        open_dump = self._open_dump_to_scan(is_mariadb)
        names, more = watched_names(catalog, self._settings, must_exist, fold_case, self._stop_on)
        facts = read_facts(catalog, variables, self._sources)
        filtered = filter_problems(self._sources, facts.filters, fold_case=fold_case)
        self._stop_on(filtered or [replication_problem(variables, facts.replication)])
        dialect = dialect_of(catalog, self._settings, is_mariadb=is_mariadb)
        succession = self._take_turn(catalog, files, after_scn)
        start, identities = self._start(after_scn, files, is_mariadb)
        first = self._settings.start if identities is None else None  # no log to compare with
        self._stop_on([gtid_start_problem(catalog, start, is_mariadb)])
        rules, settings, epoch = rules_of(variables, dialect), self._settings, self._settings.epoch
        scan = log_scanner(names, rules, epoch, catalog.log_files, open_dump, self._tell_search)
        history = self._history.open(catalog, names, scan, first=first, oldest=files[0])
        start = self._history.start_of(start, first, catalog)
        tables = self._tables = WatchedTables(
            names,
            rules,
            history,
            scan,
            allow_cascades=settings.allow_cascades,
            delivers_dml=settings.on_statement == "deliver",
            config=settings.file,
            ask=partial(versions_after, catalog, names, scan),
            left_out=self._left_out,
            hides_values=settings.protects,
            matched_scn=end_scn(files, epoch),
            shown_unnamed=partial(unnamed, settings.columns),
        )
        hours, at = settings.purge_warning_hours, str(start)
        self._findings = findings_of(facts, tables.tables(), at, hours, more)
        in_log = PreparedInLog(tables, dialect, epoch, catalog.log_files, open_dump)
        self._assembler = self._make_assembler(
            tables,
            dialect,
            epoch=epoch,
            acknowledged=settings.acknowledged_scns,
            announces_start=bool(first) and not start.gtids,
            has_gaps=bool(start.gtids),
            identities=identities or Identities(self._same_log.server),
            prepared=PreparedTransactions(in_log),
        )
        executed = succession.executed_at(self._lineage, after_scn, start, is_first=bool(first))
        self._assembler.identities.executed = executed
        self._read_from(start)

    def _read_from(self, start: Start) -> None:
        self._start_of_dump, self._seeks_gtids = start, bool(start.gtids)
        self._dump = self._request(start, self._is_mariadb, self._server_id, follows=True)

    def _take_turn(
        self, catalog: ServerCatalog, files: Sequence[LogFile], after_scn: int | None
    ) -> Succession:
        """Decide which epoch this is; a new one begins with what is not delivered yet."""
        open_dump, tell = self._open_dump_to_scan(self._is_mariadb), self._tell_search
        succession = Succession(catalog, files, open_dump, tell, is_mariadb=self._is_mariadb)
        server, begun = self._same_log.server, self._settings.epoch
        name, newest = self.name, self._newest
        epoch, begin = succession.turn(self._lineage, begun, after_scn, server, name, newest)
        start = self._settings.start if begin is None else begin.start
        self._settings = self._settings.model_copy(update={"epoch": epoch, "start": start})
        self._history.epoch = self._same_log.epoch = epoch
        self._serving = Serving(epoch, server, None if begin is None else begin.gtids)
        self._history.known_scn = None if begin is None else begin.scn
        return succession

    def _check_server(self, variables: Mapping[str, str], catalog: ServerCatalog) -> None:
        # MariaDB has no server_uuid.
        self._same_log.server = variables.get("server_uuid") or variables.get("server_id", "")
        any_row_image = self._settings.partial_rows == "deliver"
        self._stop_on(variable_problems(variables, any_row_image=any_row_image))
        self._stop_on([replica_id_problem(self._server_id, int(variables.get("server_id", 0)))])
        server, now_s = str(self._address), self._clock()
        check_replica_id(self._settings, self._scn, self._server_id, server, catalog, now_s)

    def _make_assembler(self, *arguments: Any, **more: Any) -> Assembler:
        if CompiledAssembler is None or self._encoder is None:
            return Assembler(*arguments, **more)
        assembler = CompiledAssembler(*arguments, encoder=self._encoder, **more)
        if self._room is not None:
            assembler.write_into(self._room)
        return assembler

    def _request(
        self, start: Start, is_mariadb: bool, server_id: int, *, follows: bool
    ) -> BinlogDump:
        return BinlogDump(
            self._address,
            start,
            server_id,
            source=self.name,
            scn=self._scn,
            is_mariadb=is_mariadb,
            host=replica_host(self._settings) if follows else "",
            follows=follows,
            clock=self._clock,
        )

    def _start(
        self, after_scn: int | None, files: Sequence[LogFile], is_mariadb: bool
    ) -> tuple[Start, Identities | None]:
        """Return the start position and the identities to verify there.

        The identities are None when the position comes from the settings.
        """
        epoch, setting = self._settings.epoch, self._settings.start
        if after_scn is None:
            return self._start_at(setting, files, is_mariadb), None
        position = binlog_position(after_scn)
        if position.epoch < epoch and setting not in ("latest", "earliest"):
            # The server was replaced: the settings give the position in the new one's log.
            return self._start_at(setting, files, is_mariadb), None
        begin = self._same_log.begin(after_scn, files, self._newest)
        open_dump = self._open_dump_to_scan(is_mariadb)
        self._same_log.prove_newest(after_scn, files, open_dump)
        return begin

    def _start_at(self, start: str, files: Sequence[LogFile], is_mariadb: bool) -> Start:
        search = StartSearch(files, self._open_dump_to_scan(is_mariadb), self._tell_search)
        epoch = self._settings.epoch
        return start_at_setting(start, epoch, files, search.find, is_mariadb=is_mariadb)

    def _open_dump_to_scan(self, is_mariadb: bool) -> Callable[[Start], BinlogDump]:
        def open_dump(start: Start) -> BinlogDump:
            # A separate id: the server drops the older of two dumps with the same id.
            server_id = replica_id(self._settings.model_copy(update={"server_id": 0}))
            return self._request(start, is_mariadb, server_id, follows=False)

        return open_dump

    def _stop_on(self, problems: Sequence[str], tables: Collection[str] = ()) -> None:
        text = "; ".join(problem for problem in problems if problem)
        if text:
            raise SourceStoppedError(self.name, self._scn, text, tables=tuple(tables))
