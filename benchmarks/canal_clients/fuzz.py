"""Sends malformed frames to a relay's port for clients of Canal, while a client is served.

    python -m benchmarks.canal_clients.fuzz --frames 100000 --seed S

Half of the connections have not logged in, or wrongly, and want the destination `closed`: at the
end nobody may have subscribed to it. The others have, and send frames that were altered.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.canal_clients.clients import PASSWORD, USER, canal_table
from benchmarks.shared.report import Figure, at_most, publish
from databus.demo.processes import free_port
from tests.promises.running import RunningRelay, Shop, running, wait_until
from tests.relay.serving.canal.raw_client import RawClient, RefusedError

FRAMES, SHORT_FRAMES = 100_000, 2_000
_PER_CONNECTION = 5  # the first one that is malformed ends a connection
_WORKERS = 4
_TIMEOUT_S = 20.0
_KINDS = (2, 3, 4, 5, 6, 7, 8, 12, 0, 9, 99)


@dataclass(slots=True)
class Findings:
    """What the relay did."""

    frames: int = 0
    connections: int = 0
    subscribed_strangers: int = 0
    rows: int = 0
    lost: int = 0
    grown_mib: float = 0.0
    has_died: bool = False

    @property
    def problems(self) -> int:
        """Number of broken promises."""
        return self.subscribed_strangers + self.lost + self.has_died


def frames(draw: random.Random, count: int, destination: str) -> Iterator[bytes]:
    """Yield frames, most of which are malformed somewhere."""
    for _ in range(count):
        body = _message(draw, destination)
        packet = bytes([0x18, draw.choice(_KINDS), 0x2A]) + _varint(len(body)) + body
        length = len(packet)
        how = draw.random()
        if how < 0.4:
            packet = _altered(draw, packet)
            length = len(packet)
        elif how < 0.45:
            length = draw.choice((-1, 0, 1 << 30, length + 1, max(0, length - 1)))
        elif how < 0.5:
            packet = draw.randbytes(draw.randrange(200))
            length = len(packet)
        yield struct.pack(">i", length) + packet


def _message(draw: random.Random, destination: str) -> bytes:
    texts = {1: destination, 2: str(draw.choice((2000, 2001, 99999, "x", "")))}
    texts[7] = draw.choice((r".*\..*", "(", "(a+)+$", "a" * 5000, "é", r"a{1000}{1000}", ""))
    body = b"".join(
        bytes([field << 3 | 2]) + _varint(len(text.encode())) + text.encode()
        for field, text in texts.items()
        if draw.random() < 0.9
    )
    for field in (3, 4, 5, 6):
        if draw.random() < 0.6:
            number = draw.choice((-1, 0, 1, 7, 1000, draw.getrandbits(63), 1 << 31))
            # A wait would keep the connection, and then the frames behind it.
            body += bytes([field << 3]) + _varint(-1 if field == 4 else number)
    return body


def _altered(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        if not changed:
            break
        at = draw.randrange(len(changed))
        match draw.randrange(3):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at:]
            case _:
                changed[at:at] = draw.randbytes(draw.randrange(1, 5))
    return bytes(changed)


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def attack(address: str, count: int, seed: int) -> int:
    """Send so many frames over many connections; return the number of connections."""
    draw, connections = random.Random(seed), 0
    while count > 0:
        some = min(_PER_CONNECTION, count)
        count -= some
        connections += 1
        with contextlib.suppress(OSError, RefusedError, AssertionError):
            _one_connection(address, draw, some)
    return connections


def _one_connection(address: str, draw: random.Random, count: int) -> None:
    is_stranger = draw.random() < 0.5
    with RawClient(address) as client:
        if not is_stranger:
            client.login(USER, PASSWORD.encode())
        elif draw.random() < 0.5:
            with contextlib.suppress(RefusedError):
                client.login(USER, b"wrong")
        for frame in frames(draw, count, "closed" if is_stranger else "example"):
            client.socket.sendall(frame)
        client.socket.shutdown(socket.SHUT_WR)
        client.socket.settimeout(_TIMEOUT_S)
        while client.socket.recv(1 << 16):
            pass


def measure(count: int, seed: int) -> Findings:
    """Attack a relay that serves a client meanwhile; return what it did."""
    found = Findings(frames=count)
    with tempfile.TemporaryDirectory(prefix="databus-canal-fuzz-") as name:
        folder = Path(name)
        shop = Shop(folder / "shop.db")
        names = ("example", "closed")
        destinations = [{"name": one, "physical_sources": ["shop"]} for one in names]
        table = canal_table(folder, free_port(), destinations=destinations)
        with (
            contextlib.closing(shop),
            running(RunningRelay(folder, shop.settings(), canal=table)) as relay,
        ):
            relay.start()
            _attack(relay, shop, found, seed)
    return found


def _attack(relay: RunningRelay, shop: Shop, found: Findings, seed: int) -> None:
    address = str(_view(relay)["address"])
    attack(address, 200, seed + 1000)  # what is loaded at the first use is no growth
    process = psutil.Process(relay.child.pid)
    before = process.memory_info().rss
    with RawClient(address) as client:
        client.login(USER, PASSWORD.encode()).subscribe()
        keys = _drain(client)
        each = [found.frames // _WORKERS] * _WORKERS
        results: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: results.append(attack(address, each[n], seed + n)))
            for n in range(_WORKERS)
        ]
        for one in threads:
            one.start()
        while any(one.is_alive() for one in threads):
            found.rows += 1
            shop.insert(found.rows)
            keys += _drain(client, timeout=50)
        for one in threads:
            one.join()
        found.connections = sum(results)

        def has_last() -> bool:
            keys.extend(_drain(client))
            return found.rows in keys

        wait_until(has_last, "the last row")
    found.has_died = not process.is_running()
    found.lost = len(set(range(1, found.rows + 1)) - set(keys))
    found.grown_mib = (process.memory_info().rss - before) / (1 << 20)
    (closed,) = (one for one in _view(relay)["destinations"] if one["name"] == "closed")
    found.subscribed_strangers = len(closed["consumers"])


def _view(relay: RunningRelay) -> dict[str, Any]:
    found: dict[str, Any] = relay.get("/api/v1/canal").json()
    return found


def _drain(client: RawClient, timeout: int = -1) -> list[int]:
    keys: list[int] = []
    while (batch := client.get(1, timeout)).id > 0:
        keys += batch.keys
        client.ack(batch.id)
    return keys


def figures_of(found: Findings) -> Sequence[Figure]:
    """Return the figures of a run."""
    name = f"{found.frames} malformed frames of Canal, {found.connections} connections"
    return [
        Figure(f"{name}: relay died", found.has_died, "times", at_most(0)),
        Figure(f"{name}: strangers subscribed", found.subscribed_strangers, "", at_most(0)),
        Figure(f"{name}: rows lost to a client", found.lost, "rows", at_most(0)),
        Figure(f"{name}: memory grown", found.grown_mib, "MiB", at_most(64)),
    ]


@click.command()
@click.option("--frames", "count", default=FRAMES, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(count: int, seed: int) -> None:
    """Send malformed frames; exit 1 if a promise is broken."""
    found = measure(count, seed)
    print(f"seed {seed}: {found}")
    publish("canal_fuzz", list(figures_of(found)))
    raise SystemExit(found.problems > 0)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.canal_clients.fuzz")
