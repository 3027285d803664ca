"""What comes over the network: the relay process stays up, small and quick for the others."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from databus.client.impatient_client import ImpatientClient
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import IncompatibleSchemaError, UnknownSourceError
from tests import PATIENCE_S
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    stream_requests,
    wait_until,
)

IDLE_S = 3.0  # also a busy machine reads a request within that
QUICK_S = 10.0  # for an answer to somebody else, on a busy machine
MIB = 1 << 20


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRelay]:
    """One relay for all of them: what one leaves behind, the next one finds."""
    folder = tmp_path_factory.mktemp("strangers")
    shop = Shop(folder / "shop.db")
    relay = RunningRelay(folder, shop.settings(), http={"idle_connection_s": IDLE_S})
    with running(relay.start()):
        # In many windows, also on a busy machine: an answer ends with a whole one, and only a
        # long answer is more than what the system's buffers take from the relay.
        for begin in range(1, 15001, 1000):
            shop.insert(*range(begin, begin + 1000), note="x" * 1000, each=100)
            wait_until(partial(holds, relay, begin + 999), "the rows")
        yield relay
    shop.close()


def holds(relay: RunningRelay, events: int) -> bool:
    total = relay.get("/containerStats/inbound/events/total").json()
    return bool(total["events"] >= events)


@pytest.fixture(autouse=True)
def _stays_up(relay: RunningRelay) -> Iterator[None]:
    before = psutil.Process(relay.child.pid).num_fds()
    yield
    assert relay.child.exit_code is None
    assert relay.get("/health").status == 200
    assert len(relay.stream(size=20000).body) > 10000
    process = psutil.Process(relay.child.pid)
    wait_until(lambda: process.num_fds() <= before + 1, "the connections' end")


def send(relay: RunningRelay, data: bytes) -> bytes:
    """Send bytes, as many as it takes, and return the answer's beginning."""
    with contextlib.closing(connect(relay)) as sock:
        with contextlib.suppress(OSError):  # it may have answered and gone before the end
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            return sock.recv(1 << 16)
    return b""


def connect(relay: RunningRelay, buffer_bytes: int = 0) -> socket.socket:
    sock = socket.socket()
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", relay.port))
    return sock


def test_garbage_leaves_no_trace(relay: RunningRelay) -> None:
    draw = random.Random(3)
    for size in (1, 10, 100, 1000, 70_000, 3_000_000):
        for _ in range(3):
            send(relay, draw.randbytes(size))
    assert b"400" in send(relay, b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n")


BOMBS = {
    "a long path": b"GET /" + b"a" * (MIB - 100) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a path too long": b"GET /" + b"a" * 3 * MIB + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "many parameters": b"GET /stream?" + b"&a=1" * 250_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "one header many times": b"GET /admin HTTP/1.1\r\nHost: a\r\n"
    + b"a: b\r\n" * 170_000
    + b"\r\n",
    "many headers": b"GET /admin HTTP/1.1\r\nHost: a\r\n"
    + b"".join(b"h%d: b\r\n" % n for n in range(90_000))
    + b"\r\n",
    "a folded header": b"GET /admin HTTP/1.1\r\nHost: a\r\nx: a\r\n"
    + b" b\r\n" * 200_000
    + b"\r\n",
    "many parts": b"POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 900006\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    + b"--x\r\n\r\n" * 100_000
    + b"\r\n--x--",
    "a long disposition": b"POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 800043\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
    b"--x\r\nContent-Disposition: form-data; " + b'a="' + b";" * 799_990 + b"\r\n\r\n\r\n--x--",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=[name.replace(" ", "-") for name in BOMBS])
def test_a_bomb_holds_up_nobody(relay: RunningRelay, bomb: bytes) -> None:
    process = psutil.Process(relay.child.pid)
    rss = process.memory_info().rss
    with contextlib.closing(connect(relay)) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(bomb)
        begin = time.monotonic()
        assert relay.get("/admin").body == b"GOOD"
        assert time.monotonic() - begin < QUICK_S
        assert not sock.recv(1 << 16).startswith(b"HTTP/1.1 5")
    assert process.memory_info().rss - rss < 64 * MIB


def test_clients_that_stop_reading_cost_a_bounded_amount_and_are_dropped(
    relay: RunningRelay,
) -> None:
    process = psutil.Process(relay.child.pid)
    relay.stream(size=16 * MIB)  # so that its pages of the ring are counted before
    rss, requests = process.memory_info().rss, stream_requests(relay)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(contextlib.closing(connect(relay, 4096))) for _ in range(8)]
        for sock in socks:
            asked = "GET /stream?sources=shop.orders&size=16000000&maxev=2 HTTP/1.1\r\nHost: a\r\n"
            # Many requests on one connection: none is looked at before the last is answered.
            sock.sendall(f"{asked}\r\n".encode() * 50)
        begin = time.monotonic()
        # Before the relay has taken them it has no connections either.
        wait_until(lambda: stream_requests(relay) >= requests + 8, "their beginning")
        wait_until(lambda: connections(process) == 0, "their end")
        assert time.monotonic() - begin < 20 * IDLE_S
        # Neither their bodies are kept, nor are the requests behind the first one answered.
        wait_until(lambda: process.memory_info().rss - rss < 34 * MIB, "the memory")
        assert stream_requests(relay) == requests + 8, [
            sock.recv(600).split(b"\r\n\r\n")[0] for sock in socks
        ]


