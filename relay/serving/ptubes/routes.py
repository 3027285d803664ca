"""Answers the requests of Ptubes' clients and operators."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from databus.conf.named_places import BinlogPlace, NamedPlace, ScnPlace, TimePlace
from databus.conf.settings import HttpSettings
from databus.daemon.access import Access, AccessHeaders, Role, check_permission
from databus.daemon.log_setup import about
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.serving.ptubes import packets
from databus.relay.serving.ptubes.http_requests import Request
from databus.relay.serving.ptubes.opening import SessionOpener
from databus.relay.serving.ptubes.requests import (
    Adjustment,
    parse_adjustment,
    parse_fetch,
    parse_subscription,
)
from databus.relay.serving.ptubes.session import Session
from databus.relay.serving.ptubes.traffic import Sessions
from databus.schemas.errors import DatabusError, RequestError

log = logging.getLogger(__name__)

JSON_TYPE = "application/json; charset=UTF-8"
BYTES_TYPE = "application/octet-stream"
# A client whose fetch fails picks a server at once, without any wait of its own.
ERROR_PAUSE_S = 1.0
_MS_NS = 1_000_000
_CODE_HEADER, _TEXT_HEADER = "X-Databus-Error", "X-Databus-Error-Message"


class Answer(NamedTuple):
    """An answer; with `closes` the connection ends after it."""

    body: bytes
    content_type: str = "text/plain; charset=UTF-8"
    closes: bool = False
    headers: Mapping[str, str] = {}


class Caller(NamedTuple):
    """The other end of a connection; `key` is that of its session."""

    address: str
    key: int


class DataRoutes:
    """The requests of the port for clients."""

    def __init__(
        self, relay: Relay, opener: SessionOpener, sessions: Sessions, access: Access
    ) -> None:
        self._relay, self._opener = relay, opener
        self._sessions, self._access = sessions, access
        self._http = _http_of(relay)

    async def answer(self, request: Request, caller: Caller, *, is_busy: bool) -> Answer:
        """Return the answer to a request; `is_busy` if the one before it was not answered yet."""
        try:
            check_reader(request, self._http)
        except DatabusError as error:
            return Answer(str(error).encode(), closes=True, headers=_error_headers(error))
        match request.path:
            case "/v1/fetchMessages":
                return await self._fetch(request, caller, is_busy=is_busy)
            case "/v1/subscribe":
                return await self._subscribe(request, caller)
            case "/v1/getServerInfo":
                return await self._server_info(request, caller)
            case "/v1/adjustDumpPoint":
                return await self._adjust(request)
            case "/monitor/alive":
                return Answer(b"OK")
        return Answer(b"Bye", closes=True)

    async def _server_info(self, request: Request, caller: Caller) -> Answer:
        error: DatabusError | None = None
        status, name = "AVAILABLE", ""
        try:
            if self._relay.is_closing:
                status = "OFFLINE"
            else:
                wanted = parse_subscription(request.body)
                name = wanted.reader_task
                await self._opener.check(wanted, caller.address)
        except DatabusError as found:
            status, error = "UNAVAILABLE", found
            self._sessions.failed("getServerInfo", found)
        fields: dict[str, Any] = {
            "serverStatus": status,
            "writerTaskList": self._sessions.tasks_of(name),
            "inboundBytes": 0,
            "outboundBytes": self._sessions.bytes_sent,
            "loadFactor": len(self._sessions),
        }
        if error is not None:
            fields |= {"errorCode": type(error).__name__, "errorMessage": str(error)}
        return Answer(_json(fields), JSON_TYPE, closes=status != "AVAILABLE")

    async def _subscribe(self, request: Request, caller: Caller) -> Answer:
        self._sessions.end(caller.key)  # whatever was prefetched for it
        try:
            wanted = parse_subscription(request.body)
            session = await self._opener.open(wanted, caller.address)
        except DatabusError as error:
            self._sessions.failed("subscribe", error)
            log.info("%s: no subscription: %s", caller.address, error)
            return Answer(b"fail", closes=True, headers=_error_headers(error))
        self._sessions.begin(caller.key, session, caller.address)
        return Answer(b"success")

    async def _fetch(self, request: Request, caller: Caller, *, is_busy: bool) -> Answer:
        if is_busy:
            text = "a fetch on this connection is not answered yet: one at a time"
            return _envelope(packets.SERVER_BUSY, text)
        session = self._sessions.get(caller.key)
        if session is None:
            text = "there is no subscription on this connection: subscribe first"
            return _envelope(packets.TIMING_ERROR, text)
        try:
            return Answer(await session.fetch(parse_fetch(request.body)), BYTES_TYPE)
        except DatabusError as error:
            self._sessions.failed("fetchMessages", error)
            _log_failure(session, caller, error)
            await asyncio.sleep(ERROR_PAUSE_S)
            return _envelope(packets.SERVER_ERROR, f"{type(error).__name__}: {error}")

    async def _adjust(self, request: Request) -> Answer:
        try:
            host = request.headers.get("host", "localhost")
            headers = request.headers
            authorization, origin = headers.get("authorization"), headers.get("origin")
            asked = AccessHeaders("http", host, authorization, origin)
            check_permission(asked, Role.ADMIN, self._access, self._relay.settings.http)
            wanted = parse_adjustment(request.body)
            task = self._opener.tasks.get(wanted.reader_task)
            if task is None:
                raise RequestError(f"there is no reader task {wanted.reader_task}")
            source = self._relay.physical_source(task.physical_source)
            await self._restart(source, wanted)
        except DatabusError as error:
            self._sessions.failed("adjustDumpPoint", error)
            return Answer(_json({"code": "FAIL", "msg": str(error)}), JSON_TYPE, closes=True)
        self._sessions.end_of_source(source.name, self._opener.tasks)
        return Answer(_json({"code": "SUCCESS", "msg": ""}), JSON_TYPE, closes=True)

    async def _restart(self, source: PhysicalSource, wanted: Adjustment) -> None:
        """Empty the ring, and capture from a place on: as the API's `restart` does."""
        place = _place_of(wanted, source)
        log.warning("adjustDumpPoint: %s is captured again at %s", source.name, place)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._relay.control.restart, source, place)
        source.reader.follow()
        self._relay.monitor.clients.forget_positions(source.name)
        source.notifier.notify_all()


