"""Bytes to requests: whole ones wherever the chunks end, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.relay.serving.ptubes.http_requests import (
    BadRequestError,
    Request,
    RequestParser,
    response_bytes,
)

STOCK = b'POST /v1/fetchMessages HTTP/1.1\r\ncontent-length: 15\r\n\r\n{"batchSize":1}'
JAVA = (
    b"POST /v1/getServerInfo?a=1&a=2 HTTP/1.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n"
    b"Host: 127.0.0.1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
)


def parse(data: bytes, *cuts: int) -> list[Request]:
    parser, found, begin = RequestParser(1000), [], 0
    for end in (*sorted(cuts), len(data)):
        parser.receive(data[begin:end])
        begin = end
        while (request := parser.next_request()) is not None:
            found.append(request)
    assert parser.held_bytes == 0
    return found


@given(st.lists(st.integers(0, len(STOCK + JAVA) + len(STOCK)), max_size=8))
def test_requests_are_whole_wherever_chunks_end(cuts: list[int]) -> None:
    data = STOCK + JAVA + STOCK
    first, second, third = parse(data, *(min(cut, len(data)) for cut in cuts))
    assert (
        first
        == third
        == Request(
            "POST", "/v1/fetchMessages", {}, {"content-length": "15"}, b'{"batchSize":1}', True
        )
    )
    assert (second.path, second.query, second.body) == ("/v1/getServerInfo", {"a": "2"}, b"{}")
    assert not second.keeps_alive


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"nonsense\r\n\r\n", "no HTTP/1.1 request"),
        (b"POST / HTTP/2.0\r\n\r\n", "no HTTP/1.1 request"),
        (b"x" * 5000, "line is longer"),
        (b"POST /" + b"x" * 5000 + b" HTTP/1.1\r\n\r\n", "line is longer"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 4000, "headers are longer"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1400 + b"\r\n", "headers are longer"),
        (b"POST / HTTP/1.1\r\ncontent-length: 1001\r\n\r\n", "max_request_bytes"),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", "not a number"),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "comes twice"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", "not in chunks"),
        (b"POST / HTTP/1.1\r\nno header\r\n\r\n", "NAME: VALUE"),
        (b"GET http://[/ HTTP/1.1\r\n\r\n", "no path"),
    ],
)
def test_anything_else_is_refused_with_a_reason(data: bytes, text: str) -> None:
    with pytest.raises(BadRequestError, match=text):
        parse(data)


@given(st.binary(max_size=300))
def test_noise_is_refused_or_waited_for(noise: bytes) -> None:
    parser = RequestParser(1000)
    parser.receive(noise)
    try:
        while parser.next_request() is not None:
            pass
    except BadRequestError:
        pass
    assert parser.held_bytes <= len(noise)


def test_a_header_has_one_line_whatever_its_text() -> None:
    data = response_bytes(b"x", headers={"X-Text": "one\r\nSet-Cookie: two é"})
    assert data.count(b"\r\n") == 6
    assert b"\r\nSet-Cookie" not in data
