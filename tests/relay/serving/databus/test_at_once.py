"""Windows that are there are sent without a handler; everything else is a handler's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from databus.relay.monitoring.clients import Client
from databus.relay.ring.check import RingCheck
from databus.relay.serving.databus.handlers import StreamHandler
from databus.schemas.stream.stream_reader import walk
from tests.relay.fakes import (
    Answer,
    ServedRelay,
    connect,
    get,
    insert,
    post,
    transaction,
    wait_until,
)

ALL = "/stream?sources=1,2&size=1000000&maxev=2&truncate=true"
AT_5 = '&checkPoint={"consumption_mode":"ONLINE_CONSUMPTION","windowScn":5,"windowOffset":-1}'
FILTER = '&filters={"1":{"partitionType":"RANGE","filters":[{"keyRange":{"start":7,"end":8}}]}}'
NAMED = {"x-databus-client": "reader"}


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the requests that a handler is made for."""
    found: list[str] = []
    prepare = StreamHandler.prepare

    def note(handler: StreamHandler) -> None:
        found.append(str(handler.request.uri))
        prepare(handler)

    monkeypatch.setattr(StreamHandler, "prepare", note)
    return found


def put(relay: ServedRelay, last: int) -> None:
    relay.put(*(transaction(scn, insert(scn)) for scn in range(1, last + 1)))


def scns(body: bytes) -> list[int]:
    return [event.scn for event in walk(body) if event.is_eop]


def lines_of(answer: Answer) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.headers.items() if name != "Date"}


def client_of(relay: ServedRelay) -> Client:
    found = relay.relay.monitor.clients.get("reader")
    assert found is not None
    return found


def test_the_answer_is_the_one_that_a_handler_gives(relay: ServedRelay, handled: list[str]) -> None:
    put(relay, 5)
    ours = get(relay.url, ALL)
    assert not handled
    theirs = post(relay.url, ALL, {"Connection": "close"})
    assert handled == [ALL]
    assert scns(ours.body) == [1, 2, 3, 4, 5]
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    assert lines_of(ours) == lines_of(theirs)
    assert "Date" in ours.headers


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        (ALL + AT_5, {}),  # nothing has come yet
        (ALL + AT_5 + "&wait=50", {}),
        (ALL + "&follow=true&wait=50", {}),  # goes on with what comes
        (ALL + "&output=json", {}),
        (ALL + "&ddl=false" + FILTER, {}),
        (ALL.replace("1,2", "1"), {}),  # a part of the sources
        (ALL.replace("1000000", "300"), {}),  # a part of a window
        (ALL, {"Accept-Encoding": "gzip"}),
        (ALL + "&size=oops", {}),
        (ALL + AT_5.replace("5", "0", 1), {}),
        (ALL, {"Origin": "http://example.com"}),
    ],
)
def test_what_cannot_be_sent_at_once_is_answered_and_counted_once(
    relay: ServedRelay, handled: list[str], target: str, headers: dict[str, str]
) -> None:
    rows = [insert(n) for n in range(1, 10)]
    relay.put(*(transaction(scn, *rows) for scn in range(1, 6)))
    assert get(relay.url, target, NAMED | headers).status
    assert handled == [target]
    for client in relay.relay.monitor.clients:  # none if it was refused
        assert client.requests == 1
        wait_until(lambda client=client: client.open_requests == 0)  # type: ignore[misc]


def test_a_client_and_what_it_got_are_counted(relay: ServedRelay, handled: list[str]) -> None:
    put(relay, 5)
    answer = get(relay.url, ALL, NAMED)
    client = client_of(relay)
    wait_until(lambda: client.open_requests == 0)
    assert client.requests == 1
    assert client.served_bytes == len(answer.body) == relay.relay.traffic.stream_bytes
    ((name, stream),) = client.all_streams()
    assert (name, stream.scn, stream.position, stream.read_from) == ("shop", None, 0, 0)
    assert stream.read_until == len(answer.body)
    assert relay.relay.traffic.stream_requests == 1
    assert not handled


