"""A compressed body is decoded as it arrives, in bounded memory."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

import pytest
from zstandard import ZstdCompressor

from databus.client.puller.transport import Transport
from databus.daemon.http.client import HttpClient
from databus.daemon.http.decoding import BodyDecoder, DecodingError, decode_body
from databus.schemas.errors import ServerError
from tests import PATIENCE_S

MIB = 1 << 20
LIMIT = 4 * MIB


def bomb() -> bytes:
    """Return a few KiB of zstd that stand for a GiB."""
    packing = ZstdCompressor().compressobj()
    return b"".join(packing.compress(bytes(MIB)) for _ in range(1024)) + packing.flush()


def test_pieces_of_any_size_decode_to_the_same_and_frames_of_others_are_skipped() -> None:
    rand = random.Random(5)
    plain = [rand.randbytes(rand.randint(0, 3000)) * rand.randint(1, 300) for _ in range(20)]
    skipped = bytes.fromhex("5d2a4d1803000000") + b"abc"
    data = b"".join(skipped + ZstdCompressor().compress(one) for one in plain)
    for size in (1, 977, len(data)):
        found = bytearray()
        decoder = BodyDecoder(found.extend, 1 << 30)
        for at in range(0, len(data), size):
            decoder.receive(data[at : at + size])
        assert found == b"".join(plain)
        assert decoder.decoded_bytes == len(found)


def test_a_bomb_takes_no_memory() -> None:
    data, taken = bomb(), 0

    def take(piece: bytes) -> None:
        nonlocal taken
        taken += len(piece)

    tracemalloc.start()
    try:
        with pytest.raises(DecodingError, match=f"more than {LIMIT} bytes"):
            BodyDecoder(take, LIMIT).receive(data)
        with pytest.raises(DecodingError, match=f"more than {LIMIT} bytes"):
            decode_body(bytearray(data), LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    finally:
        tracemalloc.stop()
    assert taken <= LIMIT


def test_a_window_that_is_too_large_for_http_is_refused() -> None:
    packing = ZstdCompressor(level=22).compressobj()
    data = packing.compress(bytes(64 * MIB)) + packing.flush()
    with pytest.raises(DecodingError, match="not sound"):
        BodyDecoder(len, 1 << 30).receive(data)


def test_what_the_taker_raises_is_raised() -> None:
    def take(_piece: bytes) -> None:
        raise KeyError("no such row")

    with pytest.raises(KeyError, match="no such row"):
        BodyDecoder(take, LIMIT).receive(ZstdCompressor().compress(b"row"))


GOOD = ZstdCompressor().compress(b"good " * 100)
BODIES = [
    (b"zstd", bomb(), "more than"),
    (b"zstd", b"this is no zstd at all", "not sound"),
    (b"br", b"whatever", "encoded with 'br'"),
    (b"zstd", GOOD[:-1] + b"\xff" * 9, "not sound"),
]


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize(("encoding", "body", "problem"), BODIES, ids=["bomb", "no", "br", "cut"])
def test_a_body_that_is_no_good_is_an_error_of_the_server_and_the_next_one_is_asked_for_plainly(
    encoding: bytes, body: bytes, problem: str, *, is_blocking: bool
) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        asked.append(request.lower())
        sent, coding = body, encoding
        if b"accept-encoding: zstd" not in request.lower():
            sent, coding = b"plain", b"identity"
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %b\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (coding, len(sent)) + sent)
        await writer.drain()
        writer.close()

    async def blocking(url: str) -> None:
        client = HttpClient(
            url,
            connect_timeout_s=PATIENCE_S,
            response_timeout_s=PATIENCE_S,
            max_bytes=LIMIT,
            takes_zstd=True,
        )
        with pytest.raises(DecodingError, match=problem):
            await asyncio.to_thread(client.get, "/x")
        again = await asyncio.to_thread(client.get, "/x")
        assert again.body == b"plain"
        client.close()

    async def ask() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            if is_blocking:
                await blocking(url)
                return
            transport = Transport(PATIENCE_S)
            with pytest.raises(ServerError, match=problem):
                await transport.get(
                    url, "/x", {}, timeout_s=PATIENCE_S, max_bytes=LIMIT, takes_zstd=True
                )
            transport.close()

    asyncio.run(ask())
    assert b"accept-encoding: zstd\r\n" in asked[0]
    assert all(b"zstd" not in request for request in asked[1:])
