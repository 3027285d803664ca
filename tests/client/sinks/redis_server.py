"""A private Redis: on loopback, gone when it is closed. Its data outlive a kill."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from databus.demo.processes import free_port

HOST = "127.0.0.1"
# Debian's redis-tools has the whole server under the second name.
PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")
_START_S = 30.0
_ANSWER_S = 10.0
_ONCE = Retry(NoBackoff(), 0)


class PrivateRedis:
    """One server and its files; a context manager. It writes each change to its log."""

    def __init__(self, *settings: str) -> None:
        self.port = free_port()
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="databus-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivateRedis:
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
        return f"redis://{HOST}:{self.port}/0"

    def client(self, **settings: Any) -> Any:
        """Return a client, which is to be closed. The types of its answers are those of RESP."""
        given = {"socket_timeout": _ANSWER_S, "decode_responses": True, "retry": _ONCE, **settings}
        return Redis(HOST, self.port, **given)

    def start(self) -> None:
        """Start the server, and wait until it has loaded its log."""
        assert PROGRAM is not None, "there is no Redis: apt install redis-tools"
        given = ["--bind", HOST, "--port", str(self.port), "--dir", str(self._folder)]
        given += ["--appendonly", "yes", "--appendfsync", "no", "--save", "", *self._settings]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *given], executable=PROGRAM, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _START_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                told = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"Redis does not start: {told}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server, as the system's lack of memory would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def close(self) -> None:
        """End the server and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _serves(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except AuthenticationError:
                return True  # it asks for a password
            except RedisError:
                return False