def test_windows_that_are_asked_for_again_are_checked_again(
    relay: ServedRelay, handled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    doubted: list[tuple[int, int]] = []
    monkeypatch.setattr(RingCheck, "distrust", lambda _, *place: doubted.append(place))
    put(relay, 5)
    size_bytes = len(get(relay.url, ALL, NAMED).body)
    assert not handled
    assert len(get(relay.url, ALL, NAMED).body) == size_bytes
    assert handled == [ALL]
    assert doubted == [(0, size_bytes)]


def test_before_the_newest_window_an_answer_does_not_go_on(
    relay: ServedRelay, handled: list[str]
) -> None:
    put(relay, 50)
    target = ALL.replace("1000000", "2000") + "&follow=true&wait=20000"
    answer = get(relay.url, target)
    assert not handled
    assert 1 <= len(scns(answer.body)) < 50


def test_without_the_token_nothing_is_sent(tmp_path: Path, handled: list[str]) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("open-sesame-0123456789\n")
    tokens.chmod(0o600)
    relay = ServedRelay(tmp_path, http={"port": 0, "reader_tokens_file": str(tokens)})
    try:
        put(relay, 5)
        assert get(relay.url, ALL).status == 401
        assert handled == [ALL]
        known = {"Authorization": "Bearer open-sesame-0123456789"}
        assert scns(get(relay.url, ALL, known).body) == [1, 2, 3, 4, 5]
        assert handled == [ALL]
    finally:
        relay.close()


def test_a_client_that_needs_schemas_is_a_handler_s(relay: ServedRelay, handled: list[str]) -> None:
    put(relay, 5)
    with connect(relay.url) as sock:
        sock.sendall(b"GET /register?sources=1,2 HTTP/1.1\r\nHost: a\r\n\r\n")
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += sock.recv(1 << 16)
        sock.sendall(f"GET {ALL} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert handled == [ALL]


def test_a_slow_client_gets_all_of_a_large_answer_and_others_are_served_meanwhile(
    relay: ServedRelay, handled: list[str]
) -> None:
    rows = [insert(n, "x" * 1000) for n in range(1000)]
    relay.put(*(transaction(scn, *rows) for scn in range(1, 9)))
    target = ALL.replace("1000000", "8000000")
    with connect(relay.url) as sock:
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        wait_until(lambda: len(relay.relay.monitor.clients) > 0)
        (client,) = relay.relay.monitor.clients
        assert client.open_requests == 1
        assert scns(get(relay.url, ALL.replace("1000000", "2000000"), NAMED).body) == [1]
        received = bytearray()
        while piece := sock.recv(1 << 16):
            received += piece
    assert not handled
    _, _, body = received.partition(b"\r\n\r\n")
    size, _, rest = bytes(body).partition(b"\r\n")
    assert scns(rest[: int(size, 16)]) == [1, 2, 3, 4, 5, 6, 7]
    assert rest[int(size, 16) :] == b"\r\n0\r\n\r\n"
    wait_until(lambda: client.open_requests == 0)


def test_a_client_that_does_not_read_ends_with_the_relay(
    tmp_path: Path, handled: list[str]
) -> None:
    relay = ServedRelay(tmp_path)
    try:
        rows = [insert(n, "x" * 1000) for n in range(1000)]
        relay.put(*(transaction(scn, *rows) for scn in range(1, 9)))
        with connect(relay.url) as sock:
            target = ALL.replace("1000000", "9000000")
            sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            wait_until(lambda: len(relay.relay.monitor.clients) > 0)
            (client,) = relay.relay.monitor.clients
            assert client.open_requests == 1
            relay.close()
            assert client.open_requests == 0
    finally:
        relay.close()
    assert not handled


def test_many_readers_at_once_get_the_same(relay: ServedRelay, handled: list[str]) -> None:
    put(relay, 200)
    bodies: list[bytes] = []
    together = threading.Barrier(40)

    def read(reader: int) -> None:
        together.wait()
        for time in range(5):
            name = {"x-databus-client": f"reader-{reader}-{time}"}
            bodies.append(get(relay.url, ALL, name).body)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bodies) == 200
    (body,) = set(bodies)
    assert scns(body) == list(range(1, 201))
    assert not handled
    wait_until(lambda: all(one.open_requests == 0 for one in relay.relay.monitor.clients))
