"""A private ClickHouse: on loopback, gone when it is closed. Its data outlive a kill.

The engine is the real one, of the package chdb; `clickhouse_front` before it is a stand-in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.client.sinks.private_server import PrivateServer


class PrivateClickHouse(PrivateServer):
    """One server and its files; a context manager."""

    TITLE = "ClickHouse"

    def __init__(self, *login: str) -> None:
        super().__init__()
        self.port = free_port()
        self._login = login

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """Return the command of the server."""
        module = "tests.client.sinks.clickhouse_front"
        return [sys.executable, "-m", module, str(self.port), str(self.folder), *self._login]

    def serves(self) -> bool:
        """Whether it answers."""
        try:
            with urlopen(f"{self.url}/ping", timeout=PATIENCE_S) as answer:
                return bool(answer.read() == b"Ok.\n")
        except (OSError, HTTPException):
            return False

    def run(self, *statements: str) -> bytes:
        """Run statements; return the answer to the last one."""
        answer = b""
        for statement in statements:
            request = Request(f"{self.url}/?wait_end_of_query=1", statement.encode())
            try:
                with urlopen(request, timeout=PATIENCE_S) as found:
                    answer = found.read()
            except HTTPError as error:
                with error:
                    raise AssertionError(error.read().decode()) from error
        return answer

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, in its order."""
        answer = self.run(f"{query} FORMAT JSONCompactEachRow")
        return [tuple(json.loads(line)) for line in answer.splitlines()]

    def clear(self) -> None:
        """Remove all tables."""
        self.run("DROP DATABASE IF EXISTS shop SYNC", "CREATE DATABASE shop")
