"""Asking a daemon for its JSON, from a command: one question, one answer, or what to do.

For people's commands, not for clients: each question is a connection of its
own. No proxy and no redirection is followed, so that a token goes to the
server that was named and to nobody else.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from databus.conf.settings import ServerAccessSettings
from databus.daemon.tokens import read_token
from databus.schemas.errors import (
    DatabusError,
    ForbiddenError,
    ServerError,
    SettingsError,
    UnauthorizedError,
)

TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Asked:
    """A good answer: its JSON, and the server's clock, in Unix seconds, when it says it."""

    value: Any
    clock_s: float | None


@dataclass(frozen=True, slots=True)
class Server:
    """A daemon, and how it is spoken to. Errors never hold the token."""

    url: str
    token: str = field(default="", repr=False)
    tls_ca: Path | None = None
    timeout_s: float = TIMEOUT_S

    def get(self, path: str) -> Any:
        """Return the JSON that a path answers; raises ServerError."""
        return self.ask(path).value

    def ask(self, path: str) -> Asked:
        """Ask for a path.

        Raises ServerError, for which it may be asked again; UnauthorizedError or
        ForbiddenError, for which another token is needed; SettingsError for a wrong URL.
        """
        request = urllib.request.Request(self._place(path))
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with self._opener().open(request, timeout=self.timeout_s) as answer:
                body, date = answer.read(_MOST_BYTES), answer.headers.get("Date")
            return Asked(json.loads(body), _seconds(date))
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(path, error) from None
        except urllib.error.URLError as error:
            raise ServerError(self.url, f"does not answer: {_reason(error.reason)}") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(self.url, f"does not answer: {_reason(error)}") from None
        except (ValueError, RecursionError) as error:
            raise ServerError(
                self.url, f"{path} is not JSON, so it is no databus: {error}"
            ) from None

    def _place(self, path: str) -> str:
        if not self.url.startswith(("http://", "https://")):
            raise SettingsError(f"{self.url}: a server's URL begins with http:// or https://")
        return self.url.rstrip("/") + path

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> DatabusError:
        if error.code == UnauthorizedError.status:
            known = "the token is not known there" if self.token else "it asks for a token"
            return UnauthorizedError(f"{self.url}: {known}")
        try:
            said = json.loads(error.read(1 << 16))["message"]
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
            said = error.reason
        if error.code == ForbiddenError.status:
            return ForbiddenError(f"{self.url}: {said}")
        return ServerError(self.url, f"{path}: {error.code} {said}")

    def _opener(self) -> urllib.request.OpenerDirector:
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=self._tls_context()),
            _NoRedirection(),
        )

    def _tls_context(self) -> ssl.SSLContext | None:
        if self.tls_ca is None:
            return None
        try:
            return ssl.create_default_context(cafile=str(self.tls_ca))
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"--tls-ca {self.tls_ca}: {error}") from None


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nobody."""


def named_server(url: str, token_file: Path | None, tls_ca: Path | None) -> Server:
    """Return the server that the options of `access_options` describe; raises SettingsError."""
    return Server(url, read_token(ServerAccessSettings(token_file=token_file)), tls_ca)


def access_options(command: Command) -> Command:
    """Add the options of commands that ask a server: `token_file`, `tls_ca`."""
    for option in (
        click.option(
            "--tls-ca",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="CA file that the server's certificate is checked against.",
        ),
        click.option(
            "--token-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File with the token, where the server asks for one.",
        ),
    ):
        command = option(command)
    return command


def _reason(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"{reason.verify_message}; check --tls-ca and the host's name"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__


def _seconds(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