def connections(process: psutil.Process) -> int:
    return sum(1 for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED)


def test_a_held_request_whose_client_goes_away_is_let_go(relay: RunningRelay) -> None:
    newest = Checkpoint.at(relay.max_scn()).to_json()
    target = f"/stream?sources=shop.orders&size=1000&wait=30000&checkPoint={newest}"
    process = psutil.Process(relay.child.pid)
    for _ in range(5):
        with contextlib.closing(connect(relay)) as sock:
            sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            wait_until(lambda: connections(process) == 1, "the connection")
    wait_until(lambda: connections(process) == 0, "its end")


def test_a_client_is_told_of_a_source_that_the_relay_does_not_have(relay: RunningRelay) -> None:
    with pytest.raises(UnknownSourceError, match=r"shop\.nothing.*known: shop\.orders"):
        run_impatiently(relay, "shop.nothing")
    with consuming([relay.url], ["shop.nothing"], Remembering()) as client:
        wait_until(lambda: client.status()[0].problem, "a problem")
        assert "shop.nothing" in (client.status()[0].problem or "")


def test_a_client_is_told_that_it_asks_for_an_scn_in_the_future(relay: RunningRelay) -> None:
    seen = Remembering()
    with consuming([relay.url], ["shop.orders"], seen, start=str(10**15)) as client:
        wait_until(lambda: client.status()[0].problem, "a problem")
        problem = client.status()[0].problem or ""
        assert str(10**15) in problem
        assert "start" in problem
    assert not seen.windows


def test_a_client_is_told_which_field_its_schema_cannot_read(relay: RunningRelay) -> None:
    text = (
        '{"type":"record","name":"orders","namespace":"shop","fields":'
        '[{"name":"id","type":"long"},{"name":"colour","type":"string"}]}'
    )
    with pytest.raises(IncompatibleSchemaError, match="colour"):
        run_impatiently(relay, "shop.orders", reader_schemas={"shop.orders": text})


def warnings_of(relay: RunningRelay) -> list[str]:
    found: list[str] = relay.get("/health").json()["physicalSources"]["shop"]["warnings"]
    return found


def test_a_client_whose_event_cannot_be_sent_is_told_the_setting(
    shop: Shop, tmp_path: Path
) -> None:
    small = RunningRelay(tmp_path, shop.settings(), http={"max_response_bytes": 4096})
    with running(small.start()):
        shop.insert(1, note="x" * 10_000)
        wait_until(lambda: "max_response_bytes is 4096" in str(warnings_of(small)), "a warning")
        (warning,) = warnings_of(small)
        assert "shop.orders: a row of 10" in warning
        seen = Remembering()
        with consuming([small.url], ["shop.orders"], seen) as client:
            wait_until(lambda: client.status()[0].problem, "a problem")
            assert "max_response_bytes" in (client.status()[0].problem or "")


def test_a_client_of_something_that_is_no_relay_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(PATIENCE_S)
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        with consuming([url], ["shop.orders"], Remembering()) as client:
            with contextlib.closing(other.accept()[0]) as answering:
                answering.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            wait_until(lambda: client.status()[0].problem, "a problem")
            assert url in (client.status()[0].problem or "")
            assert client.is_healthy


def run_impatiently(relay: RunningRelay, source: str, **options: object) -> None:
    client = ImpatientClient([relay.url])
    client.register(Remembering(), [source], **options)  # type: ignore[arg-type]
    client.run()
