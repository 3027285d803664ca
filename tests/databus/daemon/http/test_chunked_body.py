"""Plain chunks in whatever pieces they arrive, and what is left to h11 behind them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from databus.daemon.http.chunked_body import ChunkedBody, MalformedResponseError


def read(*pieces: bytes) -> tuple[bytes, bytes]:
    """Return the body of the pieces, and what is behind the chunks."""
    body, chunks, rest = b"", ChunkedBody(), b""
    for piece in pieces:
        if rest:  # h11's from there on
            rest += piece
            continue
        part, rest = chunks.receive(piece)
        body += part
    return body, rest


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.sampled_from([b"0\r\n\r\n", b"0\r\na: b\r\n\r\n", b"2;a=b\r\n", b"HTTP/1.1 500\r\n"]),
    st.data(),
)
def test_chunks_are_read_however_they_arrive_and_all_else_is_left(
    parts: list[bytes], behind: bytes, data: st.DataObject
) -> None:
    sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + behind
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    assert read(*pieces) == (b"".join(parts), behind)


@pytest.mark.parametrize(
    "pieces", [(b"2\r\nabc\r\n",), (b"2\r\nab\r", b"3\r\n"), (b"1\r\na", b"b")]
)
def test_a_chunk_without_its_end_is_malformed(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(MalformedResponseError, match="malformed chunk footer"):
        read(*pieces)


def test_a_piece_inside_a_chunk_is_not_copied() -> None:
    chunks, piece = ChunkedBody(), bytes(1000)
    chunks.receive(b"7d0\r\n")
    assert chunks.receive(piece)[0] is piece


@pytest.mark.parametrize("line", [b"123456789", b"g", b"1\n", b"-1", b"\r\n", b" 1"])
def test_what_cannot_begin_a_chunk_is_left_at_once(line: bytes) -> None:
    assert read(line) == (b"", line)
