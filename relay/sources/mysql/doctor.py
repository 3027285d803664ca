"""The checks of `databus doctor` on a MySQL or MariaDB server: those of capture, and a few more.

Capture stops at the first problem; the doctor reports all of them at once. The rules are
in `server/checks.py` and `server/findings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress

from databus.conf.named_places import TimePlace, parse_source_start
from databus.conf.settings import PhysicalSourceSettings, is_loopback
from databus.doctor.checks import Check, check_matched, error, errors, ok, warning
from databus.doctor.servers import check_clock
from databus.relay.sources.kind import CheckRequest
from databus.relay.sources.log_status import Holding
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.rows.layout import Definition
from databus.relay.sources.mysql.search.start_search import StartSearch
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.checks import (
    GRANT_HINT,
    filter_problems,
    replica_id_problem,
    replication_problem,
    variable_problems,
)
from databus.relay.sources.mysql.server.connection import MysqlAddress, address_of
from databus.relay.sources.mysql.server.findings import findings_of
from databus.relay.sources.mysql.server.log_retention import (
    Place,
    ServerLog,
    keeping_of,
    log_status_of,
)
from databus.relay.sources.mysql.server.matched_tables import match
from databus.relay.sources.mysql.server.replica import clash_text, replica_host, replica_id
from databus.relay.sources.mysql.server.start_position import LogFile, Start, start_at_setting
from databus.relay.sources.mysql.server.variables import (
    gtid_start_problem,
    is_mariadb_of,
    read_facts,
)
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import tell_nobody
from databus.schemas.errors import DatabusError, ProtocolError, SettingsError, SourceError
from databus.schemas.scn import binlog_position
from databus.schemas.table import Column, Table


def check_server(request: CheckRequest) -> list[Check]:
    """Run all checks; one that cannot be made is an error, and the rest still run."""
    run = _ServerCheck(request.subject, request.settings, request.now_s, request.newest_scn)
    run.run(reads_log=request.reads_log)
    return run.found


class _ServerCheck:
    """One run of the checks on one server; `found` collects the results."""

    def __init__(
        self, subject: str, settings: PhysicalSourceSettings, now_s: float, newest_scn: int | None
    ) -> None:
        self.found: list[Check] = []
        self._subject = subject
        self._settings = settings
        self._now_s = now_s
        self._newest_scn = newest_scn

    def run(self, *, reads_log: bool) -> None:
        """Run the checks in the order in which they depend on each other."""
        with self._checking("login"):
            address = address_of(self._settings)
            catalog = ServerCatalog(address, self._settings, 0)
            with catalog.session():
                self._add(ok(self._named("login"), f"{address} lets the account in"))
                self._check_tls(address)
                self._ask(catalog, address, reads_log)

    def _ask(self, catalog: ServerCatalog, address: MysqlAddress, reads_log: bool) -> None:
        variables = catalog.variables()
        # Before any name is compared with the server's.
        fold_case = variables.get("lower_case_table_names", "0") != "0"
        sources = self._settings.source_names
        names = catalog.names = Names(sources, fold_case=fold_case)
        with self._checking("clock"):
            ((clock_s,),) = catalog.ask("SELECT UNIX_TIMESTAMP(NOW(6))")
            self._add(*check_clock(self._named("clock"), float(clock_s), self._now_s))
        with self._checking("tables"):
            problems = catalog.table_problems(names.sources)
            well = f"all {len(sources)} can be read"
            self._add(*errors(self._named("tables"), problems, well if sources else ""))
        if self._settings.patterns:
            with self._checking("tables"):
                matched = match(catalog, self._settings, fold_case=fold_case)
                self._add(*check_matched(self._named("tables"), matched.found, matched.warnings()))
            catalog.names = names
        if reads_log:
            self._check_variables(variables)
            self._check_log(catalog, address, variables, fold_case)

    def _check_variables(self, variables: Mapping[str, str]) -> None:
        settings = self._settings
        any_image = settings.partial_rows == "deliver"
        problems = variable_problems(variables, any_row_image=any_image)
        well = (
            f"log_bin ON, binlog_format ROW, binlog_row_image {variables.get('binlog_row_image')}"
        )
        self._add(*errors(self._named("variables"), problems, well))
        metadata = variables.get("binlog_row_metadata", "none")
        if metadata.upper() != "FULL":
            self._add(
                warning(
                    self._named("variables"),
                    f"binlog_row_metadata is {metadata}: names of columns are taken from the "
                    "table as it is when capture first sees it, not from the log; "
                    "SET GLOBAL binlog_row_metadata = 'FULL' (MariaDB 10.5, MySQL 8.0.1 and later)",
                )
            )
        own_id = int(variables.get("server_id", 0) or 0)
        if own_id == 0:
            text = "server_id is 0, and it logs nothing for replicas: set server_id = 1 or another"
            self._add(error(self._named("server_id"), text))
        elif problem := replica_id_problem(settings.server_id, own_id):
            self._add(error(self._named("server_id"), problem))

    def _check_log(
        self,
        catalog: ServerCatalog,
        address: MysqlAddress,
        variables: Mapping[str, str],
        fold_case: bool,
    ) -> None:
        with self._checking("findings"):
            self._check_facts(catalog, variables, fold_case)
        with self._checking("server_id"):
            self._check_clash(catalog.replicas())
        files: Sequence[LogFile] = ()
        with self._checking("grants"):
            files = catalog.log_files()
        if not files:
            return
        with self._checking("grants"):
            open_dump = self._dumps(address, variables)
            self._try_dump(open_dump, files)
        with self._checking("start"):
            self._check_place(catalog, files, variables, open_dump)

    def _check_facts(
        self, catalog: ServerCatalog, variables: Mapping[str, str], fold_case: bool
    ) -> None:
        sources = self._settings.source_names
        facts = read_facts(catalog, variables, sources)
        problems = filter_problems(sources, facts.filters, fold_case=fold_case)
        problems.append(replication_problem(variables, facts.replication))
        self._add(*errors(self._named("log"), problems, ""))
        tables = [
            _table(source, definition)
            for source in sources
            if (definition := catalog.definition(source)) is not None
        ]
        found = findings_of(facts, tables, self._settings.start, self._settings.purge_warning_hours)
        self._add(ok(self._named("server"), found.summary))
        self._add(*(warning(self._named("server"), text) for text in found.warnings))

    def _check_clash(self, replicas: Sequence[tuple[int, str]]) -> None:
        """Check for other replicas with the configured id; a derived id is unique."""
        wanted = self._settings.server_id
        if not wanted:
            return
        name, _, machine = replica_host(self._settings).partition("@")
        ours = name.rpartition(":")[0]
        others = [host for number, host in replicas if number == wanted]
        strangers = [h for h in others if not (h.startswith(f"{ours}:") and h.endswith(machine))]
        if strangers:
            text = f"{clash_text(wanted)}: {', '.join(strangers)}"
            self._add(error(self._named("server_id"), text))
        elif others:
            self._add(ok(self._named("server_id"), f"{wanted} is used by this relay, which runs"))
        else:
            self._add(ok(self._named("server_id"), f"{wanted} is used by no other replica"))

    def _dumps(
        self, address: MysqlAddress, variables: Mapping[str, str]
    ) -> Callable[[Start], BinlogDump]:
        # With the configured id, the server would disconnect a relay that runs.
        derived = self._settings.model_copy(update={"server_id": 0})

        def open_dump(start: Start) -> BinlogDump:
            return BinlogDump(
                address,
                start,
                replica_id(derived),
                source=self._settings.name,
                is_mariadb=is_mariadb_of(variables),
                follows=False,
            )

        return open_dump

    def _try_dump(self, open_dump: Callable[[Start], BinlogDump], files: Sequence[LogFile]) -> None:
        """Request the end of the log as a replica does; grants alone do not prove that it works."""
        with closing(open_dump(Start(files[-1].name, files[-1].size_bytes))) as dump:
            for _ in events_to_the_end(dump):
                pass
        self._add(
            ok(self._named("grants"), "the account may read the log, and what it needs of it")
        )

    def _check_place(
        self,
        catalog: ServerCatalog,
        files: Sequence[LogFile],
        variables: Mapping[str, str],
        open_dump: Callable[[Start], BinlogDump],
    ) -> None:
        """Check that the log still has the position where capture resumes."""
        settings, subject = self._settings, self._named("start")
        position = None
        if self._newest_scn is not None and self._newest_scn > 0:
            with suppress(ProtocolError):
                position = binlog_position(self._newest_scn)
        # A first start, or the first one on another server (`epoch`): the settings decide.
        if position is None or position.epoch != settings.epoch:
            is_mariadb = is_mariadb_of(variables)
            if isinstance(parse_source_start(settings.start), TimePlace):
                text = "capture looks for it along the log, from the oldest file on"
                self._add(ok(subject, f"{settings.start}: {text}"))
                return
            search = StartSearch(files, open_dump, tell_nobody).find
            start = start_at_setting(
                settings.start, settings.epoch, files, search, is_mariadb=is_mariadb
            )
            problem = gtid_start_problem(catalog, start, is_mariadb)
            self._add(*errors(subject, [problem], f"capture begins at {start}"))
            return
        log = ServerLog(files, keeping_of(variables), self._now_s)
        status = log_status_of(Place(position), log, settings.purge_warning_hours)
        if status.holding is Holding.GONE:
            self._add(error(subject, status.warning))
        elif status.warning:
            self._add(warning(subject, status.warning))
        else:
            behind = f"{status.behind_bytes} bytes behind the end of the log"
            self._add(ok(subject, f"capture continues in a file that the server has, {behind}"))

    def _check_tls(self, address: MysqlAddress) -> None:
        if address.tls is None and not is_loopback(address.host):
            text = f"rows and the login go to {address.host} unencrypted; set tls_ca"
            self._add(warning(self._named("tls"), text))

    def _named(self, what: str) -> str:
        return f"{self._subject}: {what}"

    def _add(self, *checks: Check) -> None:
        self.found.extend(checks)

    @contextmanager
    def _checking(self, what: str) -> Iterator[None]:
        """Turn an error in the block into a failed check."""
        try:
            yield
        except SourceError as problem:
            text = str(problem)
            hint = "" if GRANT_HINT in text or not _is_about_grants(text) else f"; {GRANT_HINT}"
            self._add(error(self._named(what), text + hint))
        except (SettingsError, DatabusError, ValueError) as problem:
            self._add(error(self._named(what), str(problem)))


def _is_about_grants(text: str) -> bool:
    return "ccess denied" in text or "privilege" in text


def _table(source: str, definition: Definition) -> Table:
    place: Callable[[str], int | None] = {
        name: number for number, name in enumerate(definition.key)
    }.get
    columns = tuple(
        Column(column.name, column.sql_type, number, key_position=place(column.name))
        for number, column in enumerate(definition.columns)
    )
    return Table(source, columns)
