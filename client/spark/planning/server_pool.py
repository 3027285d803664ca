"""HTTP to relays and bootstrap servers from code that waits: Spark's planner and its tasks.

`ServerPool` asks one of several servers that can all answer. A server that is
away gives way to the next one, and all are tried again for a while; what a
server refuses is final only when every server has refused it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from random import Random
from typing import Any
from urllib.parse import urlencode, urlsplit

from databus import __version__
from databus.client.machines.backoff import BackOff
from databus.client.responses import read_schemas, read_sources
from databus.client.spark.arrow.row_types import WriterSchema
from databus.client.subscription import find_ids
from databus.conf.settings import BackOffSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.tls import explain_tls
from databus.schemas.error_headers import read_error
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    InvalidParameterError,
    NoAnswerError,
    SchemaError,
    ScnNotFoundError,
    ServerError,
    UnauthorizedError,
    UnknownCommandError,
    UnknownSourceError,
)
from databus.schemas.protocol import Header, Parameter

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 60.0
MAX_ANSWER_BYTES = 256 << 20

# A refusal that asking the same server again at once does not change.
_FINAL = (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    InvalidParameterError,
    ScnNotFoundError,
    SchemaError,
    UnknownCommandError,
    UnknownSourceError,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer; header names are lower case."""

    server: str
    headers: Mapping[str, str]
    body: bytearray

    def json(self) -> Any:
        """Return the body's JSON; raises ServerError."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ServerError(self.server, f"an answer that is no JSON: {error}") from error


class Server:
    """One server and the connection to it, which is kept."""

    def __init__(self, url: str, access: ServerAccess | None = None) -> None:
        self.url = url
        self._access = access or ServerAccess()
        self._shown: Mapping[str, str] = {}  # on this connection
        self._connection: HTTPConnection | None = None

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        """Ask; raises ServerError, or what the server says it is. `scn` is the one asked for."""
        was_kept = self._connection is not None
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        while True:
            try:
                status, headers, body = self._ask(target)
            except (OSError, HTTPException, ValueError) as error:
                self.close()
                if was_kept and isinstance(error, ConnectionError | HTTPException):
                    was_kept = False  # it was idle, and the server closed it just now
                    continue
                raise ServerError(self.url, explain_tls(error) or f"{path}: {error!r}") from error
            break
        if status == UnauthorizedError.status:
            self.close()  # the next connection shows the token that is there by then
        error_said = read_error(self.url, scn, status, headers)
        if error_said is not None:
            raise error_said
        return Answer(self.url, headers, body)

    def _ask(self, target: str) -> tuple[int, dict[str, str], bytearray]:
        connection = self._connection = self._connection or self._connect()
        # One for each process: an executor's tasks take turns in it.
        agent = {
            "User-Agent": f"databus-spark/{__version__}",
            Header.CLIENT_ID: f"spark-{os.getpid()}",
        }
        connection.request("GET", target, headers={**agent, **self._shown})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        length = int(headers.get("content-length", -1))
        if length > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        if length < 0:
            return response.status, headers, bytearray(response.read(MAX_ANSWER_BYTES))
        body = bytearray(length)
        view = memoryview(body)
        while view and (count := response.readinto(view)):
            view = view[count:]
        if view:
            raise ConnectionError(f"the answer ends {len(view)} bytes before its end")
        response.read()
        return response.status, headers, body

    def _connect(self) -> HTTPConnection:
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("is not a URL like http://host:port")
        self._shown = self._access.headers()
        if url.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(
                url.hostname, url.port, timeout=CONNECT_TIMEOUT_S, context=self._access.tls()
            )
        else:
            connection = HTTPConnection(url.hostname, url.port, timeout=CONNECT_TIMEOUT_S)
        connection.connect()
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        return connection


class ServerPool:
    """Servers that can all answer; the one that answered last is asked first."""

    def __init__(
        self,
        urls: Sequence[str],
        retry_s: float,
        access: ServerAccess | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if access is not None:
            access.check()
        self._servers = [Server(url, access) for url in urls]
        self._retry_s = retry_s
        self._clock = clock
        self._wait = wait

    @property
    def urls(self) -> list[str]:
        """The servers, that asked first in front."""
        return [server.url for server in self._servers]

    def prefer(self, url: str) -> None:
        """Ask this one first, if it is among them."""
        self._servers.sort(key=lambda server: server.url != url)

    def close(self) -> None:
        """Let go of all connections."""
        for server in self._servers:
            server.close()

    def get(self, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        """Ask until one answers.

        Raises what the servers refused it with when all did; after the time for
        trying again an error with what was wrong with each: NoAnswerError, or a
        refusal that the caller can act on (`_joined`).
        """
        back_off = BackOff(BackOffSettings(), Random())
        end = self._clock() + self._retry_s
        while True:
            problems: list[DatabusError] = []
            for server in tuple(self._servers):
                try:
                    answer = server.get(path, parameters, scn)
                except DatabusError as error:
                    problems.append(error)
                    continue
                self.prefer(server.url)
                return answer
            if all(map(is_final, problems)):
                raise problems[0]
            if self._clock() >= end:
                raise _joined(problems, path, self._retry_s)
            self._wait(back_off.next_s())

    def ask_others(self, path: str) -> list[Answer]:
        """Ask all but the first, once; return the answers of those that have one."""
        answers = []
        for server in self._servers[1:]:
            with suppress(DatabusError):
                answers.append(server.get(path, {}))
        return answers

    def register(self, sources: Sequence[str]) -> dict[str, list[WriterSchema]]:
        """Return all versions of each source's schema; raises UnknownSourceError too."""
        answer = self.get("/sources", {Parameter.VERSION: "1"})
        ids = find_ids(sources, read_sources(answer.server, bytes(answer.body)))
        names = {src_id: name for name, src_id in ids.items()}
        listed = ",".join(map(str, names))
        answer = self.get("/register", {Parameter.SOURCES: listed, Parameter.PROTOCOL_VERSION: "3"})
        found: dict[str, list[WriterSchema]] = {name: [] for name in sources}
        for schema in read_schemas(answer.server, bytes(answer.body)):
            if schema.src_id in names:
                name = names[schema.src_id]
                found[name].append(WriterSchema(name, schema.src_id, schema.version, schema.text))
        return found


def is_final(error: DatabusError) -> bool:
    """Say whether asking this server again cannot help."""
    return isinstance(error, _FINAL)


def _joined(problems: Sequence[DatabusError], path: str, retry_s: float) -> DatabusError:
    """Return the error of servers none of which answered, with what was wrong with each.

    Where one of them said that it is behind, or that it has forgotten, that is what the caller
    can act on: the others may be away for long.
    """
    text = f"none has answered {path} for {retry_s:g} s: {'; '.join(map(str, problems))}"
    for problem in problems:
        if isinstance(problem, BootstrapTooOldError | BootstrapTooYoungError):
            return type(problem).answered("servers", text)
    return NoAnswerError("servers", text)
