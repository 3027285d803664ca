"""A server that speaks S3, in a process of its own, with an empty bucket."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from types import TracebackType

from pyarrow.fs import ensure_s3_initialized

from databus.demo.processes import free_port
from tests import PATIENCE_S

BUCKET = "archive"


class S3Server:
    """Runs until the block ends; `stop` and `start` make an outage, which loses what it has."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stop()

    def uri(self, folder: str) -> str:
        """Return the URI of a folder in the bucket."""
        where = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        return f"s3://user:secret@{BUCKET}/{folder}?{where}"

    def start(self) -> None:
        """Start it, and make the bucket."""
        ensure_s3_initialized()  # threads and descriptors that stay for the process's life
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                assert self._ask("PUT", f"/{BUCKET}") == 200
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, "the S3 server has ended"
                assert time.monotonic() < end, "the S3 server does not answer"
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _ask(self, method: str, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        finally:
            connection.close()
