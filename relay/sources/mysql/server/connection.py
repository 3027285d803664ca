"""Connections to a MySQL or MariaDB server: address, password, TLS, and driver errors.

The driver's errors become SourceUnavailableError (retry) or SourceStoppedError (an
operator must act). Neither ever contains a password.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.log_setup import hide
from databus.relay.sources.mysql.server.checks import GRANT_HINT
from databus.schemas.errors import SettingsError, SourceStoppedError, SourceUnavailableError

DEFAULT_PORT = 3306
CONNECT_TIMEOUT_S = 10.0
# Longest wait for the response to a control query.
QUERY_TIMEOUT_S = 30.0

# Server errors that a retry cannot fix: access denied (1044, 1045, 1142,
# 1227, 1698), a password that must be changed (1820, 1862), a locked account
# (3118, 4151), TLS demanded (3159).
_NEEDS_SOMEBODY = frozenset({1044, 1045, 1142, 1227, 1698, 1820, 1862, 3118, 3159, 4151})
_CONNECTING = "connecting to"
_LOGIN = (
    "; check the user in uri, password_file or password_env, and set tls_ca if the server wants TLS"
)
# A refused login is retried: accounts, passwords and `password_file` are changed one after
# the other, and capture resumes by itself once they agree.
_LOGIN_ERRORS = frozenset({1045, 1698, 1862, 3118, 4151})
_HINTS = {
    **dict.fromkeys((1044, 1045, 1142, 1227), f"; {GRANT_HINT}"),
    3159: "; set tls_ca",
}


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """The host, port and user of a server."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def address_of(settings: PhysicalSourceSettings) -> MysqlAddress:
    """Return the address in the settings; raises SettingsError."""
    parts = urlsplit(settings.uri)
    key = f"physical source {settings.name}: uri"
    if parts.scheme != "mysql":
        raise SettingsError(f"{key}: must begin with mysql://")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None
    if not parts.hostname or not parts.username or parts.path.strip("/") or parts.query:
        raise SettingsError(f"{key} = {settings.uri!r}: write mysql://user@host:port")
    return MysqlAddress(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username),
        password=hide(_password(settings)),
        tls=_tls_context(settings),
    )


def connect(address: MysqlAddress, *, source: str, scn: int = 0, **options: Any) -> Connection[Any]:
    """Open a connection in autocommit mode; `options` go to the driver.

    `source` and `scn` are for the text of the errors.
    """
    with driver_errors(source, scn, f"{_CONNECTING} {address}"):
        return pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            # As bytes, because the driver encodes text as latin1.
            password=address.password.encode(),
            ssl=address.tls,
            # Otherwise the driver would use TLS without verification when the server offers it.
            ssl_disabled=address.tls is None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=int(CONNECT_TIMEOUT_S),
            **{"read_timeout": QUERY_TIMEOUT_S, "write_timeout": QUERY_TIMEOUT_S, **options},
        )


@contextlib.contextmanager
def driver_errors(source: str, scn: int, doing: str) -> Iterator[None]:
    """Translate errors of the driver and the socket to SourceError."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise SourceStoppedError(
            source, scn, f"{doing}: {error.verify_message}; check tls_ca and the host's name"
        ) from error
    except pymysql.err.MySQLError as error:
        raise _our_error(source, scn, doing, error) from error
    except (OSError, EOFError) as error:
        raise SourceUnavailableError(f"source {source}: {doing}: {error}") from error


def _our_error(
    source: str, scn: int, doing: str, error: pymysql.err.MySQLError
) -> SourceStoppedError | SourceUnavailableError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    original = getattr(error, "original_exception", None) or error.__context__
    if code in _LOGIN_ERRORS and doing.startswith(_CONNECTING):
        problem = f"{doing}: {text} (server error {code}){_LOGIN}"
        return SourceUnavailableError(f"source {source}: {problem}")
    if code in _NEEDS_SOMEBODY:
        hint = _HINTS.get(code, "")
        return SourceStoppedError(source, scn, f"{doing}: {text} (server error {code}){hint}")
    if isinstance(original, ssl.SSLCertVerificationError):
        problem = f"{doing}: {original.verify_message}; check tls_ca and the host's name"
        return SourceStoppedError(source, scn, problem)
    if "SSL is required but the server" in text:
        problem = f"{doing}: tls_ca is set, and the server does not offer TLS"
        return SourceStoppedError(source, scn, problem)
    return SourceUnavailableError(f"source {source}: {doing}: {text} (error {code})")


def _password(settings: PhysicalSourceSettings) -> str:
    where = f"physical source {settings.name}"
    if settings.password_file is not None:
        try:
            text = settings.password_file.read_text(encoding="utf-8")
        except OSError as error:
            problem = f"{where}: password_file {settings.password_file}: {error.strerror}"
            raise SettingsError(problem) from error
        return text.splitlines()[0] if text else ""
    if settings.password_env is not None:
        password = os.environ.get(settings.password_env)
        if password is None:
            raise SettingsError(f"{where}: password_env {settings.password_env} is not set")
        return password
    return ""


def _tls_context(settings: PhysicalSourceSettings) -> ssl.SSLContext | None:
    if settings.tls_ca is None:
        if settings.tls_cert is not None or settings.tls_key is not None:
            name = settings.name
            raise SettingsError(f"physical source {name}: tls_cert and tls_key need tls_ca")
        return None
    try:
        context = ssl.create_default_context(cafile=str(settings.tls_ca))
        if settings.tls_cert is not None:
            context.load_cert_chain(str(settings.tls_cert), settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"physical source {settings.name}: tls_ca, tls_cert or tls_key: {error}"
        ) from error
    return context
