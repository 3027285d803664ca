"""Options of the sink `sql`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from pydantic import Field, PrivateAttr, ValidationInfo, field_validator
from sqlalchemy import exc
from sqlalchemy.engine import URL, Engine, make_url

from databus.client.sinks.ready.following import DdlSettings
from databus.client.sinks.ready.templates import check_without_columns
from databus.client.sql.engines import make_engine
from databus.client.sql.modes import WriteMode
from databus.client.sql.names import check_database
from databus.conf.model import Settings
from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError

# The drivers that this project brings, where SQLAlchemy's own choice is another one.
_DRIVERS = {
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
    "postgresql": "postgresql+psycopg",
}


class SqlOptions(Settings):
    """Options of `sql`."""

    url: str = Field(description="SQLAlchemy URL of the database, without a password")
    password_file: Path | None = Field(
        default=None, description="File with the password; only its user may read it"
    )
    table: str = Field(
        default="{table}", description="Template of a table: {source}, {schema}, {table}"
    )
    target_schema: str = Field(
        default="", description="Schema of the tables; none = the connection's own"
    )
    mode: WriteMode = Field(default=WriteMode.MIRROR, description="What a table holds")
    source_column: str = Field(
        default="",
        description="Column with the source of a row, of the key: for one table of several sources",
    )
    ddl: DdlSettings = Field(
        default_factory=DdlSettings, description="What follows a change of the source's table"
    )
    key_length: int = Field(
        default=255, ge=1, le=768, description="Length of a text key whose own is not known"
    )
    exactly_once: bool = Field(
        default=True,
        description="Keep the position in the database, for one lane; false = at least once",
    )
    timeout_s: float = Field(default=30.0, ge=1, description="Time for a connection, or a lock")

    # One object of options is that of a sink in a process: who it is, and for each physical source
    # the version of its position that was there last.
    _owner: str = PrivateAttr(default_factory=lambda: uuid4().hex)
    _versions: dict[str, int] = PrivateAttr(default_factory=dict)

    @property
    def keeps_position(self) -> bool:
        """Whether the position is in the database."""
        return self.exactly_once

    @property
    def shown_url(self) -> str:
        """The URL for messages."""
        return make_url(self.url).render_as_string(hide_password=True)

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str, info: ValidationInfo) -> str:
        try:
            parsed = make_url(url)
        except (exc.ArgumentError, ValueError) as error:
            # Not with the text, which may have a password.
            raise ValueError("write DATABASE://USER@HOST/NAME, as SQLAlchemy has it") from error
        if parsed.password:
            raise ValueError("it has a password: put that into password_file")
        file = parsed.database
        if not file:
            raise ValueError("it names no database")
        parsed = parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))
        if parsed.get_backend_name() == "sqlite" and file != ":memory:":
            base = info.context["folder"] if info.context else Path.cwd()
            parsed = parsed.set(database=str((Path(base) / file).absolute()))
        return parsed.render_as_string(hide_password=False)

    @field_validator("table")
    @classmethod
    def _is_a_template(cls, text: str) -> str:
        return check_without_columns(text)

    def make_engine(self) -> Engine:
        """Return the engine; raise SettingsError for a driver that is not there."""
        url = self._with_password(make_url(self.url))
        check_database(url)
        settings: dict[str, Any] = {"poolclass": sa.NullPool}
        if url.get_backend_name() != "sqlite":
            # Rows are named by keys: no gaps between them need to be locked.
            settings["isolation_level"] = "READ COMMITTED"
        try:
            return make_engine(url, connect_args=self._arguments(url), **settings)
        except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
            raise SettingsError(f"url {self.shown_url}: {error}") from error

    def _arguments(self, url: URL) -> dict[str, Any]:
        wait = int(self.timeout_s)
        match url.get_dialect().driver:
            case "pymysql":
                lock = f"SET innodb_lock_wait_timeout = {wait}"
                given = {"connect_timeout": wait, "init_command": lock}
                # Else PyMySQL would send it in Latin-1.
                password = {} if url.password is None else {"password": url.password.encode()}
                return given | password
            case "psycopg":
                words = f"-c lock_timeout={wait}s"
                return {"connect_timeout": wait, "options": words}
            case "pysqlite":
                return {"timeout": self.timeout_s}
        return {}

    def _with_password(self, url: URL) -> URL:
        if self.password_file is None:
            return url
        return url.set(password=private_line("password_file", self.password_file))
