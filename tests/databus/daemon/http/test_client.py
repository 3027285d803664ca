"""The blocking HTTP client: one connection that is kept, whole responses, bounded ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from zstandard import COMPRESSOBJ_FLUSH_BLOCK, ZstdCompressor

from databus.daemon.http.client import FAILURES, HttpClient
from tests import PATIENCE_S

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Name: v\r\n\r\nok"
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n2\r\nay\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Name: v\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
FAILED = (
    b"HTTP/1.1 200 OK\r\nX-Name: before\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nok\r\n0\r\nX-Error: bad\r\nX-Name: after\r\n\r\n"
)
REFUSED = b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"


class Served:
    """What a server of canned responses was asked, connection by connection."""

    def __init__(self) -> None:
        self.requests: list[list[bytes]] = []
        self.url = ""


@contextmanager
def serving(*connections: Sequence[bytes]) -> Iterator[Served]:
    """Answer each connection's requests with these bytes, then close it."""
    served = Served()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def answer() -> None:
            for responses in connections:
                link, _ = listener.accept()
                served.requests.append([])
                with link:
                    for response in responses:
                        served.requests[-1].append(link.recv(65536))
                        link.sendall(response)

        thread = threading.Thread(target=answer)
        thread.start()
        yield served
        thread.join(PATIENCE_S)


def client_of(served: Served, max_bytes: int = 100, **options: Any) -> closing[HttpClient]:
    client = HttpClient(
        served.url,
        connect_timeout_s=PATIENCE_S,
        response_timeout_s=PATIENCE_S,
        max_bytes=max_bytes,
        **options,
    )
    return closing(client)


def test_requests_share_a_connection_and_parameters_are_quoted() -> None:
    with serving([OK, OK]) as served, client_of(served, headers={"X-Mine": "1"}) as client:
        first = client.get("/a", {"checkPoint": '{"a b":1}'})
        second = client.get("/b")
    assert (first.status, first.reason, bytes(first.body)) == (200, "OK", b"ok")
    assert (first.headers["x-name"], second.status) == ("v", 200)
    ((asked, again),) = served.requests
    assert asked.startswith(b"GET /a?checkPoint=%7B%22a+b%22%3A1%7D HTTP/1.1\r\n")
    assert again.startswith(b"GET /b HTTP/1.1\r\n")
    assert b"X-Mine: 1\r\n" in asked


def test_a_path_goes_behind_that_of_the_url() -> None:
    with serving([OK]) as served:
        served.url += "/behind/proxy/"
        with client_of(served) as client:
            client.get("/a", {"n": "1"})
    assert served.requests[0][0].startswith(b"GET /behind/proxy/a?n=1 HTTP/1.1\r\n")


def test_a_kept_connection_that_the_server_closed_is_opened_again_once() -> None:
    with serving([OK], [OK]) as served, client_of(served) as client:
        assert client.get("/a").status == 200
        assert client.get("/b").status == 200
    assert [len(requests) for requests in served.requests] == [1, 1]


def test_a_new_connection_that_breaks_is_not_tried_again() -> None:
    with serving([b""]) as served, client_of(served) as client, pytest.raises(FAILURES):
        client.get("/a")
    assert len(served.requests) == 1


@pytest.mark.parametrize(("max_bytes", "is_read"), [(4, True), (3, False)])
def test_a_response_without_a_length_is_read_up_to_the_limit(max_bytes: int, is_read: bool) -> None:
    with serving([CHUNKED]) as served, client_of(served, max_bytes) as client:
        if is_read:
            assert bytes(client.get("/a").body) == b"okay"
        else:
            with pytest.raises(ValueError, match="more than 3 bytes"):
                client.get("/a")


def test_trailers_count_as_headers_and_the_connection_is_kept() -> None:
    with serving([FAILED, OK]) as served, client_of(served) as client:
        failed, good = client.get("/a"), client.get("/b")
    assert (bytes(failed.body), failed.headers["x-error"]) == (b"ok", "bad")
    assert failed.headers["x-name"] == "after"
    assert (bytes(good.body), "x-error" in good.headers) == (b"ok", False)
    assert len(served.requests) == 1


@pytest.mark.parametrize("response", [OK, CHUNKED, FAILED, LAST, EMPTY])
def test_a_response_that_is_cut_anywhere_is_a_failure(response: bytes) -> None:
    for end in range(len(response)):
        served = serving([response[:end]])
        with served as server, client_of(server) as client, pytest.raises(FAILURES):
            client.get("/a")


def test_trailers_without_end_are_a_failure() -> None:
    many = FAILED[:-2] + b"X-More: 1\r\n" * 10_000
    with serving([many]) as served, client_of(served) as client, pytest.raises(FAILURES):
        client.get("/a")


