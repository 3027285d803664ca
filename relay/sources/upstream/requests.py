"""The requests to another relay. Thin: the answers are read in `answers.py`.

Windows come over one connection, and all else over another: an answer with windows goes on while
schemas are asked for that those windows have.

What fails is told as capture takes it: a relay that does not answer, or is in trouble, is asked
again; one that does not have what is needed is refused, and the next of the list is asked.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

from databus.conf.settings import PhysicalSourceSettings, ServerAccessSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.http.client import (
    FAILURES,
    HttpClient,
    OpenResponse,
    Response,
    printable,
)
from databus.daemon.tls import explain_tls
from databus.relay.sources.epochs import ServerRefusedError
from databus.relay.sources.upstream.answers import StreamAnswer, read_stream
from databus.schemas.error_headers import read_error
from databus.schemas.errors import (
    DatabusError,
    OtherLogError,
    ScnNotFoundError,
    SettingsError,
    SourceError,
    SourceStoppedError,
    SourceUnavailableError,
    TableStoppedError,
    UnknownSourceError,
)
from databus.schemas.protocol import Header

_CONNECT_S = 2.0
_SILENT_S = 4.0  # less than a relay has time to stop
_MOST_BYTES = 2 << 30
_PREFIX = "databus+"
_URL = re.compile(r"https?://[^/@\s]+(/\S*)?")
_NOTHING: Mapping[str, str] = MappingProxyType({})

Answer = TypeVar("Answer")


def url_of(uri: str) -> str:
    """Return the URL in a source's URI; raises SettingsError."""
    url = uri.removeprefix(_PREFIX)
    if not _URL.fullmatch(url):
        raise SettingsError(f"uri = {uri!r}: must be like databus+http://relay-a:11115")
    return url.rstrip("/")


def _silent_s(settings: PhysicalSourceSettings) -> float:
    """Return for how long an answer is waited for: a relay that stands by must soon take over."""
    if settings.capture_lease_s is None:
        return _SILENT_S
    return min(_SILENT_S, max(1.0, settings.capture_lease_s / 4))


class Upstream:
    """One relay that is read. `scn` is named in errors: that of the newest window here."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        self.name, self.url, self.scn = settings.name, url_of(settings.uri), -1
        access = ServerAccessSettings(
            token_file=settings.upstream_token_file, tls_ca=settings.upstream_tls_ca
        )
        self._client, self._windows = (
            HttpClient(
                self.url,
                ServerAccess(access),
                connect_timeout_s=min(_CONNECT_S, _silent_s(settings)),
                response_timeout_s=_silent_s(settings),
                max_bytes=_MOST_BYTES,
                headers={Header.CLIENT_ID: f"relay-{self.name}-{socket.gethostname()}"},
                takes_zstd=True,
            )
            for _ in range(2)
        )
        self._followed: OpenResponse | None = None

    def close(self) -> None:
        """Close the connections."""
        self._followed = None
        self._client.close()
        self._windows.close()

    def path(self, rest: str = "") -> str:
        """Return the path of the physical source in the API."""
        return f"/api/v1/physicalSources/{quote(self.name)}{rest}"

    def get(
        self, path: str, read: Callable[[Any], Answer], parameters: Mapping[str, str] = _NOTHING
    ) -> Answer:
        """Return what `read` makes of an answer of JSON; raises SourceError."""
        response = self._ask(path, parameters)
        try:
            return read(json.loads(response.body))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.unavailable(f"its answer to {path} is not understood: {error!r}") from error

    @property
    def is_followed(self) -> bool:
        """Whether the last answer to `/stream` goes on, with windows as they come."""
        return self._followed is not None

    def stream(self, parameters: Mapping[str, str]) -> StreamAnswer:
        """Return an answer to `/stream`, or the begin of one that goes on; raises SourceError."""
        self._followed = None
        opened = self._asked(lambda: self._windows.open("/stream", parameters))
        self._check(opened.status, opened.headers)
        if opened.is_chunked and Header.RESUME not in opened.headers:
            self._followed = opened
            return StreamAnswer(self.next_part(), None, None, False)
        response = self._asked(opened.read)
        self._check(response.status, response.headers)
        try:
            return read_stream(bytes(response.body), response.headers)
        except ValueError as error:
            raise self.unavailable(f"a header of /stream is malformed: {error}") from error

    def next_part(self) -> bytes:
        """Return the next windows of an answer that goes on; none at its end."""
        followed = self._followed
        body = b"" if followed is None else bytes(self._asked(followed.next_part))
        if not body:
            self._followed = None
        return body

    def unavailable(self, problem: str) -> SourceUnavailableError:
        """Return the error of a relay that may be read later."""
        return SourceUnavailableError(f"{self.name}: relay {self.url}: {problem}")

    def refused(self, problem: str) -> ServerRefusedError:
        """Return the error of a relay from which capture cannot go on."""
        return ServerRefusedError(self.name, self.scn, f"relay {self.url}: {problem}")

    def _ask(self, path: str, parameters: Mapping[str, str]) -> Response:
        response = self._asked(lambda: self._client.get(path, parameters))
        self._check(response.status, response.headers)
        return response

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except FAILURES as error:
            self.close()
            told = explain_tls(error, "upstream_tls_ca") or f"does not answer: {printable(error)}"
            raise self.unavailable(told) from error
        except DatabusError as error:
            self.close()
            raise self.unavailable(str(error)) from error

    def _check(self, status: int, headers: Mapping[str, str]) -> None:
        told = read_error(self.url, self.scn, status, headers)
        if told is not None:
            self.close()
            raise self._seen(told) from told

    def _seen(self, error: DatabusError) -> SourceError:
        """Return an error of the other relay as capture takes it."""
        if isinstance(error, TableStoppedError) and error.source:
            # The windows after that are without its rows, for consumers here as well as there.
            text = f"relay {self.url}: {error}"
            return SourceStoppedError(self.name, self.scn, text, tables=(error.source,))
        if isinstance(error, ScnNotFoundError):
            return self.refused(
                f"it no longer has what follows here: {error}. Give this relay another one in "
                "`uri` that has it. Or begin anew, and let consumers that are behind bootstrap: "
                f'POST /api/v1/physicalSources/{self.name}/restart {{"at": "earliest"}}'
            )
        if isinstance(error, OtherLogError | UnknownSourceError):
            return self.refused(f"it is another source: {error}. To follow it, use a new data_dir")
        return self.unavailable(str(error))
