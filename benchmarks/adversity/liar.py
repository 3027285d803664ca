"""A relay that lies: passes requests on to an honest one, and forges some of its answers."""

from __future__ import annotations

import http.client
import struct
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from databus.demo.private_mariadb import HOST
from databus.schemas.event.layout import V2

RESUME = "x-databus-resume"
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "accept-encoding", "host"})
_TIMEOUT_S = 30.0
# A forger of a /stream response: takes headers (lower case) and body, and returns both.
Forged = tuple[dict[str, str], bytes]
Forge = Callable[[dict[str, str], bytes], Forged]


class LyingRelay:
    """Listens on `port`; the next `lies` answers with events are forged. A context manager."""

    def __init__(self, relay_port: int) -> None:
        self.forge: Forge | None = None
        self.lies = 0
        self.told = 0
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = _TIMEOUT_S

            def do_GET(self) -> None:
                liar.answer(self, relay_port)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> LyingRelay:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, relay_port: int) -> None:
        """Forward one request, and return its answer, forged or not."""
        try:
            status, headers, body = _asked(handler, relay_port)
            if handler.path.startswith("/stream") and status == 200 and body:
                headers, body = self._forged(headers, body)
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        except (OSError, http.client.HTTPException):
            handler.close_connection = True

    def _forged(self, headers: dict[str, str], body: bytes) -> Forged:
        if self.forge is None or self.lies <= 0:
            return headers, body
        self.lies -= 1
        self.told += 1
        return self.forge(headers, body)


def _asked(handler: BaseHTTPRequestHandler, relay_port: int) -> tuple[int, dict[str, str], bytes]:
    length = int(handler.headers.get("Content-Length") or 0)
    sent = handler.rfile.read(length) if length else None
    connection = http.client.HTTPConnection(HOST, relay_port, timeout=_TIMEOUT_S)
    try:
        passed = {k: v for k, v in handler.headers.items() if k.lower() not in _HOP}
        connection.request(handler.command, handler.path, sent, passed)
        with connection.getresponse() as answer:
            headers = {k.lower(): v for k, v in answer.getheaders() if k.lower() not in _HOP}
            return answer.status, headers, answer.read()
    finally:
        connection.close()


def resume_at(headers: Mapping[str, str], scn_by: int, offset: int) -> str:
    """Return a resume header that is off by a number of windows."""
    scn = int(headers.get(RESUME, "0,-1").split(",")[0])
    return f"{max(0, scn + scn_by)},{offset}"


def with_resume(scn_by: int, offset: int = -1) -> Forge:
    """Return a forger of the resume header."""
    return lambda headers, body: (
        headers | {RESUME: resume_at(headers, scn_by, offset)},
        body,
    )


def with_header(name: str, value: str) -> Forge:
    """Return a forger of a header."""
    return lambda headers, body: (headers | {name: value}, body)


def with_length(length: int) -> Forge:
    """Return a forger of the first event's length, which no longer fits its CRC."""
    return lambda headers, body: (headers, _with(body, V2.length.offset, length))


def with_crc(headers: dict[str, str], body: bytes) -> Forged:
    """Forge the CRC of the first event's header."""
    return headers, _with(body, V2.header_crc.offset, 0x12345678)


def with_flip(share: float) -> Forge:
    """Return a forger that flips a byte of the body."""

    def forge(headers: dict[str, str], body: bytes) -> Forged:
        at = min(len(body) - 1, int(len(body) * share))
        return headers, body[:at] + bytes([body[at] ^ 0x41]) + body[at + 1 :]

    return forge


def cut_at(share: float) -> Forge:
    """Return a forger that cuts the end of the body."""
    return lambda headers, body: (headers, body[: int(len(body) * share)])


def doubled(headers: dict[str, str], body: bytes) -> Forged:
    """Send the body twice."""
    return headers, body + body


def _with(body: bytes, at: int, number: int) -> bytes:
    return body[:at] + struct.pack(">I", number) + body[at + 4 :]
