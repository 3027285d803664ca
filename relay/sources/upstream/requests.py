"""The requests to another relay, over one connection. Thin: the answers are read in `answers.py`.

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
from databus.daemon.http.client import FAILURES, HttpClient, Response, printable
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


class Upstream:
    """One relay that is read. `scn` is named in errors: that of the newest window here."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        self.name, self.url, self.scn = settings.name, url_of(settings.uri), -1
        access = ServerAccessSettings(
            token_file=settings.upstream_token_file, tls_ca=settings.upstream_tls_ca
        )
        self._client = HttpClient(
            self.url,
            ServerAccess(access),
            connect_timeout_s=_CONNECT_S,
            response_timeout_s=_SILENT_S,
            max_bytes=_MOST_BYTES,
            headers={Header.CLIENT_ID: f"relay-{self.name}-{socket.gethostname()}"},
            takes_zstd=True,
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

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

    def stream(self, parameters: Mapping[str, str]) -> StreamAnswer:
        """Return an answer to `/stream`; raises SourceError."""
        response = self._ask("/stream", parameters)
        try:
            return read_stream(bytes(response.body), response.headers)
        except ValueError as error:
            raise self.unavailable(f"a header of /stream is malformed: {error}") from error

    def unavailable(self, problem: str) -> SourceUnavailableError:
        """Return the error of a relay that may be read later."""
        return SourceUnavailableError(f"{self.name}: relay {self.url}: {problem}")

    def refused(self, problem: str) -> ServerRefusedError:
        """Return the error of a relay from which capture cannot go on."""
        return ServerRefusedError(self.name, self.scn, f"relay {self.url}: {problem}")

    def _ask(self, path: str, parameters: Mapping[str, str]) -> Response:
        try:
            response = self._client.get(path, parameters)
        except FAILURES as error:
            raise self.unavailable(f"does not answer: {printable(error)}") from error
        except DatabusError as error:
            raise self.unavailable(str(error)) from error
        told = read_error(self.url, self.scn, response.status, response.headers)
        if told is not None:
            self._client.close()
            raise self._seen(told) from told
        return response

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