def test_a_response_that_is_too_long_or_cut_is_a_failure() -> None:
    too_long = pytest.raises(ValueError, match="2 bytes; at most 1")
    with serving([OK]) as served, client_of(served, 1) as client, too_long:
        client.get("/a")
    cut = pytest.raises(ConnectionError, match="7 bytes before its end")
    with serving([HALF]) as served, client_of(served) as client, cut:
        client.get("/a")


@pytest.mark.parametrize(("first", "status"), [(REFUSED, 401), (LAST, 200)])
def test_after_a_401_and_on_each_new_connection_the_credentials_are_asked_for_again(
    first: bytes, status: int
) -> None:
    class Tokens:
        def __init__(self) -> None:
            self.left = ["old", "new"]

        def headers(self) -> dict[str, str]:
            return {"Authorization": self.left.pop(0)}

        def tls(self) -> Any:
            raise AssertionError("no TLS at http://")

    with serving([first], [OK]) as served, client_of(served, credentials=Tokens()) as client:
        assert client.get("/a").status == status
        assert client.get("/a").status == 200
    (before,), (after,) = served.requests
    assert b"Authorization: old\r\n" in before
    assert b"Authorization: new\r\n" in after


@pytest.mark.parametrize("url", ["localhost:80", "ftp://a", "http://", "http://a:port"])
def test_what_is_no_url_is_a_failure(url: str) -> None:
    served = Served()
    served.url = url
    with client_of(served) as client, pytest.raises(ValueError, match=r"URL|Port|port"):
        client.get("/a")


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def sending(*pieces: bytes) -> Iterator[tuple[HttpClient, Callable[[], None]]]:
    """Answer a request with pieces, one a call of the function; after the last one, close."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        options: dict[str, Any] = {
            "connect_timeout_s": PATIENCE_S,
            "response_timeout_s": PATIENCE_S,
        }
        left = list(pieces)
        links: list[socket.socket] = []

        def send() -> None:
            if not links:
                links.append(listener.accept()[0])
                links[0].recv(65536)
            links[0].sendall(left.pop(0))
            if not left:
                links[0].close()

        with closing(HttpClient(url, max_bytes=100, takes_zstd=True, **options)) as client:
            first = threading.Thread(target=send)
            first.start()
            yield client, send
            first.join(PATIENCE_S)
            for link in links:
                link.close()


def test_parts_of_an_open_response_come_when_they_are_whole() -> None:
    with sending(HEAD + b"2\r\nok\r\n1", b"\r\na\r\n", b"0\r\n\r\n") as (client, send):
        opened = client.open("/a")
        assert opened.is_chunked
        send()
        assert bytes(opened.next_part()) == b"oka"
        send()
        assert opened.next_part() == opened.next_part() == b""


def test_the_next_request_goes_over_the_connection_of_an_open_response_that_has_ended() -> None:
    with serving([CHUNKED, OK]) as served, client_of(served) as client:
        opened = client.open("/a")
        assert bytes(opened.next_part() + opened.next_part()) == b"okay"
        assert bytes(client.get("/b").body) == b"ok"
    assert len(served.requests) == 1


def test_an_open_response_may_be_read_whole() -> None:
    with serving([OK, CHUNKED]) as served, client_of(served) as client:
        assert not (opened := client.open("/a")).is_chunked
        assert bytes(opened.read().body) == b"ok"
        assert bytes(client.open("/a").read().body) == b"okay"


def test_parts_are_decoded_as_they_come() -> None:
    packer = ZstdCompressor().compressobj()
    parts = [packer.compress(b"x" * n) + packer.flush(COMPRESSOBJ_FLUSH_BLOCK) for n in (30, 40)]
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: zstd\r\n\r\n")
    with sending(head + chunks[0], chunks[1] + b"0\r\n\r\n") as (client, send):
        opened = client.open("/a")
        assert bytes(opened.next_part()) == b"x" * 30
        send()
        assert bytes(opened.next_part()) == b"x" * 40
        assert opened.next_part() == b""


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (b"2\r\nokay", "footer"),
        (b"nonsense", "something else"),
        (b"2\r\no", "Incomplete"),
        (b"", "Incomplete"),
    ],
)
def test_a_body_that_is_cut_or_malformed_fails_and_so_does_a_long_one(
    rest: bytes, problem: str
) -> None:
    with sending(HEAD + rest) as (client, _), pytest.raises(FAILURES, match=problem):
        client.open("/a").next_part()
    with sending(HEAD + b"c8\r\n" + bytes(150)) as (client, _), pytest.raises(FAILURES):
        client.open("/a").next_part()
