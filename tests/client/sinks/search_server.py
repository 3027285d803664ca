"""A private OpenSearch: on loopback, gone when it is closed. Its data outlive a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.client.sinks.private_server import PrivateServer

_MAIN = Path(__file__).with_name("OpenSearch.java")


class PrivateOpenSearch(PrivateServer):
    """One node and its files; a context manager."""

    TITLE = "OpenSearch"

    def __init__(self, archives: Path) -> None:
        super().__init__()
        self._archives = archives
        self.port, self._transport = free_port(), free_port()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """Return the command of the node."""
        quick = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        given = (self.folder, self.port, f"transport.port={self._transport}")
        more = ("http.max_content_length=300kb", "action.destructive_requires_name=false")
        run = ("java", *quick, "-cp", f"{self._archives}/*", str(_MAIN))
        return [*run, *map(str, given), *more]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request; {} for 404."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(self.url + path, data, headers, method=method)
        try:
            with urlopen(request, timeout=PATIENCE_S) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            with error:
                if error.code != 404:
                    raise AssertionError(error.read()) from error
            return {}

    def documents(self, index: str) -> dict[str, Any]:
        """Return the documents of an index by their id."""
        self.ask("POST", f"/{index}/_refresh")
        found = self.ask("GET", f"/{index}/_search?size=10000")
        return {one["_id"]: one["_source"] for one in found["hits"]["hits"]} if found else {}

    def clear(self) -> None:
        """Remove all indexes."""
        self.ask("DELETE", "/*")

    def serves(self) -> bool:
        """Whether the node takes requests."""
        try:
            health = self.ask("GET", "/_cluster/health?timeout=1s")
        except (OSError, AssertionError):
            return False
        return health.get("status") in ("yellow", "green")
