"""A private registry of schemas, Apicurio's, for tests: with the API of Confluent's."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path

from databus.demo.processes import free_port
from tests.client.sinks.private_server import PrivateServer

_PATH = "/apis/ccompat/v7"


class PrivateRegistry(PrivateServer):
    """Runs in memory, on loopback; a context manager. What it had is gone after a kill."""

    TITLE = "Apicurio"

    def __init__(self, archive: Path) -> None:
        super().__init__()
        self._archive = archive
        self.port = free_port()

    @property
    def url(self) -> str:
        """The URL of its API."""
        return f"http://127.0.0.1:{self.port}{_PATH}"

    def command(self) -> Sequence[str]:
        """Return the command of the server."""
        quick = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        place = ("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}")
        return ["java", *quick, *place, "-jar", str(self._archive)]

    def serves(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