def check_reader(request: Request, settings: HttpSettings) -> None:
    """Raise ForbiddenError for what a browser sends from a page of somebody else."""
    origin = request.headers.get("origin")
    host = request.headers.get("host", "localhost" if origin is None else "")
    headers = AccessHeaders("http", host, None, origin)
    check_permission(headers, Role.READER, Access(), settings)


def _http_of(relay: Relay) -> HttpSettings:
    ptubes = relay.settings.ptubes
    if ptubes is None:
        raise ValueError("Ptubes' clients are not served")
    return HttpSettings(host=ptubes.host, open_to_all=ptubes.open_to_all)


def _place_of(wanted: Adjustment, source: PhysicalSource) -> NamedPlace:
    if wanted.strategy == "TIMESTAMP":
        return TimePlace(wanted.timestamp_ms * _MS_NS)
    if wanted.strategy == "BINLOG_POSITION":
        return BinlogPlace(_file_name(source, wanted.file), wanted.offset)
    return ScnPlace(max(source.reader.max_scn, 0))


def _file_name(source: PhysicalSource, number: int) -> str:
    newest = source.capture.servers.table.newest
    base, dot, _ = ("" if newest is None else newest.file).rpartition(".")
    if not dot:
        raise RequestError(f"{source.name} has no binlog, or it is not known yet")
    return f"{base}.{number:06}"


def _envelope(code: int, text: str) -> Answer:
    return Answer(packets.error_envelope(code, text), BYTES_TYPE)


def _error_headers(error: DatabusError) -> dict[str, str]:
    return {_CODE_HEADER: type(error).__name__, _TEXT_HEADER: str(error)}


def _log_failure(session: Session, caller: Caller, error: DatabusError) -> None:
    known = about(scn=session.scn)
    log.warning("%s: %s: %s", caller.address, session.wanted.task, error, extra=known)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
