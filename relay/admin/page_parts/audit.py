"""Who did what: each request that needs an admin's token, with its result, in a file.

Requests that were refused are in it, too. A line names the path, never the body, which may have a
password; and a token by the beginning of its SHA-256. The file is bounded: a full one becomes the
older one of two.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from pydantic import Field, ValidationError
from tornado.web import RequestHandler

from databus.daemon.access import Role
from databus.daemon.files import PRIVATE
from databus.daemon.http.handlers import ApiHandler
from databus.daemon.http.openapi import ApiModel, Call, Endpoint
from databus.relay.admin.page_parts.admins import FOR_ADMINS, check_admin
from databus.relay.relay import Relay

log = logging.getLogger(__name__)

FILE = "audit.jsonl"
MOST_BYTES = 1 << 20  # of one file; two are kept
MOST_SHOWN = 200
_MOST_TEXT = 300
_FINGERPRINT_CHARS = 8


class Action(ApiModel):
    """One request of an admin, or one that wanted to be."""

    at: float
    who: str = Field(description="`token` and the beginning of its SHA-256; or that there is none")
    address: str
    agent: str
    method: str
    path: str
    status: int = Field(description="Of the answer: 2xx = done, 401 and 403 = refused")


class Audit(ApiModel):
    """The last actions, the newest first."""

    actions: list[Action]
    problem: str = Field(description="Why the file cannot be written; the list is of memory then")


class AuditLog:
    """Keeps the actions in a file of the data folder. Thread-safe."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = folder / FILE
        self._older = folder / f"{FILE}.1"
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._recent = deque[Action](self._read(), maxlen=MOST_SHOWN)
        self.problem = ""

    def newest_first(self) -> list[Action]:
        """Return the last actions."""
        with self._lock:
            return list(reversed(self._recent))

    def add(self, action: Action) -> None:
        """Keep an action, durably. Blocks while the disk does."""
        with self._lock:
            self._recent.append(action)
            try:
                self._write(action.model_dump_json().encode() + b"\n")
            except OSError as error:
                self.problem = f"{self._path} cannot be written: {error}"
                log.error("the audit of admins: %s: %s", self.problem, action)
            else:
                self.problem = ""

    def _write(self, line: bytes) -> None:
        if self._path.exists() and self._path.stat().st_size + len(line) > self._most_bytes:
            self._path.replace(self._older)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with os.fdopen(os.open(self._path, flags, PRIVATE), "wb", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())

    def _read(self) -> Iterator[Action]:
        for path in (self._older, self._path):
            try:
                lines = path.read_bytes().splitlines()
            except OSError:
                continue
            for line in lines:
                try:
                    yield Action.model_validate(json.loads(line))
                except (ValueError, ValidationError):
                    continue  # cut by a crash


class AuditStatus:
    """Notes the requests of admins, and answers with them."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._log: AuditLog | None = None

    @property
    def log(self) -> AuditLog:
        """The log, opened when it is first needed."""
        if self._log is None:
            self._log = AuditLog(self._relay.settings.data_dir)
        return self._log

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return its endpoint; reading it is no action, and is not noted."""
        text = "Who did what: the last requests that need an admin's token"
        return (Endpoint("GET", f"{root}/audit", text, Audit, self.audit, errors=FOR_ADMINS),)

    async def audit(self, call: Call) -> Audit:
        """Return the last actions; raise ForbiddenError for a reader."""
        check_admin(call.peer)
        return Audit(actions=self.log.newest_first(), problem=self.log.problem)

    def note(self, handler: RequestHandler) -> None:
        """Note an answered request, if it needs an admin; called on the loop."""
        if handler.request.method != "POST" or not isinstance(handler, ApiHandler):
            return
        if "POST" not in handler.allowed_methods() or handler.role_needed() is not Role.ADMIN:
            return
        action = self._action(handler)
        # On a thread: a disk may take its time, and the loop serves consumers.
        asyncio.get_running_loop().run_in_executor(None, self.log.add, action)

    def _action(self, handler: ApiHandler) -> Action:
        request = handler.request
        return Action(
            at=self._relay.clock.wall_ns() / 1e9,
            who=who_of(request.headers.get("Authorization"), handler),
            address=(request.remote_ip or "")[:_MOST_TEXT],
            agent=request.headers.get("User-Agent", "")[:_MOST_TEXT],
            method=request.method or "",
            path=unquote(request.path)[:_MOST_TEXT],
            status=handler.get_status(),
        )


def who_of(authorization: str | None, handler: ApiHandler) -> str:
    """Return who sent a request, without the token itself."""
    if handler.access.is_open:
        return "anybody: the relay has no tokens"
    if not authorization:
        return "no token"
    token = authorization.partition(" ")[2].strip()
    mark = hashlib.sha256(token.encode()).hexdigest()[:_FINGERPRINT_CHARS]
    role = handler.role()
    return f"unknown token {mark}" if role is Role.NOBODY else f"{role.name.lower()} token {mark}"
