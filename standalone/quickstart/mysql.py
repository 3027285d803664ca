"""What a MySQL or MariaDB server has and lacks, for `databus quickstart`.

The rules are those of capture and of `databus doctor`. Nothing is changed but by `run`.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from databus.conf.addresses import without_password
from databus.conf.loading import build_settings
from databus.conf.patterns import escaped
from databus.conf.settings import PhysicalSourceSettings
from databus.conf.source_names import NamedTable, source_problems
from databus.daemon.log_setup import hide
from databus.doctor.checks import has_errors
from databus.relay.sources.keys import NO_KEY
from databus.relay.sources.kind import check_source
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.checks import variable_problems
from databus.relay.sources.mysql.server.connection import MysqlAddress, address_of, connect
from databus.relay.sources.mysql.server.variables import is_mariadb_of
from databus.relay.sources.mysql.tables.names import Names
from databus.schemas.errors import DatabusError, SettingsError
from databus.standalone.quickstart.found import Found, FoundTable, Needs, Statement

PASSWORD_BYTES = 18
_TABLES = """
SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME
"""
_KEYED = """
SELECT DISTINCT TABLE_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND INDEX_NAME = 'PRIMARY'
"""
_DATABASES = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA ORDER BY SCHEMA_NAME"
_SEEN_FROM = "SELECT SUBSTRING_INDEX(USER(), '@', -1)"
_CONNECTED_BEFORE = """
SELECT USER FROM information_schema.PROCESSLIST WHERE ID < CONNECTION_ID()
AND USER NOT IN ('system user', 'event_scheduler') AND COMMAND NOT IN ('Binlog Dump', 'Daemon')
"""
_ACCOUNT = "SELECT 1 FROM mysql.user WHERE User = %s AND Host = %s"
# Variable → its line in the option file. Without these the server must be started again.
_AT_START = {"log_bin": "log_bin", "server_id": "server_id = 1"}
# Variable → what it should be; a session that is open keeps its own.
_SETTABLE = {
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who looks at a server: the URI's user, its password, and the server's socket if it is used.

    `account` is what capture logs in as, with the password in `password_file`.
    """

    uri: str
    password: str = ""
    socket: Path | None = None
    account: str = "databus"
    password_file: Path = Path("databus.password")
    tls_ca: Path | None = None

    @property
    def database(self) -> str:
        """The database of the URI; raises SettingsError when it has none."""
        database = unquote(urlsplit(self.uri).path.strip("/"))
        if not database:
            raise SettingsError(f"{self.uri}: name a database: mysql://user@host:port/database")
        return database

    @property
    def address(self) -> MysqlAddress:
        """The server, as the URI's user; raises SettingsError."""
        parts = urlsplit(self.uri)
        bare = parts._replace(path="").geturl()
        address = address_of(_source(bare, ["a.b"], **self.tls))
        return replace(address, password=hide(self.password))

    @property
    def tls(self) -> dict[str, str]:
        """The settings of TLS."""
        return {"tls_ca": str(self.tls_ca.absolute())} if self.tls_ca else {}

    @property
    def label(self) -> str:
        """The database, whoever logs in."""
        address = self.address
        return f"mysql://{address.host}:{address.port}/{self.database}"

    @property
    def capture_uri(self) -> str:
        """The URI of the physical source."""
        address = self.address
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"mysql://{self.account}@{host}:{address.port}"

    def kept_password(self) -> str:
        """Return the password in the account's file."""
        return hide(self.password_file.read_text(encoding="utf-8").partition("\n")[0].strip())


