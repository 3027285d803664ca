"""Blocking HTTP to relays and bootstrap servers, for Spark's planner and tasks.

`ServerPool` asks one of several equivalent servers. If a server is unavailable it
asks the next one, and retries all of them for a while. A refusal is final only when
every server has refused.
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
from databus.daemon.http.client import FAILURES, HttpClient
from databus.daemon.tls import explain_tls
from databus.schemas.error_headers import read_error
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    InvalidParameterError,
    NoAnswerError,
    OtherLogError,
    SchemaError,
    ScnNotFoundError,
    ServerError,
    TableStoppedError,
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
    OtherLogError,
    ScnNotFoundError,
    SchemaError,
    TableStoppedError,
    UnknownCommandError,
    UnknownSourceError,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful response; header names are lower case."""

    server: str
    headers: Mapping[str, str]
    body: bytearray

    def json(self) -> Any:
        """Return the body's JSON; raises ServerError."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ServerError(self.server, f"the response is not JSON: {error}") from error


class Server:
    """One server, with a connection that is kept alive."""

    def __init__(self, url: str, access: ServerAccess | None = None) -> None:
        self.url = url
        self._client = HttpClient(
            url,
            access or ServerAccess(),
            connect_timeout_s=CONNECT_TIMEOUT_S,
            response_timeout_s=ANSWER_TIMEOUT_S,
            max_bytes=MAX_ANSWER_BYTES,
            takes_zstd=True,
            headers={
                "User-Agent": f"databus-spark/{__version__}",
                # One client id per process: the tasks of an executor run one after another in it.
                Header.CLIENT_ID: f"spark-{os.getpid()}",
            },
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def get(self, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        """Return the response to a GET; raises ServerError, or the server's refusal.

        `scn`: the SCN that is asked for, which the error states.
        """
        try:
            response = self._client.get(path, parameters)
        except FAILURES as error:
            raise ServerError(self.url, explain_tls(error) or f"{path}: {error!r}") from error
        refusal = read_error(self.url, scn, response.status, response.headers)
        if refusal is not None:
            raise refusal
        return Answer(self.url, response.headers, response.body)


class ServerPool:
    """Equivalent servers; the one that answered last is asked first."""

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
        """The servers' URLs, in the order in which they are asked."""
        return [server.url for server in self._servers]

    def prefer(self, url: str) -> None:
        """Ask this server first, if the pool has it."""
        self._servers.sort(key=lambda server: server.url != url)

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()

    def get(self, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        """Return the first server's response; retries until one answers.

        Raises the refusal if all servers refuse. Once the retry time is over, raises an
        error with each server's problem: NoAnswerError, or a refusal that the caller can
        act on (`_joined`).
        """
        back_off = BackOff(BackOffSettings(), Random())
        end = self._clock() + self._retry_s
        while True:
            problems: list[DatabusError] = []
            # A copy: `prefer` reorders the list.
            for server in tuple(self._servers):
                try:
                    answer = server.get(path, parameters, scn)
                except DatabusError as error:
                    problems.append(error)
                    continue
                self.prefer(server.url)
                return answer
            # Every server has refused, and for good: more tries would only delay the error.
            if all(map(is_final, problems)):
                # A server of another log says nothing of this one.
                own = [one for one in problems if not isinstance(one, OtherLogError)]
                raise (own or problems)[0]
            if self._clock() >= end:
                raise _joined(problems, path, self._retry_s)
            self._wait(back_off.next_s())

    def ask_others(self, path: str) -> list[Answer]:
        """Ask all servers but the first, once; return the successful responses."""
        answers = []
        for server in self._servers[1:]:
            with suppress(DatabusError):
                answers.append(server.get(path, {}))
        return answers

    def ask_each(self, path: str) -> list[tuple[str, Answer | DatabusError]]:
        """Ask every server, once; return the answers and errors by URL."""
        found: list[tuple[str, Answer | DatabusError]] = []
        for server in self._servers:
            try:
                found.append((server.url, server.get(path, {})))
            except DatabusError as error:
                found.append((server.url, error))
        return found

    def offered(self) -> dict[str, int]:
        """Return the ids of all sources that the servers have, by name."""
        answer = self.get("/sources", {Parameter.VERSION: "1"})
        return read_sources(answer.server, bytes(answer.body))

    def register(self, sources: Sequence[str]) -> dict[str, list[WriterSchema]]:
        """Return all versions of each source's schema.

        Raises UnknownSourceError too, and BootstrapTooOldError or ServerError for a source that a
        server cannot serve yet.
        """
        ids = self._find_ids(sources)
        names = {src_id: name for name, src_id in ids.items()}
        listed = ",".join(map(str, names))
        answer = self.get("/register", {Parameter.SOURCES: listed, Parameter.PROTOCOL_VERSION: "3"})
        found: dict[str, list[WriterSchema]] = {name: [] for name in sources}
        for schema in read_schemas(answer.server, bytes(answer.body)):
            if schema.src_id in names:
                name = names[schema.src_id]
                found[name].append(WriterSchema(name, schema.src_id, schema.version, schema.text))
        return found

    def _find_ids(self, sources: Sequence[str]) -> dict[str, int]:
        """Return the sources' ids.

        A bootstrap server that has just started does not list the sources of a store that it still
        checks. Asked for one by its name, it says so.
        """
        try:
            return find_ids(sources, self.offered())
        except UnknownSourceError as unknown:
            asked = {Parameter.SOURCES: str(unknown.source), Parameter.PROTOCOL_VERSION: "3"}
            problems: list[DatabusError] = []
            for server in tuple(self._servers):
                try:
                    server.get("/register", asked)
                except DatabusError as error:
                    problems.append(error)
                    continue
                # It knows the source: another server did not, or did not yet.
                self.prefer(server.url)
                return find_ids(sources, self.offered())
            for problem in problems:
                if isinstance(problem, BootstrapTooOldError | ServerError):
                    raise problem from unknown
            raise


def is_final(error: DatabusError) -> bool:
    """Return whether an error is final, so that asking this server again cannot help."""
    return isinstance(error, _FINAL)


def check_patience(server: str, scn: int, to_scn: int, waited_s: float, retry_s: float) -> None:
    """Raise NoAnswerError if a relay has not received planned windows within the retry time."""
    if waited_s > retry_s:
        raise NoAnswerError(
            server,
            f"has had nothing after scn {scn} for {waited_s:.0f} s, but a batch was planned up "
            f"to scn {to_scn}: is the relay behind, or was its ring created anew?",
        )


def _joined(problems: Sequence[DatabusError], path: str, retry_s: float) -> DatabusError:
    """Return the error when no server answered, with each server's problem.

    If a server was behind, or no longer has the place, its error class and its URL are used: the
    caller can act on that, while the other servers may stay unavailable.
    """
    text = f"none has answered {path} for {retry_s:g} s: {'; '.join(map(str, problems))}"
    for problem in problems:
        if isinstance(problem, BootstrapTooOldError | BootstrapTooYoungError):
            found = type(problem).answered("servers", text)
            found.server = problem.server
            return found
    return NoAnswerError("servers", text)
