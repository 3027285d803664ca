"""Options of the sink `clickhouse`, and its login."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from databus.client.sinks.ready.basic_login import basic_login
from databus.client.sinks.ready.following import DdlSettings
from databus.client.sinks.ready.templates import check_without_columns
from databus.client.sql.modes import WriteMode
from databus.conf.model import Settings, SizeBytes
from databus.conf.server_settings import check_server_urls
from databus.daemon.tls import client_context

_MODES = (WriteMode.MIRROR, WriteMode.APPEND_HISTORY)


class ClickHouseOptions(Settings):
    """Options of `clickhouse`."""

    url: str = Field(default="http://127.0.0.1:8123", description="The server's HTTP interface")
    database: str = Field(default="default", min_length=1, description="Database of the tables")
    table: str = Field(
        default="{table}", description="Template of a table: {source}, {schema}, {table}"
    )
    mode: WriteMode = Field(
        default=WriteMode.MIRROR, description="What a table holds: `mirror` or `append_history`"
    )
    ddl: DdlSettings = Field(
        default_factory=DdlSettings, description="What follows a change of the source's table"
    )
    batch_bytes: SizeBytes = Field(default=16 << 20, ge=1024, description="About one INSERT")
    user: str = Field(default="", description="User of the login; none = the server's default")
    password_file: Path | None = Field(
        default=None, description="File with the password; only its user may read it"
    )
    tls_ca: Path | None = Field(
        default=None, description="CA certificates (PEM); none = those of the system"
    )
    connect_timeout_s: float = Field(default=5.0, gt=0, description="Time to connect")
    answer_timeout_s: float = Field(default=300.0, gt=0, description="Time for an answer")

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        return check_server_urls((url,))[0]

    @field_validator("table")
    @classmethod
    def _is_a_template(cls, text: str) -> str:
        return check_without_columns(text)

    @field_validator("mode")
    @classmethod
    def _is_a_mode(cls, mode: WriteMode) -> WriteMode:
        if mode not in _MODES:
            raise ValueError(f"write {' or '.join(_MODES)}")
        return mode

    @field_validator("password_file")
    @classmethod
    def _has_a_user(cls, file: Path | None, info: ValidationInfo) -> Path | None:
        if file and not info.data.get("user"):
            raise ValueError("it is the password of a user: set user, too")
        return file


class Login:
    """The login for each connection; a new password needs no restart."""

    def __init__(self, options: ClickHouseOptions) -> None:
        """Raises SettingsError for files that cannot be read."""
        self._options = options
        self.headers()

    def headers(self) -> Mapping[str, str]:
        """Return the header of the login."""
        return basic_login(self._options.user, self._options.password_file)

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context."""
        return client_context(self._options.tls_ca)
