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
from random import Random
from typing import Any

from databus import __version__
from databus.client.machines.backoff import BackOff
from databus.client.responses import read_schemas, read_sources
from databus.client.spark.arrow.row_types import WriterSchema
from databus.client.subscription import find_ids
from databus.conf.settings import BackOffSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.http_client import FAILURES, HttpClient
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
    """One server: its URL, and the connection to it, which is kept."""

    def __init__(self, url: str, access: ServerAccess | None = None) -> None:
        self.url = url
        self._client = HttpClient(
            url,
            access or ServerAccess(),
            connect_timeout_s=CONNECT_TIMEOUT_S,
            response_timeout_s=ANSWER_TIMEOUT_S,
            max_bytes=MAX_ANSWER_BYTES,
            headers={
                "User-Agent": f"databus-spark/{__version__}",
                # One for each process: an executor's tasks take turns in it.
                Header.CLIENT_ID: f"spark-{os.getpid()}",
            },
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def get(self, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        """Ask; raises ServerError, or the server's refusal. `scn` is the one asked for."""
        try:
            response = self._client.get(path, parameters)
        except FAILURES as error:
            raise ServerError(self.url, explain_tls(error) or f"{path}: {error!r}") from error
        refusal = read_error(self.url, scn, response.status, response.headers)
        if refusal is not None:
            raise refusal
        return Answer(self.url, response.headers, response.body)


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
