"""ClickHouse's HTTP interface before its real engine, for tests: `PORT FOLDER [USER PASSWORD]`.

There is no package of a current server, but one with its engine as a library. So statements, types,
merges and errors are the engine's own. This front is a stand-in, and strict: it knows what the sink
sends, and refuses everything else.
"""

from __future__ import annotations

import re
import sys
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from chdb import session

_CODE = re.compile(r"Code: (\d+)\.")
_INSERT = re.compile(r"(INSERT INTO .+) FORMAT RowBinary", re.DOTALL)
# As `exceptionCodeToHTTPStatus` of ClickHouse; 500 for all others.
_STATUSES = {
    **dict.fromkeys((6, 26, 27, 36, 38, 41, 53, 62, 69, 72, 117), 400),
    **dict.fromkeys((46, 47, 50, 56, 60, 81, 115), 404),
    **dict.fromkeys((192, 193, 516), 403),
    194: 401,
    159: 408,
    48: 501,
    209: 503,
}


class RefusedError(Exception):
    """An error as the server names it."""


class Engine:
    """The engine, which takes one statement at a time."""

    def __init__(self, folder: Path) -> None:
        made: Any = session.Session  # the package has no types
        self._session = made(str(folder / "data"))
        self._rows = folder / "rows.bin"
        self._settings: dict[str, str] = {}
        self._lock = threading.Lock()

    def run(self, parameters: dict[str, str], body: bytes) -> bytes:
        """Run a statement; raise RefusedError."""
        query = parameters.pop("query", "")
        with self._lock:
            self._set(parameters)
            if not query:
                return self._ask(body.decode())
            insert = _INSERT.fullmatch(query)
            if insert is None:
                raise RefusedError(f"Code: 62. DB::Exception: the front takes no {query[:99]}")
            self._rows.write_bytes(body)
            place = f"FROM INFILE '{self._rows}' COMPRESSION 'none'"
            return self._ask(f"{insert[1]} {place} FORMAT RowBinary")

    def _set(self, parameters: dict[str, str]) -> None:
        for name, value in parameters.items():
            if name != "wait_end_of_query" and self._settings.get(name) != value:
                self._ask(f"SET {name} = '{value}'")
                self._settings[name] = value

    def _ask(self, statement: str) -> bytes:
        try:
            return bytes(self._session.query(statement, "TabSeparated").bytes() or b"")
        except RuntimeError as error:
            raise RefusedError(str(error)) from error


class Handler(BaseHTTPRequestHandler):
    """Answers as the server does."""

    protocol_version = "HTTP/1.1"
    timeout = 3.0  # an idle connection is closed, as by keep_alive_timeout
    engine: Engine
    login = ""

    def do_GET(self) -> None:
        """Answer a ping."""
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        """Run a statement."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            if self.login and self.headers.get("Authorization") != self.login:
                raise RefusedError("Code: 516. DB::Exception: Authentication failed")
            given = dict(parse_qsl(urlsplit(self.path).query, strict_parsing=True))
            self._answer(200, self.engine.run(given, body))
        except RefusedError as error:
            found = _CODE.search(str(error))
            code = int(found[1]) if found else 1002
            headers = {"X-ClickHouse-Exception-Code": str(code)}
            self._answer(_STATUSES.get(code, 500), str(error).encode(), headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""


def main(port: str, folder: str, user: str = "", password: str = "") -> None:
    """Serve until the end of the process."""
    Handler.engine = Engine(Path(folder))
    if user:
        Handler.login = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
