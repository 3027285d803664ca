"""What is encoded is what is decoded, each part as soon as it has come."""

from __future__ import annotations

from random import Random

from hypothesis import given, strategies as st

from databus.daemon.http.decoding import BodyDecoder, decode_body
from databus.daemon.http.encoding import BodyEncoder, encode_body

WORDS = [b"a row ", bytes(40), bytes(range(256)), b"databus"]
PARTS = st.builds(
    lambda seed, size: Random(seed).choices(WORDS, k=size), st.integers(0, 99), st.integers(1, 9999)
).map(b"".join)


@given(st.lists(PARTS, max_size=6), st.integers(1, 4))
def test_all_parts_are_decoded_when_they_have_come(parts: list[bytes], together: int) -> None:
    encoder, found, sent = BodyEncoder(), bytearray(), bytearray()
    decoder = BodyDecoder(found.extend, 1 << 30)
    for at in range(0, len(parts), together):
        encoded = b"".join(map(encoder.encode, parts[at : at + together]))
        sent += encoded
        decoder.receive(encoded)
        assert bytes(found) == b"".join(parts[: at + together])
    sent += encoder.end()
    assert bytes(decode_body(sent, 1 << 30)) == b"".join(parts)


@given(st.lists(st.binary(min_size=1, max_size=2000), max_size=8))
def test_each_part_is_decoded_when_it_has_come(parts: list[bytes]) -> None:
    encoder, found, sent = BodyEncoder(), bytearray(), bytearray()
    decoder = BodyDecoder(found.extend, 1 << 20)
    for number, part in enumerate(parts, 1):
        sent += (encoded := encoder.encode(part))
        decoder.receive(encoded)
        assert bytes(found) == b"".join(parts[:number])
    sent += encoder.end()
    assert bytes(decode_body(sent, 1 << 20)) == b"".join(parts)


def test_a_part_like_the_one_before_it_costs_little() -> None:
    encoder, part = BodyEncoder(), bytes(range(256)) * 2
    first, second = encoder.encode(part), encoder.encode(part)
    assert len(second) < len(first) / 4


@given(st.binary(max_size=5000))
def test_a_whole_body_is_decoded(body: bytes) -> None:
    assert bytes(decode_body(bytearray(encode_body(body)), 1 << 20)) == body
