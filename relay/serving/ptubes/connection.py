"""One connection of a Ptubes client: requests in, answers out, one after the other.

A client that does not read its answers is not answered further, and one that is silent too long
is closed. Whatever it sends costs it its own connection at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from databus.conf.doors.ptubes_settings import PtubesSettings
from databus.relay.serving.ptubes.http_requests import (
    BadRequestError,
    Request,
    RequestParser,
    response_bytes,
)
from databus.relay.serving.ptubes.routes import Answer, Caller

log = logging.getLogger(__name__)

MOST_WAITING = 4  # requests that came before the one in front of them was answered
MOST_HELD_BYTES = 64 << 20  # of requests that are not whole yet, on all connections

Answering = Callable[[Request, Caller, bool], Awaitable[Answer]]


class Connections:
    """The open connections of a port."""

    def __init__(self, settings: PtubesSettings) -> None:
        self.settings = settings
        self.open: set[Connection] = set()
        self.refused = self.bad_requests = self.requests = 0
        self.is_closing = False

    @property
    def held_bytes(self) -> int:
        """Bytes of requests that are not whole yet."""
        return sum(one.held_bytes for one in self.open)

    def tick(self, now_s: float) -> None:
        """Close what is silent, once a second."""
        for one in list(self.open):
            one.tick(now_s)


class Ended(Protocol):
    """Called with the key of a connection that has ended."""

    def __call__(self, key: int, /) -> None:
        """Forget its session."""
        ...


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, connections: Connections, answering: Answering, ended: Ended) -> None:
        self._connections, self._answering, self._ended = connections, answering, ended
        settings = connections.settings
        self._idle_s, self._request_s = settings.idle_connection_s, settings.request_s
        self._parser = RequestParser(settings.max_request_bytes)
        self._waiting: deque[tuple[Request, bool] | BadRequestError] = deque()
        self._work: asyncio.Task[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._begun_s = self._loop.time()
        self._is_over = False  # nothing more is read
        self._transport: asyncio.Transport | None = None
        self._caller = Caller("", id(self))

    @property
    def held_bytes(self) -> int:
        """Bytes of a request that is not whole yet."""
        return self._parser.held_bytes

    @property
    def is_working(self) -> bool:
        """Whether a request is being answered."""
        return self._work is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("",)
        self._caller = Caller(str(peer[0]), id(self))
        connections = self._connections
        if connections.is_closing or len(connections.open) >= connections.settings.max_connections:
            connections.refused += 1
            self._is_over = True
            text = b"there are too many connections (ptubes.max_connections)"
            status = "503 Service Unavailable"
            transport.write(response_bytes(text, status=status, keeps_alive=False))
            transport.close()
            return
        connections.open.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """End what is being done for it."""
        self._is_over = True
        self._connections.open.discard(self)
        self._can_write.set()
        self._ended(self._caller.key)
        if self._work is not None:
            self._work.cancel()

    def data_received(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._is_over:
            return
        self._heard_s = self._loop.time()
        if not self._parser.held_bytes:
            self._begun_s = self._heard_s
        self._parser.receive(data)
        self._take_requests()
        if self._parser.held_bytes and self._connections.held_bytes > MOST_HELD_BYTES:
            self._refuse(BadRequestError("too many large requests arrive at once; try again"))

    def pause_writing(self) -> None:
        """The client does not read."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._heard_s = self._loop.time()
        self._can_write.set()

    def tick(self, now_s: float) -> None:
        """Close what is silent, or sends a request too slowly; the client asks again by itself."""
        is_slow = self._parser.held_bytes > 0 and now_s - self._begun_s > self._request_s
        is_silent = now_s - self._heard_s > self._idle_s
        is_stuck = not self._can_write.is_set()
        if self._transport is None or not (is_silent or (is_slow and not self._waiting)):
            return
        if not self.is_working or is_stuck:
            self._transport.abort()

    def close(self) -> None:
        """End, after the answer that is being made."""
        self._is_over = True
        if self._work is None and self._transport is not None:
            self._transport.close()

    async def drain(self) -> None:
        """Wait until nothing is done for it."""
        if self._work is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({self._work})

    def abort(self) -> None:
        """End at once."""
        if self._transport is not None:
            self._transport.abort()
        if self._work is not None:
            self._work.cancel()

    def _take_requests(self) -> None:
        while len(self._waiting) < MOST_WAITING and not self._is_over:
            try:
                request = self._parser.next_request()
            except BadRequestError as error:
                self._refuse(error)
                return
            if request is None:
                break
            self._begun_s = self._loop.time()
            self._connections.requests += 1
            self._waiting.append((request, self.is_working))
            self._go_on()
        if self._transport is not None and not self._transport.is_closing():
            if len(self._waiting) >= MOST_WAITING:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _refuse(self, error: BadRequestError) -> None:
        self._connections.bad_requests += 1
        self._is_over = True
        self._parser = RequestParser(0)
        self._waiting.append(error)
        self._go_on()

    def _go_on(self) -> None:
        if self._work is None and self._waiting:
            self._work = self._loop.create_task(self._answer_all())

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                keeps_alive = await self._answer(self._waiting.popleft())
                self._heard_s = self._loop.time()
                if not keeps_alive:
                    self._is_over = True
                    self._waiting.clear()
                self._take_requests()
        finally:
            self._work = None
            if self._is_over and self._transport is not None:
                self._transport.close()

    async def _answer(self, waiting: tuple[Request, bool] | BadRequestError) -> bool:
        """Write an answer, once the client has read the one before; return if more may follow."""
        assert self._transport is not None
        await self._can_write.wait()
        if isinstance(waiting, BadRequestError):
            status = "400 Bad Request"
            data = response_bytes(str(waiting).encode(), status=status, keeps_alive=False)
            self._transport.write(data)
            return False
        request, is_busy = waiting
        try:
            answer = await self._answering(request, self._caller, is_busy)
        except Exception:
            # A defect here; the others are served on.
            log.exception("a request for %s failed", request.path[:200])
            answer = Answer(b"fail", closes=True)
        keeps_alive = request.keeps_alive and not answer.closes and not self._is_over
        self._transport.write(
            response_bytes(
                answer.body, answer.content_type, answer.headers, keeps_alive=keeps_alive
            )
        )
        return keeps_alive
