"""The API client of commands. Its errors say what to do."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel

from databus.conf.settings import ServerAccessSettings
from databus.daemon.http.client import FAILURES, HttpClient, Response
from databus.daemon.tokens import read_token
from databus.schemas.errors import (
    DatabusError,
    ForbiddenError,
    ServerError,
    SettingsError,
    UnauthorizedError,
)

TIMEOUT_S = 10.0
_MAX_BYTES = 64 << 20

Command = TypeVar("Command", bound=Callable[..., Any])
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A successful response: its JSON, and the server's clock in Unix seconds if it sends it."""

    value: Any
    clock_s: float | None


@dataclass(frozen=True, slots=True)
class ApiClient:
    """A client of one daemon; each request has a connection. Errors never contain the token."""

    url: str
    token: str = field(default="", repr=False)
    tls_ca: Path | None = None
    timeout_s: float = TIMEOUT_S

    def get_json(self, path: str) -> Any:
        """Return the JSON at a path; raises what `get` raises."""
        return self.get(path).value

    def get(self, path: str) -> ApiAnswer:
        """Return the response to a GET.

        Raises ServerError, after which a retry may help; UnauthorizedError or
        ForbiddenError, which need another token; SettingsError for a wrong URL.
        """
        return self._answer(path, None)

    def post_json(self, path: str, value: Any) -> Any:
        """Return the JSON that answers a POST of JSON; raises what `get` raises."""
        return self._answer(path, json.dumps(value).encode()).value

    def read(self, model: type[Model], value: Any) -> Model:
        """Return the JSON of an answer as a model; raise ServerError if it is not valid."""
        try:
            return model.model_validate(value)
        except ValueError as error:
            raise ServerError(self.url, f"its answer is not valid: {error}") from None

    def _answer(self, path: str, body: bytes | None) -> ApiAnswer:
        if not self.url.startswith(("http://", "https://")):
            raise SettingsError(f"{self.url}: a server's URL begins with http:// or https://")
        try:
            response = self._request(path, body)
        except FAILURES as error:
            raise ServerError(self.url, f"does not answer: {_reason(error)}") from None
        if not 200 <= response.status < 300:
            raise self._refusal(path, response)
        try:
            value = json.loads(response.body)
        except (ValueError, RecursionError) as error:
            problem = f"{path} is not JSON, so it is no databus: {error}"
            raise ServerError(self.url, problem) from None
        return ApiAnswer(value, _seconds(response.headers.get("date")))

    def headers(self) -> dict[str, str]:
        """Return the headers that carry the token."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context for a server at `https://`; raises SettingsError."""
        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"--tls-ca {self.tls_ca}: {error}") from None

    def _request(self, path: str, body: bytes | None) -> Response:
        client = HttpClient(
            self.url,
            self,
            connect_timeout_s=self.timeout_s,
            response_timeout_s=self.timeout_s,
            max_bytes=_MAX_BYTES,
            headers={"Connection": "close"},
        )
        with closing(client):
            return client.get(path) if body is None else client.post(path, body)

    def _refusal(self, path: str, response: Response) -> DatabusError:
        if response.status == UnauthorizedError.status:
            known = "the token is not known there" if self.token else "it asks for a token"
            return UnauthorizedError(f"{self.url}: {known}")
        try:
            problem = json.loads(response.body)["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            problem = response.reason
        if response.status == ForbiddenError.status:
            return ForbiddenError(f"{self.url}: {problem}")
        return ServerError(self.url, f"{path}: {response.status} {problem}")


def named_server(url: str, token_file: Path | None, tls_ca: Path | None) -> ApiClient:
    """Return a client with the options of `access_options`; raises SettingsError."""
    return ApiClient(url, read_token(ServerAccessSettings(token_file=token_file)), tls_ca)


def access_options(command: Command) -> Command:
    """Add the options `token_file` and `tls_ca` to a command that asks a server."""
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
