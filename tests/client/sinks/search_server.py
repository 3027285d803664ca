"""A private OpenSearch: on loopback, gone when it is closed. Its data outlive a kill."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from databus.demo.processes import free_port

_MAIN = Path(__file__).with_name("OpenSearch.java")
_START_S = 90.0
_ANSWER_S = 20.0


class PrivateOpenSearch:
    """One node and its files; a context manager."""

    def __init__(self, archives: Path) -> None:
        self._archives = archives
        self._folder = Path(tempfile.mkdtemp(prefix="databus-opensearch-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._transport = free_port(), free_port()

    def __enter__(self) -> PrivateOpenSearch:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it has opened what it has."""
        quick = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        given = (self._folder, self.port, f"transport.port={self._transport}")
        more = ("http.max_content_length=300kb", "action.destructive_requires_name=false")
        run = ("java", *quick, "-cp", f"{self._archives}/*", str(_MAIN))
        command = [*run, *map(str, given), *more]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                told = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"OpenSearch does not start: {told}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """End the server and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request; {} for 404."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(self.url + path, data, headers, method=method)
        try:
            with urlopen(request, timeout=_ANSWER_S) as answer:
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

    def _serves(self) -> bool:
        try:
            health = self.ask("GET", "/_cluster/health?timeout=1s")
        except (OSError, AssertionError):
            return False
        return health.get("status") in ("yellow", "green")
