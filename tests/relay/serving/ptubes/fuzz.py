"""Requests of Ptubes' clients, mangled, as a stranger might send them."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from typing import Any

from tests import PATIENCE_S
from tests.relay.serving.ptubes.stock import TABLES, subscription

PATHS = ("subscribe", "getServerInfo", "fetchMessages", "adjustDumpPoint", "nowhere")
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 63,
    1e300,
    "",
    "x" * 3000,
    "\ud800",
    [],
    {},
    [[[]]],
    [None] * 50,
)


class Attack:
    """Sends mangled requests to a port, and counts what is answered."""

    def __init__(self, port: int, rng: random.Random, tables: Sequence[str] = TABLES) -> None:
        """`tables` are what it subscribes to, alone or together."""
        self._port, self._rng, self._tables = port, rng, tables
        self.answers = self.subscribed = 0

    def send(self, requests: int) -> None:
        """Send so many, several on a connection where it stays open."""
        left = requests
        while left > 0:
            with socket.create_connection(
                ("127.0.0.1", self._port), timeout=PATIENCE_S
            ) as connection:
                for _ in range(min(left, self._rng.randrange(1, 12))):
                    left -= 1
                    if not self._send(connection, mangled(self._rng, self._tables)):
                        break

    def _send(self, connection: socket.socket, data: bytes) -> bool:
        """Send a request and read what comes, if anything does; return whether it goes on."""
        try:
            connection.sendall(data)
            connection.settimeout(0.02)
            answer = connection.recv(1 << 16)
        except TimeoutError:
            return True
        except OSError:
            return False
        self.answers += answer.startswith(b"HTTP/1.1 ")
        self.subscribed += answer.endswith(b"success")
        return answer != b""


def mangled(rng: random.Random, tables: Sequence[str] = TABLES) -> bytes:
    """Return a request, mostly one with something wrong."""
    path, value = _request(rng, tables)
    if rng.random() < 0.8:
        value = _mutated(rng, value)
    body = json.dumps(value).encode("utf-8", "replace")
    if rng.random() < 0.3:
        body = _flipped(rng, body)
    length = len(body) if rng.random() < 0.9 else rng.choice((0, len(body) + 5, 1 << 40, -1))
    data = b"POST /v1/%s HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (
        (path if rng.random() < 0.8 else rng.choice(PATHS)).encode(),
        length,
    )
    data += body
    return _flipped(rng, data) if rng.random() < 0.2 else data


def _request(rng: random.Random, tables: Sequence[str]) -> tuple[str, Any]:
    fetch = {"batchSize": 5, "timeoutMs": 0, "maxByteSize": 1000}
    adjust = {"readerTask": "reader", "strategy": "none", "timestamp": -1}
    place = {"checkpointMode": "NORMAL", "serverId": 0x7FFFFFFF, "binlogFile": 1 << 23}
    place |= {"binlogOffset": rng.randrange(3), "eventIndex": 0, "timestamp": 1000}
    some = rng.choice([tables, *([one] for one in tables)])
    whole, placed = subscription(tables=some), subscription(checkpoint=place, tables=some)
    choices = [("fetchMessages", fetch), ("adjustDumpPoint", adjust)]
    choices += [(path, one) for path in PATHS[:2] for one in (whole, placed)]
    return rng.choice(choices)


def _mutated(rng: random.Random, value: Any) -> Any:
    if rng.random() < 0.08:
        return rng.choice(_ODD)
    if isinstance(value, dict):
        return {k: _mutated(rng, v) for k, v in value.items() if rng.random() > 0.03}
    if isinstance(value, list):
        return [_mutated(rng, one) for one in value]
    return value


def _flipped(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return (
        bytes(changed[: rng.randrange(len(changed) + 1)]) if rng.random() < 0.2 else bytes(changed)
    )
