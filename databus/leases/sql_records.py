"""Records in one table of any database that SQLAlchemy supports.

    databus_records   name, version (of the row, grows with each write), data (JSON)

Each statement is a transaction of its own: a process that is frozen between two of them has
nothing locked. Statements have time limits where the driver has them, because a lease runs out
while one waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.schema import CreateTable

from databus.daemon.files import make_private
from databus.leases.errors import LeaseError, LeaseUnavailableError, refusal
from databus.leases.records import Stored
from databus.schemas.errors import SettingsError

_MOST_CHARS = 1 << 20
_TIMEOUT_S = 5
_TABLE = sa.Table(
    "databus_records",
    sa.MetaData(),
    sa.Column("name", sa.String(255), primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    # Not TEXT of 64 KiB, which is all that MySQL gives without a length.
    sa.Column("data", sa.Text(_MOST_CHARS), nullable=False),
)
# The drivers that this project brings, where SQLAlchemy's own choice is another one.
_DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
# Of MySQL and MariaDB: no such user, password or database, no right to it, a locked account.
_REFUSED_CODES = frozenset({1044, 1045, 1049, 1142, 1227, 1698, 1820, 1862, 3118, 4151})
_REFUSED_STATES = frozenset({"28000", "28P01", "3D000", "42501"})  # of PostgreSQL
_ADVICE = (
    "give the right user, password and database in the URL, and let the user SELECT, INSERT, "
    "UPDATE and CREATE there"
)
_LIMITS: Mapping[str, Mapping[str, Any]] = {
    "pymysql": {
        "connect_timeout": _TIMEOUT_S,
        "read_timeout": _TIMEOUT_S,
        "write_timeout": _TIMEOUT_S,
    },
    "psycopg": {
        "connect_timeout": _TIMEOUT_S,
        "options": f"-c statement_timeout={_TIMEOUT_S}s",
    },
    "pysqlite": {"timeout": _TIMEOUT_S},
}


class SqlRecords:
    """Records in the table `databus_records`, which is created with the first one."""

    poll_s = 0.5

    def __init__(self, url: str) -> None:
        """Open no connection yet; raise SettingsError if SQLAlchemy cannot use the URL."""
        try:
            parsed = make_url(url)
            if not parsed.database:
                raise SettingsError(f"{parsed.drivername}://: the URL names no database")
            parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
            self.shown = parsed.render_as_string(hide_password=True)
            self._engine = sa.create_engine(
                parsed,
                isolation_level="AUTOCOMMIT",
                # A server that was restarted since is noticed before a statement is lost in it.
                pool_pre_ping=True,
                pool_timeout=_TIMEOUT_S,
                connect_args=dict(_LIMITS.get(parsed.get_dialect().driver, {})),
            )
        except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
            raise SettingsError(
                f"{url.partition('://')[0]}:// is no usable URL: {error}"
            ) from error
        self._url, self._is_ready, self._lock = parsed, False, threading.Lock()

    def read(self, name: str, on_change: Callable[..., None] | None = None) -> Stored | None:  # noqa: ARG002
        """Return a record, None if there is none; `on_change` is not called."""
        wanted = sa.select(_TABLE.c.data, _TABLE.c.version).where(_TABLE.c.name == name)
        with self._connection() as connection:
            row = connection.execute(wanted).first()
        return None if row is None else Stored(row.data.encode(), row.version)

    def replace(self, name: str, data: bytes, before: Stored | None) -> bool:
        """Write a record if it still is what was read; return whether it was written."""
        text = data.decode("ascii")
        with self._connection() as connection:
            if before is None:
                try:
                    connection.execute(_TABLE.insert().values(name=name, version=1, data=text))
                except exc.IntegrityError:
                    return False
                return True
            row = (_TABLE.c.name == name) & (_TABLE.c.version == before.version)
            values = {"version": _TABLE.c.version + 1, "data": text}
            return connection.execute(_TABLE.update().where(row).values(values)).rowcount == 1

    def names(self, folder: str) -> list[str]:
        """Return the names of the records that lie in a folder."""
        wanted = sa.select(_TABLE.c.name).where(_TABLE.c.name.startswith(f"{folder}/"))
        with self._connection() as connection:
            found = [str(name) for name in connection.execute(wanted).scalars()]
        return [name for name in found if name.rpartition("/")[0] == folder]

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        try:
            self._make_ready()
            with self._engine.connect() as connection:
                yield connection
        except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
            problem = getattr(error, "orig", None) or error
            if _is_refusal(problem):
                raise refusal(self.shown, problem, _ADVICE, has_served=self._is_ready) from error
            raise LeaseUnavailableError(self.shown, problem) from error
        except exc.SQLAlchemyError as error:
            raise LeaseError(f"{self.shown} cannot keep leases: {error}") from error

    def _make_ready(self) -> None:
        with self._lock:
            if self._is_ready:
                return
            _make_private(self._url)
            with self._engine.connect() as connection:
                if not sa.inspect(connection).has_table(_TABLE.name):
                    connection.execute(CreateTable(_TABLE, if_not_exists=True))
            self._is_ready = True


def _is_refusal(problem: BaseException) -> bool:
    """Return whether a server says that this user, or this database, is not to be had."""
    code = problem.args[0] if problem.args else None
    # On a failed connection psycopg has the text alone.
    is_of_postgres = getattr(problem, "sqlstate", None) in _REFUSED_STATES
    return code in _REFUSED_CODES or is_of_postgres or "authentication failed" in str(problem)


def _make_private(url: URL) -> None:
    """Create an SQLite file before SQLite does, with the permissions of the umask."""
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        assert url.database is not None
        make_private(Path(url.database))
