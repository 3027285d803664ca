"""A private registry of schemas, Apicurio's, for tests: with the API of Confluent's."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

from databus.demo.processes import free_port

_START_S = 120
_PATH = "/apis/ccompat/v7"


class PrivateRegistry:
    """Runs in memory, on loopback; a context manager starts and ends it."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> PrivateRegistry:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """The URL of its API."""
        return f"http://127.0.0.1:{self.port}{_PATH}"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [
                *("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"),
                *("-jar", str(self._archive)),
            ],
            stdout=self._log,
            stderr=self._log,
        )
        deadline = time.monotonic() + _START_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise AssertionError(f"the registry does not start: {self._log.read()[-2000:]!r}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it; what it had is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None
        if self._log is not None:
            self._log.close()

    def _serves(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
