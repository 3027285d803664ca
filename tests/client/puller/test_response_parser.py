"""Responses in every form that servers of the protocol send, and what is none."""

from __future__ import annotations

from collections.abc import Sequence

import h11
import pytest
from hypothesis import given, strategies as st

from databus.client.puller.response_parser import MAX_HEADER_BYTES, ResponseParser
from databus.daemon.http.chunked_body import MalformedResponseError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=UTF-8\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def read(*parts: bytes, max_bytes: int = 1000) -> tuple[ResponseParser, bytes]:
    connection = h11.Connection(h11.CLIENT, MAX_HEADER_BYTES)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    parser = ResponseParser(connection, max_bytes)
    return parser, b"".join(parser.receive(part) for part in parts if part)


def chunked(pieces: Sequence[bytes], trailers: bytes = b"") -> bytes:
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece]
    return CHUNKED + b"".join(chunks) + b"0\r\n" + trailers + b"\r\n"


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw a response and its body."""
    pieces = draw(st.lists(st.binary(max_size=40), max_size=6))
    body = b"".join(pieces)
    known = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    forms = [chunked(pieces), chunked(pieces, b"x-dbus-error: a.B\r\n"), known]
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    return interim + draw(st.sampled_from(forms)), body


@given(responses(), st.data())
def test_a_response_is_the_same_however_its_bytes_arrive(
    drawn: tuple[bytes, bytes], data: st.DataObject
) -> None:
    sent, body = drawn
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    parser, found = read(*parts)
    assert (found, parser.status, parser.body_bytes) == (body, 200, len(body))
    assert parser.is_whole
    assert parser.may_be_kept
    assert parser.headers["content-type"] == "text/plain; charset=UTF-8"


@given(responses(), st.data())
def test_a_response_that_is_cut_anywhere_is_not_whole(
    drawn: tuple[bytes, bytes], data: st.DataObject
) -> None:
    sent, body = drawn
    cut = data.draw(st.integers(0, len(sent) - 1))
    parser, found = read(sent[:cut])
    assert not parser.close()
    assert body.startswith(found)


def test_a_trailer_is_a_header_that_came_late() -> None:
    parser, _ = read(chunked([b"ab"], b"PhaseCompleted: TRUE\r\nContent-Type: other\r\n"))
    assert parser.headers["phasecompleted"] == "TRUE"
    assert parser.headers["content-type"] == "other"


def test_a_body_without_a_length_lasts_until_the_connection_ends() -> None:
    parser, found = read(b"HTTP/1.0 200 OK\r\n\r\n", b"ab", b"cd")
    assert not parser.is_whole
    assert parser.close()
    assert found == b"abcd"


def test_header_lines_of_one_name_are_joined_and_bare_line_ends_are_read() -> None:
    parser, _ = read(b"HTTP/1.1 204 No Content\nvia: a\nVIA: b\n\n")
    assert parser.headers["via"] == "a,b"
    assert parser.is_whole


@pytest.mark.parametrize("header", [b"Connection: close\r\n", b"connection: CLOSE\r\n"])
def test_a_connection_that_the_server_closes_is_not_kept(header: bytes) -> None:
    parser, _ = read(HEAD + header + b"Content-Length: 0\r\n\r\n")
    assert parser.is_whole
    assert not parser.may_be_kept


@pytest.mark.parametrize(
    ("version", "header", "end", "is_kept"),
    [
        (b"1.1", b"", b"e", True),
        (b"1.1", b"Connection: keep-alive, Close\r\n", b"e", False),
        (b"1.0", b"", b"e", False),
        (b"1.1", b"", b"e!", False),
    ],
    ids=["kept", "closed", "an old server", "bytes behind the end"],
)
def test_a_body_with_a_length_ends_at_it_in_whatever_parts_it_comes(
    version: bytes, header: bytes, end: bytes, is_kept: bool
) -> None:
    head = b"HTTP/%s 200 OK\r\n%sContent-Length: 5\r\n\r\n" % (version, header)
    parser, found = read(head + b"a", b"b", b"cd")
    assert (found, parser.body_bytes, parser.is_whole) == (b"abcd", 4, False)
    assert not parser.may_be_kept
    assert parser.receive(end) == b"e"
    assert (parser.is_whole, parser.may_be_kept) == (True, is_kept)


def test_a_body_with_a_length_is_not_whole_without_its_last_byte() -> None:
    parser, _ = read(HEAD + b"Content-Length: 5\r\n\r\na", b"bc", b"d")
    assert not parser.close()


def test_bytes_behind_the_end_end_the_connection() -> None:
    parser, found = read(chunked([b"ab"]) + b"0\r\n\r\n")
    assert found == b"ab"
    assert not parser.may_be_kept


def test_a_chunk_extension_is_passed_over() -> None:
    assert read(CHUNKED + b"2;a=b\r\nab\r\n0\r\n\r\n")[1] == b"ab"


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"0\r\n\r\nHTTP/1.1 200 OK\r\n", "illegal status line"),
        (b"SSH-2.0-x\r\n\r\n", "illegal status line"),
        (b"HTTP/2 200\r\n\r\n", "illegal status line"),
        (HEAD + b"no header\r\n\r\n", "illegal header line"),
        (HEAD + b": none\r\n\r\n", "illegal header line"),
        (HEAD + b"Content-Length: -1\r\n\r\n", "Content-Length"),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
        (HEAD + b"Transfer-Encoding: gzip\r\n\r\n", "Only Transfer-Encoding: chunked"),
        # An error that is answered in the middle of a body.
        (CHUNKED + b"2\r\nab\r\nHTTP/1.1 500 Internal Server Error\r\n", "illegal chunk header"),
        (CHUNKED + b"2\r\nabHTTP/1.1 500", "malformed chunk footer"),
        (CHUNKED + b"2\r\nab\rHTTP/1.1 500", "malformed chunk footer"),
        (CHUNKED + b"-2\r\nab\r\n", "illegal chunk header"),
        (CHUNKED + b"0\r\nHTTP/1.1 500 Internal Server Error\r\n\r\n", "illegal header line"),
        (CHUNKED + b"3e9\r\n" + bytes(1001), "more than 1000 bytes"),
        (HEAD + b"Content-Length: 1001\r\n\r\n", "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1001), "more than 1000 bytes"),
        (CHUNKED + b"1" * (65 << 10), "Receive buffer too long"),
        (HEAD + b"a: " + b"b" * (65 << 10), "Receive buffer too long"),
        (HEAD + b"a: bbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n" * 3000, "Receive buffer too long"),
    ],
)
def test_what_is_no_response_is_named(sent: bytes, problem: str) -> None:
    with pytest.raises(MalformedResponseError, match=problem):
        read(sent)


def test_h11_reads_nothing_of_plain_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    receive_data = h11.Connection.receive_data

    def see(connection: h11.Connection, data: bytes) -> None:
        seen.append(data)
        receive_data(connection, data)

    monkeypatch.setattr(h11.Connection, "receive_data", see)
    parser, body = read(CHUNKED + b"2\r\na", b"b\r", b"\n3\r\ncde\r\n1", b"\r\nf\r\n0\r\n\r\n")
    assert (body, parser.body_bytes, parser.may_be_kept) == (b"abcdef", 6, True)
    assert seen == [CHUNKED, b"0\r\n\r\n"]


def test_bare_line_ends_before_a_body_are_read_although_it_has_others() -> None:
    head = b"HTTP/1.1 200 OK\nContent-Length: 9\n\n"
    parser, body = read(head + b"ab\r\n\r\ncd", b"e")
    assert (body, parser.may_be_kept) == (b"ab\r\n\r\ncde", True)
