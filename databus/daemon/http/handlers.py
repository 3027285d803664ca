"""The base of all HTTP handlers of the daemons: errors, bounded work, bounded sending.

A client may send anything, stop reading, or never finish a request. None of it costs more than a
fixed amount of memory, or disturbs another connection. `server` limits the number of
connections.

Contents: `ApiHandler` (one way to send a body, one way to answer an error), `CommandHandler` (GET
and POST are the same), `UnknownCommandHandler`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from databus.conf.settings import HttpSettings
from databus.daemon.access import Access, ReadLimit, Role, check_permission
from databus.daemon.fair_queue import FairQueue
from databus.daemon.http.at_once import CHUNK_END, AtOnce
from databus.daemon.http.requests import (
    SERVER,
    accepts_gzip,
    access_headers_of,
    event_parameters_of,
    is_own_client,
    parameters_of,
    versions_sent_on,
)
from databus.daemon.http.sending import FilePart, Sender, send_at_once
from databus.daemon.log_setup import about
from databus.schemas.error_headers import error_headers, wire_names
from databus.schemas.errors import (
    DatabusError,
    InvalidParameterError,
    RequestError,
    TooSlowError,
    UnauthorizedError,
    UnknownCommandError,
)

log = logging.getLogger(__name__)

FIRST_BYTES = 64 << 10  # copied behind the headers, and sent in any turn of the loop
GZIP_MIN_BYTES = 1024

Answer = TypeVar("Answer")


class ApiHandler(RequestHandler):
    """The base of every handler: sends bodies with flow control, and errors in one form."""

    limits: HttpSettings
    # Answers without a handler what needs no waiting.
    at_once: AtOnce | None = None
    # Whether bodies are sent in chunks, without a Content-Length.
    sends_chunks = False
    _worked_s = 0.0
    _work: asyncio.Timeout | None = None
    _allowed: tuple[str, ...] = ()
    # Whether it answers a token that is for certain sources, about those alone.
    is_by_source = False

    def initialize(self, limits: HttpSettings) -> None:
        """Set the limits; called by tornado with the route's arguments."""
        self.limits = limits
        self._sender = Sender(self.request.connection, self.fair_queue, limits.idle_connection_s)

    def set_default_headers(self) -> None:
        """Name the server without its components."""
        self.set_header("Server", SERVER)

    def compute_etag(self) -> None:
        """Make no ETag: hashing every body costs more than sending it."""

    def parameters(self) -> dict[str, str]:
        """Return the parameters of query string and form body, the last of each name.

        Raises InvalidParameterError.
        """
        return parameters_of(self.request, self.limits)

    async def send_json(self, value: Any, status: int = 200) -> None:
        """Answer with a JSON document and a newline, for curl on a terminal."""
        self.set_status(status)
        body = json.dumps(value) + "\n"
        await self.send(body.encode(), "application/json; charset=UTF-8")

    @property
    def access(self) -> Access:
        """The tokens of this server."""
        found: Access = self.application.settings["access"]
        return found

    @property
    def fair_queue(self) -> FairQueue:
        """The fair queue in which this server's requests share its loop."""
        found: FairQueue = self.application.settings["fair_queue"]
        return found

    def role(self) -> Role:
        """Return the role of the requester."""
        return self.access.role_of(self.request.headers.get("Authorization"))

    def read_limit(self) -> ReadLimit | None:
        """Return the sources that the requester may read; None if that is everything."""
        return self.access.limit_of(self.request.headers.get("Authorization"))

    def role_needed(self) -> Role:
        """Return the role that this request needs; its method is one of `allowed_methods`."""
        return Role.READER

    def allowed_methods(self) -> tuple[str, ...]:
        """Return the methods of this path. Admin commands are accepted as POST only."""
        return tuple(
            method
            for method in ("GET", "POST")
            if getattr(type(self), method.lower()) is not getattr(RequestHandler, method.lower())
        )

    def prepare(self) -> None:
        """Refuse requests that are not permitted, before any work is done for them."""
        # A client may pipeline many requests. Tornado dispatches each of them even if the
        # connection is closed.
        if self._sender.is_gone:
            raise StreamClosedError
        self._be_counted()
        self._check_method()
        check_permission(
            access_headers_of(self.request), self.role_needed(), self.access, self.limits
        )
        if self.role_needed() is not Role.NOBODY and not self.is_by_source:
            self._check_unlimited()

    def _check_unlimited(self) -> None:
        limit = self.read_limit()
        if limit is not None:
            raise limit.refuse(self.request.path)

    async def _execute(self, *arguments: Any, **named: Any) -> None:
        """Answer; end silently if the service ends first and cancels the request."""
        with contextlib.suppress(asyncio.CancelledError):
            await super()._execute(*arguments, **named)

    def _be_counted(self) -> None:
        """Add this request to those that the end of the service waits for."""
        requests: set[asyncio.Task[Any]] = self.application.settings["requests"]
        task = asyncio.current_task()
        if task is not None:
            requests.add(task)
            task.add_done_callback(requests.discard)

    def on_connection_close(self) -> None:
        """End the work of a request whose connection is closed."""
        if self._work is not None and not self._work.expired():
            self._work.reschedule(asyncio.get_running_loop().time())

    def may(self, role: Role) -> bool:
        """Return whether this request would be answered if a role were needed."""
        try:
            check_permission(access_headers_of(self.request), role, self.access, self.limits)
            self._check_unlimited()
        except RequestError:
            return False
        return True

    def _check_method(self) -> None:
        method, allowed = self.request.method, self.allowed_methods()
        if method in allowed and self.role_needed() is Role.ADMIN:
            allowed = ("POST",)  # a link or a picture in a page cannot send one
        if method not in allowed:
            self._allowed = allowed
            raise HTTPError(405)

    async def in_time(self, work: Awaitable[Answer]) -> Answer:
        """Await a part of the request's work; raises TooSlowError.

        All parts together may take `max_answer_s`. What holds a long-poll is no part.
        When the client goes, so does the work: raises StreamClosedError.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        limit = self._work = asyncio.timeout(self.limits.max_answer_s - self._worked_s)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            if self._sender.is_gone:
                raise StreamClosedError from None
            raise TooSlowError(self.limits.max_answer_s) from None
        finally:
            self._work = None
            self._worked_s += loop.time() - began

    async def send(self, body: bytes, content_type: str) -> None:
        """Answer with a body, at the pace the client reads.

        A client that takes not one slice in `idle_connection_s` is dropped.
        """
        await self.send_parts((body,), content_type)

    async def send_parts(self, parts: Sequence[bytes], content_type: str) -> None:
        """Answer with a body whose parts are never joined: a page may be large."""
        self.set_header("Content-Type", content_type)
        size_bytes = sum(map(len, parts))
        if size_bytes >= GZIP_MIN_BYTES and accepts_gzip(
            self.request.headers.get("Accept-Encoding", "")
        ):
            loop = asyncio.get_running_loop()
            packing = loop.run_in_executor(None, _compress, b"".join(parts))
            parts = (await self.in_time(packing),)
            size_bytes = len(parts[0])
            self.set_header("Content-Encoding", "gzip")
        # Looked at before each write: the exception that writing raises otherwise is
        # kept by tornado, and with it the body, until the garbage collector comes.
        if self._sender.is_gone:
            return
        if size_bytes <= FIRST_BYTES:
            await self._sender.within_idle_time(self._finish_with(b"".join(parts)))
            return
        await self._send_framed(parts, size_bytes)

    async def send_file(self, part: FilePart, content_type: str) -> None:
        """Answer with a part of a file, as it is, at the pace the client reads."""
        self.set_header("Content-Type", content_type)
        await self._send_framed((part,), part.size_bytes)

    async def _send_framed(self, parts: Iterable[bytes | FilePart], size_bytes: int) -> None:
        begin, end = self._frame(size_bytes)
        await self._sender.send(chain((begin,), parts, (end,)))
        if not self._sender.is_gone:
            await self._sender.within_idle_time(self.finish())

    async def send_part(self, part: bytes, content_type: str) -> None:
        """Send a part of a body that goes on, at once: to HTTP/1.1 clients, as a chunk."""
        if self._sender.is_gone:
            return
        connection: Any = self.request.connection
        begin, end = b"%x\r\n" % len(part), b"\r\n"
        if not self._headers_written:
            self.set_header("Content-Type", content_type)
            self.set_header("X-Accel-Buffering", "no")  # else nginx keeps the parts back
            begin = self._frame(len(part))[0]
            # A part is not held back until the client has confirmed the last one.
            connection.stream.set_nodelay(True)
        if len(part) <= FIRST_BYTES:
            await self._sender.within_idle_time(connection.stream.write(begin + part + end))
        else:
            await self._sender.send((begin, part, end))

    def send_part_at_once(
        self, part: bytes, encode: Callable[[bytes], bytes] | None = None
    ) -> bool:
        """Send a small part, not the first one, without waiting; else return False, nothing sent.

        `encode` is called once it is known that the part can be sent.
        What the socket does not take is kept, and no other part is sent this way until it is gone.
        """
        stream: Any = self.request.connection.stream  # type: ignore[union-attr]
        if len(part) > FIRST_BYTES or self._sender.is_gone or stream.writing():
            return False
        part = part if encode is None else encode(part)
        frame = memoryview(b"%x\r\n%b\r\n" % (len(part), part))
        sent_bytes = send_at_once(stream, [frame])
        if sent_bytes < len(frame):
            stream.write(frame[sent_bytes:])
        return True

    async def end_parts(self) -> None:
        """End the body that `send_part` began."""
        if not self._sender.is_gone:
            await self._sender.within_idle_time(self.finish(b"0\r\n\r\n"))

    def _is_sent_in_chunks(self) -> bool:
        return self.sends_chunks and self.request.version == "HTTP/1.1"

    def _finish_with(self, body: bytes) -> asyncio.Future[None]:
        """Send headers and a small body, all in one packet.

        An empty body has a Content-Length in any case.
        """
        if not body or self.request.method == "HEAD":
            return self.finish(body)
        begin, end = self._frame(len(body))
        return self.finish(begin + body + end)

    def _frame(self, size_bytes: int) -> tuple[bytes, bytes]:
        """Return what goes before and after a body: the headers, and the frame of one chunk.

        tornado sends no headers of its own after this. It would send the end of a chunk, and the
        end of the body, in packets of their own, for which the client would wake up again.
        """
        self._headers_written = True
        asked = self.request.headers.get("Connection", "").lower()
        if self.request.version == "HTTP/1.1" and asked == "close":
            self.set_header("Connection", "close")
        elif self.request.version == "HTTP/1.0" and asked == "keep-alive":
            self.set_header("Connection", "Keep-Alive")
        if self._is_sent_in_chunks():
            self.set_header("Transfer-Encoding", "chunked")
            return self._head() + b"%x\r\n" % size_bytes, CHUNK_END
        self.set_header("Content-Length", str(size_bytes))
        return self._head(), b""

    def _head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.get_status()} {self._reason}"]
        lines += [f"{name}: {value}" for name, value in self._headers.get_all()]
        return "\r\n".join((*lines, "", "")).encode("latin-1")

    def drop_connection(self) -> None:
        """Close the connection without another byte."""
        self._sender.drop()

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log what is our fault; a peer's mistake or departure is not."""
        if isinstance(value, StreamClosedError):
            return
        if isinstance(value, (DatabusError, HTTPError)):
            log.info(
                "%s %s: %s", self.request.method, self.request.path, value, extra=self._about()
            )
            return
        log.error(
            "%s %s failed",
            self.request.method,
            self.request.path,
            exc_info=(typ, value, tb),
            extra=self._about(),
        )

    def _about(self) -> dict[str, Any]:
        return about(client=self.request.remote_ip)

    def error_for_caller(self, error: DatabusError) -> DatabusError:
        """Return the error that is named in the answer; its status is the one that was raised."""
        return error

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error as Databus' clients expect it: names in headers, JSON body."""
        raised = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        command = self.request.path
        advice = f"it is one by {' and '.join(self._allowed)}" if self._allowed else ""
        if advice:
            command = f"{self.request.method} {command}"
        error = _as_databus_error(raised, status_code, command, advice)
        self.set_status(error.status if isinstance(raised, DatabusError) else status_code)
        error = self.error_for_caller(error)
        if isinstance(error, UnauthorizedError):
            self.set_header("WWW-Authenticate", "Bearer")
        if self._allowed:
            self.set_header("Allow", ", ".join(self._allowed))
        for header, value in error_headers(error).items():
            self.set_header(header, value)
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        name, cause = wire_names(error)
        answer = {"error": name, "message": str(error)}
        text = json.dumps(answer | ({"cause": cause} if cause else {})) + "\n"
        self._finish_with(text.encode())


