"""Every process of a relay gives the same answers, and counts for all of them."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path

import pytest

from databus.schemas.checkpoint import Checkpoint
from tests import PATIENCE_S
from tests.promises.running import (
    Answer,
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    wait_until,
)
from tests.promises.serving.processes import (
    KeptConnection,
    ask_capturer,
    metric,
    rows_in,
    serving_pids,
    stream_path,
)

PATHS = (
    "/sources",
    "/register",
    "/register?sources=1",
    "/physicalSources",
    "/bufferInfo/inbound/shop/0",
    "/bufferInfo/inbound/other/0",
    "/measure?sources=shop.orders&rows=2&checkPoint={}",
    "/segments?sources=shop.orders",
    "/relayCommand/getPrevScn",
    "/relayCommand/saveMetaState",
    "/controlSources/nothing",
    "/admin",
    "/",
    "/no/such/path",
    "/stream?sources=nobody",
    "/stream?sources=1&checkPoint=nonsense",
    stream_path(),
    stream_path(size=600),
    stream_path(Checkpoint.at(1)),
    stream_path(Checkpoint.at(1 << 40)),
    stream_path(filters='{"1":{"type":"MOD","props":{"numBuckets":2,"buckets":[1]}}}'),
    stream_path(maxev=1),
    stream_path(output="json"),
)


@pytest.fixture
def filled(served: RunningRelay, shop: Shop) -> RunningRelay:
    shop.insert(*range(20))
    wait_until(lambda: rows_in(served) == 20, "the rows", served.tell)
    return served


def test_a_serving_process_answers_as_the_capturing_one_does(filled: RunningRelay) -> None:
    for path in PATHS:
        for _ in range(4):  # by whichever process
            here, there = filled.get(path), ask_capturer(filled, path)
            assert (here.status, here.body) == (there.status, there.body), path
            assert headers_of(here) == headers_of(there), path


def headers_of(answer: Answer) -> dict[str, str]:
    """Return the headers but for the date; case means nothing in their names."""
    return {name.lower(): value for name, value in answer.headers.items() if name != "Date"}


def test_answers_of_one_connection_come_one_after_the_other(filled: RunningRelay) -> None:
    connection = KeptConnection(filled)
    for path in PATHS:
        assert connection.get(path).status == ask_capturer(filled, path).status, path
    connection.close()


def test_an_http_1_0_client_gets_a_length(filled: RunningRelay) -> None:
    with socket.create_connection(("127.0.0.1", filled.port), timeout=PATIENCE_S) as raw:
        raw.sendall(b"GET /sources HTTP/1.0\r\nHost: localhost\r\n\r\n")
        received = b"".join(iter(lambda: raw.recv(1 << 16), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n"


def test_a_held_request_is_answered_when_a_row_comes(filled: RunningRelay, shop: Shop) -> None:
    newest = filled.max_scn()
    answers = []

    def hold() -> None:
        answers.append(filled.get(stream_path(Checkpoint.at(newest), wait=25_000)))

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()

    def held() -> float:
        return metric(filled, 'databus_relay_held_requests{physical_source="shop"}')

    wait_until(lambda: held() == 8, "eight held requests", filled.tell)
    began = time.monotonic()
    shop.insert(1000)
    for thread in threads:
        thread.join()
    assert [len(one.body) > 100 for one in answers] == [True] * 8
    assert time.monotonic() - began < 25  # the time for which they were held
    wait_until(lambda: held() == 0, "none held", filled.tell)


def test_all_readers_are_counted_with_their_places(filled: RunningRelay, shop: Shop) -> None:
    seen = [Remembering() for _ in range(4)]
    for number, one in enumerate(seen):
        with consuming([filled.url], ["shop.orders"], one, name=f"reader-{number}"):
            wait_until(lambda s=one: len(s.events) == len(shop.rows()), "all rows")  # type: ignore[misc]

            def is_shown(name: str = f"reader-{number}") -> bool:
                clients = filled.get("/api/v1/clients").json()["clients"]
                return any(c["name"] == name and c["servedBytes"] > 0 for c in clients)

            wait_until(is_shown, f"reader-{number} in /api/v1/clients", filled.tell)
    total = filled.get("/containerStats/outbound/http/total").json()
    assert total["bytes"] > 0
    assert total["streamRequests"] > 0


def test_connections_of_all_processes_are_in_the_metrics(filled: RunningRelay) -> None:
    open_ones = [KeptConnection(filled) for _ in range(6)]
    for one in open_ones:
        assert one.get("/sources").status == 200

    wait_until(
        lambda: metric(filled, "databus_http_connections") >= 6, "six connections", filled.tell
    )
    for one in open_ones:
        one.close()


def test_tokens_and_admin_commands_hold_in_every_process(shop: Shop, tmp_path: Path) -> None:
    for name, token in (("readers", "r" * 20), ("admins", "a" * 20)):
        (tmp_path / name).write_text(token + "\n")
        (tmp_path / name).chmod(0o600)
    http = {
        "reader_tokens_file": str(tmp_path / "readers"),
        "admin_tokens_file": str(tmp_path / "admins"),
    }
    relay = RunningRelay(tmp_path, shop.settings(), http=http, serving_processes=2)
    reader, admin = ({"Authorization": f"Bearer {letter * 20}"} for letter in "ra")
    with running(relay):
        relay.launch()
        wait_until(lambda: _answers(relay), "an answer", relay.child.log_tail)
        shop.insert(1)
        for _ in range(6):
            assert relay.get(stream_path()).status == 401
            assert relay.get("/sources").status == 401
            assert relay.get(stream_path(), reader).status == 200
            assert relay.post("/controlSources/pause", reader).status == 403
        assert relay.post("/controlSources/pause", admin).status == 200
        assert relay.get("/controlSources/status", reader).json()["shop"]["state"] == "paused"
        # Nobody says of himself where he comes from.
        liar = reader | {"X-Real-Ip": "10.9.8.7", "X-Databus-Client": "liar"}
        assert relay.get(stream_path(), liar).status == 200
        wait_until(lambda: b"liar" in relay.get("/api/v1/clients", reader).body, "the liar")
        assert b"10.9.8.7" not in relay.get("/api/v1/clients", reader).body


def test_tokens_are_read_again_in_every_process(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "readers"
    file.touch(0o600)
    file.write_text("o" * 20)
    relay = RunningRelay(
        tmp_path, shop.settings(), http={"reader_tokens_file": str(file)}, serving_processes=2
    )
    old, new = ({"Authorization": f"Bearer {letter * 20}"} for letter in "on")
    with running(relay):
        relay.launch()
        wait_until(lambda: _answers(relay), "an answer", relay.child.log_tail)
        assert relay.get(stream_path(), old).status == 200
        file.write_text("n" * 20)
        os.kill(relay.child.pid, signal.SIGHUP)

        def answers() -> set[tuple[int, int]]:
            return {
                (relay.get(path, old).status, relay.get(path, new).status)
                for path in (stream_path(), "/sources") * 4
            }

        wait_until(lambda: answers() == {(401, 200)}, "the new token alone", relay.child.log_tail)


def _answers(relay: RunningRelay) -> bool:
    try:
        return relay.get("/admin").status == 200
    except OSError:
        return False


def test_the_private_socket_is_for_its_user_alone(served: RunningRelay) -> None:
    mode = (served.data_dir / "serving.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_a_second_relay_on_the_port_ends_at_once(
    served: RunningRelay, shop: Shop, tmp_path: Path
) -> None:
    other = RunningRelay(
        tmp_path / "other", shop.settings(), http={"port": served.port}, serving_processes=2
    )
    with running(other):
        other.launch()
        assert other.end() != 0
        assert "in use" in other.child.log_tail()
    assert len(serving_pids(served)) == 2
