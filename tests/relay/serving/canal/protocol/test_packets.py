"""Frames and messages: the bytes that stock clients take, and what is refused of strangers."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, strategies as st

from databus.relay.serving.canal.protocol.packets import (
    NO_BATCH,
    FrameReader,
    PacketType,
    failure,
    handshake,
    messages,
    read_auth,
    read_packet,
    read_request,
    success,
)
from databus.relay.serving.protobuf import bytes_field, number_field, text_field
from databus.schemas.errors import ProtocolError


def test_what_is_sent_is_what_stock_clients_take() -> None:
    assert handshake(bytes(range(1, 9))).hex() == "00000010100118012a0a12080102030405060708"
    assert success().hex() == "0000000410011803"
    assert failure(401, "x").hex() == "0000000c100118032a06089103120178"
    assert messages(NO_BATCH, ()).hex() == "00000011100118072a0b08ffffffffffffffffff01"


def test_a_packet_of_a_client_is_read() -> None:
    get = text_field(1, "example") + text_field(2, "1001") + number_field(3, 1000)
    get += number_field(4, -1) + number_field(5, -1) + number_field(6, 0)
    packet = read_packet(number_field(3, PacketType.GET) + bytes_field(5, get))
    assert packet.kind == PacketType.GET
    request = read_request(packet.body)
    assert request[:5] == ("example", "1001", 1000, -1, -1)
    assert read_request(b"") == ("", "", 0, 0, 0, "")


def test_a_login_is_read() -> None:
    body = text_field(1, "canal") + bytes_field(2, b"\xff") + number_field(3, 10)
    auth = read_auth(body + text_field(7, ".*"))
    assert auth == ("canal", b"\xff", 10, 0, "", "", ".*")


@pytest.mark.parametrize("length", [-1, 4097, -(1 << 31), (1 << 31) - 1])
def test_a_length_that_no_client_sends_is_refused(length: int) -> None:
    frames = FrameReader(4096)
    frames.receive(struct.pack(">i", length))
    with pytest.raises(ProtocolError, match="a client of Canal sends"):
        frames.next_frame()


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 7))
def test_frames_are_cut_however_they_arrive(sent: list[bytes], step: int) -> None:
    data = b"".join(struct.pack(">i", len(one)) + one for one in sent)
    frames, found = FrameReader(), []
    for at in range(0, len(data), step):
        frames.receive(data[at : at + step])
        while (frame := frames.next_frame()) is not None:
            found.append(frame)
    assert found == sent
    assert not frames.is_inside


@given(st.binary(max_size=60))
def test_malformed_messages_are_protocol_errors_and_nothing_else(data: bytes) -> None:
    for read in (read_packet, read_auth, read_request):
        with contextlib.suppress(ProtocolError):
            read(data)


@pytest.mark.parametrize("body", [number_field(1, 5), bytes_field(1, b"\xff"), bytes_field(3, b"")])
def test_a_field_of_another_kind_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_request(body)