class CommandHandler(ApiHandler):
    """The parent of a daemon's commands; POST is answered as GET is."""

    # LinkedIn's client takes a Content-Length to say that the body has arrived with the headers.
    sends_chunks = True

    async def get(self, *path: str) -> None:
        """Answer the command."""
        await self.answer(*(part or "" for part in path))

    async def post(self, *path: str) -> None:
        """Answer the command; its parameters may be a form."""
        await self.get(*path)

    def event_parameters(self) -> dict[str, str]:
        """Return the parameters of a command about events; raises InvalidParameterError.

        LinkedIn's client fails at a truncate, so they are sent only on request. This project's
        clients understand them, and the older ones do not ask.
        """
        return event_parameters_of(self.request, self.limits)

    @property
    def versions_sent(self) -> dict[int, int]:
        """The newest schema version, by src_id, that `/register` has sent on this connection.

        It is empty for this project's clients: they fetch schemas when they need them.
        """
        return versions_sent_on(self.request)

    def note_versions(self, src_ids: Iterable[int], schemas: Sequence[Mapping[str, Any]]) -> None:
        """Note which schema versions of some sources are sent on this connection."""
        if self.is_own_client():
            return
        # A source that has no schema yet gets its first one later.
        self.versions_sent.update(dict.fromkeys(src_ids, 0))
        for schema in schemas:
            newest = max(self.versions_sent[schema["id"]], schema["version"])
            self.versions_sent[schema["id"]] = newest

    async def close_connection(self) -> None:
        """Close the connection when all of the response is sent, which has told the client."""
        connection: Any = self.request.connection
        if not self._sender.is_gone:
            await self._sender.within_idle_time(connection.stream.write(b""))
        self.drop_connection()

    def is_own_client(self) -> bool:
        """Whether the caller is a client of this project."""
        return is_own_client(self.request)

    async def answer(self, *path: str) -> None:
        """Answer the command, given what the route cut out of the path."""
        raise NotImplementedError


class UnknownCommandHandler(ApiHandler):
    """The answer to every path that is not in the table."""

    sends_chunks = True

    def prepare(self) -> None:
        """Raise UnknownCommandError whatever the method."""
        raise UnknownCommandError(self.request.path)


def _compress(body: bytes) -> bytes:
    return gzip.compress(body, 1)


def _as_databus_error(raised: Any, status: int, command: str, advice: str) -> DatabusError:
    if isinstance(raised, DatabusError):
        return raised
    if status in (404, 405):
        return UnknownCommandError(command, advice)
    if isinstance(raised, HTTPError) and status < 500:
        return InvalidParameterError(
            "(request)", command, raised.log_message or raised.reason or ""
        )
    return DatabusError(f"internal error: {type(raised).__name__}; see the log")
