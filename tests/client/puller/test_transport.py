"""The connection to a server: what is left of it, whenever it is let go of."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from pathlib import Path

import pytest

from databus.client.puller.transport import Transport
from databus.schemas.errors import ServerError
from tests import PATIENCE_S

ROUNDS = 600
LONGEST_S = 0.003  # a connection to this machine is there before


def open_sockets() -> set[str]:
    """Return the sockets that this process has, by the system's names for them."""
    found = set()
    for number in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(number.readlink()))
    return {name for name in found if name.startswith("socket:")}


async def cancelled_after(port: int, seconds: float) -> None:
    transport = Transport(PATIENCE_S)
    asked = transport.get(
        f"http://127.0.0.1:{port}", "/x", {}, timeout_s=PATIENCE_S, max_bytes=1000
    )
    task = asyncio.ensure_future(asked)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    transport.close()


def test_a_request_that_is_cancelled_while_it_connects_leaves_no_connection_open() -> None:
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
        before = open_sockets()
        for _ in range(ROUNDS):
            asyncio.run(cancelled_after(server.getsockname()[1], draw.random() * LONGEST_S))
        assert open_sockets() == before, f"seed {seed}"


def test_a_path_goes_behind_that_of_the_servers_url() -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            transport = Transport(PATIENCE_S)
            url = f"http://127.0.0.1:{port}/behind/proxy/"
            await transport.get(url, "/x", {"n": "1"}, timeout_s=PATIENCE_S, max_bytes=1000)
            transport.close()

    asyncio.run(ask())
    assert asked[0].startswith(b"GET /behind/proxy/x?n=1 HTTP/1.1\r\nHost: 127.0.0.1:")


def test_an_address_that_refuses_is_named_with_the_systems_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with pytest.raises(ServerError, match=r"cannot connect: .*refused"):
        asyncio.run(Transport(PATIENCE_S).get(url, "/x", {}, timeout_s=PATIENCE_S, max_bytes=1000))


def test_the_next_address_of_a_name_is_asked_when_one_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`localhost` has an address of each kind, and a server often listens on one of them."""

    async def two(*_: object, **__: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", closed)), (*kind, ("127.0.0.1", port))]

    async def asked() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
        transport = Transport(PATIENCE_S)
        with pytest.raises(ServerError, match="no whole answer"):  # it is connected, and silent
            await transport.get("http://shop:1", "/x", {}, timeout_s=1.0, max_bytes=1000)

    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asyncio.run(asked())


def test_bytes_that_no_request_asked_for_are_not_taken_for_an_answer() -> None:
    sent = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood")
        await asyncio.sleep(0.02)  # the answer is read by then
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
        sent.set()
        await reader.read()
        writer.close()

    async def ask() -> list[bytes]:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            transport = Transport(PATIENCE_S)
            found = []
            for _ in range(2):
                found.append(
                    await transport.get(url, "/x", {}, timeout_s=PATIENCE_S, max_bytes=1000)
                )
                await sent.wait()
                await asyncio.sleep(0.1)  # they have come by then
            transport.close()
            return [one.body for one in found]

    assert asyncio.run(ask()) == [b"good", b"good"]
