"""The serving processes of a running relay, and what its capturing process answers itself."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import psutil

from databus.relay.serving_processes.passing_on import socket_address
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.promises.running import Answer, RunningRelay


def capturer(relay: RunningRelay) -> psutil.Process:
    """Return the capturing process."""
    return psutil.Process(relay.child.pid)


def serving_pids(relay: RunningRelay) -> list[int]:
    """Return the ids of the serving processes that serve."""
    found = []
    for child in capturer(relay).children():
        with contextlib.suppress(psutil.Error):
            if any("serving_processes.process" in one for one in child.cmdline()):
                found.append(child.pid)
    running = relay.get("/health").json()["servingProcesses"]["running"]
    return sorted(found) if running == len(found) else []


class _Private(http.client.HTTPConnection):
    def __init__(self, relay: RunningRelay) -> None:
        super().__init__("127.0.0.1", relay.port, timeout=PATIENCE_S)
        self._relay = relay

    def connect(self) -> None:
        fd, address = socket_address(self._relay.data_dir)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        try:
            self.sock.connect(address)
        finally:
            os.close(fd)


def ask_capturer(
    relay: RunningRelay, path: str, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return the answer of the capturing process itself to a GET."""
    with contextlib.closing(_Private(relay)) as connection:
        connection.request("GET", path, headers=dict(headers or {}))
        with connection.getresponse() as response:
            return Answer(response.status, response.headers, response.read())


class KeptConnection:
    """One connection to a relay that is used again and again."""

    def __init__(self, relay: RunningRelay) -> None:
        self._connection = relay.connection()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """GET a path."""
        self._connection.request("GET", path, headers=dict(headers or {}))
        with self._connection.getresponse() as response:
            return Answer(response.status, response.headers, response.read())

    def process(self, relay: RunningRelay) -> int:
        """Return the id of the serving process at its other end; connects first."""
        if self._connection.sock is None:
            self._connection.connect()
        port = self._connection.sock.getsockname()[1]
        for child in capturer(relay).children():
            for one in child.net_connections():
                if one.raddr and one.raddr.port == port:
                    return child.pid
        raise AssertionError("nobody has accepted the connection yet")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def stream_path(checkpoint: Checkpoint | None = None, **parameters: Any) -> str:
    """Return the path of a request for the events of the shop's orders."""
    asked = {"sources": "shop.orders", "size": 1 << 20, "maxev": 2}
    asked["checkPoint"] = (checkpoint or Checkpoint.flexible()).to_json()
    return "/stream?" + urlencode(asked | parameters)


def rows_in(relay: RunningRelay) -> int:
    """Return how many rows a relay has."""
    return sum(1 for one in walk(b"".join(relay.windows().values())) if one.src_id > 0)


def metric(relay: RunningRelay, name: str) -> float:
    """Return the value of a metric, named with its labels."""
    lines = relay.get("/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])
