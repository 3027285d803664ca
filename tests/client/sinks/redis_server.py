"""A private Redis: on loopback, gone when it is closed. Its data outlive a kill."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.client.sinks.private_server import PrivateServer

HOST = "127.0.0.1"
# Debian's redis-tools has the whole server under the second name.
PROGRAM = shutil.which("redis-server") or shutil.which("redis-check-rdb")
_ONCE = Retry(NoBackoff(), 0)


class PrivateRedis(PrivateServer):
    """One server and its files; a context manager. It writes each change to its log."""

    TITLE = "Redis"

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self.port = free_port()
        self._settings = settings

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://{HOST}:{self.port}/0"

    def client(self, **settings: Any) -> Any:
        """Return a client, which is to be closed. The types of its answers are those of RESP."""
        given = {"socket_timeout": PATIENCE_S, "decode_responses": True, "retry": _ONCE, **settings}
        return Redis(HOST, self.port, **given)

    @property
    def program(self) -> str:
        """The server, under whichever name it is there."""
        assert PROGRAM is not None, "there is no Redis: apt install redis-tools"
        return PROGRAM

    def command(self) -> Sequence[str]:
        """Return the command of the server."""
        given = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder)]
        given += ["--appendonly", "yes", "--appendfsync", "no", "--save", "", *self._settings]
        return ["redis-server", *given]

    def serves(self) -> bool:
        """Whether it answers, and has loaded its log."""
        with self.client() as client:
            try:
                return bool(client.ping())
            except AuthenticationError:
                return True  # it asks for a password
            except RedisError:
                return False