class Server:
    """One server, as the login's user sees it."""

    def __init__(self, login: Login) -> None:
        self._login = login
        settings = _source(login.capture_uri, ["a.b"])
        self._catalog = ServerCatalog(login.address, settings, 0)

    def look(self) -> Found:
        """Return what is there and what is missing; raises SettingsError, SourceError."""
        login = self._login
        with self._catalog.session(self._connect()):
            variables = self._catalog.variables()
            tables = tuple(self._tables(variables))
            password = self._password()
            sources = [table.source for table in tables if not table.problem]
            needs = self._needs(variables, password, sources) if sources else Needs()
        return Found(
            re.sub(r"[^A-Za-z0-9_.-]", "_", login.database)[:100],
            login.label,
            login.capture_uri,
            tables,
            needs,
            password_file=login.password_file,
            password=password,
            tls_ca=login.tls_ca.absolute() if login.tls_ca else None,
        )

    def run(self, statements: Sequence[Statement]) -> str:
        """Run statements, and return what to know then; raises SourceError, with the first words.

        A connection that is open keeps the settings of its time.
        """
        with self._catalog.session(self._connect()):
            for statement in statements:
                self._catalog.ask(statement.text)
            changed = any("binlog_" in statement.text for statement in statements)
            before = self._catalog.ask(_CONNECTED_BEFORE) if changed else ()
        if not before:
            return ""
        users = ", ".join(sorted({str(user) for (user,) in before}))
        return (
            f"{len(before)} connections are open from before ({users}): what they write is logged "
            "in the old format until they reconnect, and stops capture; restart their applications"
        )

    def _connect(self) -> Any:
        login = self._login
        through: dict[str, Any] = {"unix_socket": str(login.socket)} if login.socket else {}
        return connect(login.address, source=login.database, **through)

    def _tables(self, variables: Mapping[str, str]) -> Iterator[FoundTable]:
        database = self._login.database
        names = [str(name) for (name,) in self._catalog.ask(_TABLES, (database,))]
        keyed = {str(name) for (name,) in self._catalog.ask(_KEYED, (database,))}
        if not names:
            known = ", ".join(str(name) for (name,) in self._catalog.ask(_DATABASES))
            raise SettingsError(
                f"database {database} has no table that this account sees; databases: {known}"
            )
        fold_case = variables.get("lower_case_table_names", "0") != "0"
        for name in names:
            source = f"{database}.{name}"
            problems = [*source_problems([NamedTable(source, source, is_given=False)], "mysql")]
            if not problems:
                self._catalog.names = Names([source], fold_case=fold_case)
                problems = self._catalog.table_problems(self._catalog.names.sources)
            yield FoundTable(source, "; ".join(problems), "" if name in keyed else NO_KEY)

    def _needs(self, variables: Mapping[str, str], password: str, sources: Sequence[str]) -> Needs:
        wanted = [
            name for name, value in _SETTABLE.items() if variables.get(name, value).upper() != value
        ]
        lines = [f"{name} = {_SETTABLE[name]}" for name in wanted]
        problems = _start_problems(variables)
        if problems:
            at_start = [line for name, line in _AT_START.items() if _is_off(variables, name)]
            return Needs(tuple(problems), ("[mysqld]", *at_start, *lines))
        statements = [_plain(f"SET GLOBAL {name} = '{_SETTABLE[name]}'") for name in wanted]
        if self._login.address.user != self._login.account:
            statements += self._account(is_mariadb_of(variables), password, sources)
        return Needs((), ("[mysqld]", *lines) if lines else (), tuple(statements))

    def _password(self) -> str:
        """Return the account's password: the one in its file, or else a new one."""
        login = self._login
        if login.address.user == login.account and login.password:
            return login.password
        if login.password_file.exists():
            return login.kept_password()
        return hide(secrets.token_urlsafe(PASSWORD_BYTES))

    def _account(self, is_mariadb: bool, password: str, sources: Sequence[str]) -> list[Statement]:
        """Return the statements that the account of capture still needs."""
        login = self._login
        if login.password_file.exists() and self._may_capture(sources):
            return []
        host = self._host()
        name = f"{_quoted(login.account)}@{_quoted(host)}"
        # In a GRANT, _ and % stand for other characters.
        database = re.sub(r"([_%])", r"\\\1", login.database).replace("`", "``")
        everywhere = "REPLICATION SLAVE, REPLICATION CLIENT" + ("" if is_mariadb else ", PROCESS")
        grants = [
            _plain(f"GRANT {everywhere} ON *.* TO {name}"),
            _plain(f"GRANT SELECT ON `{database}`.* TO {name}"),
        ]
        if self._logs_in(password):
            return grants
        if self._catalog.ask(_ACCOUNT, (login.account, host)):
            raise SettingsError(
                f"the account {name} is there already, and its password is not in "
                f"{login.password_file}: write it there (chmod 600), or choose another --account"
            )
        create = f"CREATE USER {name} IDENTIFIED BY "
        return [Statement(create + _quoted(password), f"{create}'…'"), *grants]

    def _host(self) -> str:
        """Return the host that the server sees when capture connects."""
        if self._login.socket is not None:
            is_by_number = self._catalog.variables(["skip_name_resolve"]).get("skip_name_resolve")
            return "127.0.0.1" if is_by_number == "ON" else "localhost"
        ((host,),) = self._catalog.ask(_SEEN_FROM)
        return str(host)

    def _may_capture(self, sources: Sequence[str]) -> bool:
        """Return whether the account can do all that capture needs, as `databus doctor` checks."""
        login = self._login
        file = str(login.password_file.absolute())
        source = _source(login.capture_uri, sources, password_file=file, **login.tls)
        return not has_errors(check_source(source, time.time(), reads_log=True, newest_scn=None))

    def _logs_in(self, password: str) -> bool:
        address = replace(self._login.address, user=self._login.account, password=password)
        try:
            with closing(connect(address, source=self._login.database)):
                return True
        except DatabusError:
            return False


def _source(uri: str, sources: Sequence[str], **more: str) -> PhysicalSourceSettings:
    raw = {"name": "quickstart", "uri": uri, "sources": [*map(escaped, sources)], **more}
    return build_settings(raw, PhysicalSourceSettings, without_password(uri))


def _start_problems(variables: Mapping[str, str]) -> list[str]:
    """Return the problems that only a restart of the server solves."""
    problems = variable_problems({k: v for k, v in variables.items() if k == "log_bin"})
    if _is_off(variables, "server_id"):
        problems.append("server_id is 0, and it logs nothing for replicas")
    return problems


def _is_off(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "ON").upper() in ("OFF", "0")


def _plain(text: str) -> Statement:
    return Statement(text, text)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
