"""Ends that a Netty 3 relay makes when it is stopped, or fails, in the middle of a body."""

from __future__ import annotations

import struct
from socket import SO_LINGER, SOL_SOCKET

from tests.promises.stock_databus.stock_relay import Connection


def begin(to: Connection, body: bytes) -> None:
    """Send the first half of a body."""
    to.send_head(Transfer_Encoding="chunked")
    to.send_chunk(body[: len(body) // 2])


def end_after_a_chunk(to: Connection, body: bytes) -> bool:
    begin(to, body)
    return False


def end_inside_a_chunk(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send(b"%x\r\n%s" % (1000, body[len(body) // 2 :][:10]))
    return False


def end_inside_a_size(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send(b"3")
    return False


def reset(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.request.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    return False


def answer_again(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send_error("java.nio.channels.ClosedChannelException", "stopped")
    return False


def answer_again_and_stay(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send_error("java.util.concurrent.TimeoutException", "too late")
    return True


def error_behind_the_body(to: Connection, body: bytes) -> bool:
    begin(to, body)
    error = b"com.linkedin.databus2.core.container.request.RequestProcessingException"
    to.send(b"0\r\nx-databus-response-code: 500\r\nx-dbus-error: %s\r\n" % error)
    to.send(b"x-dbus-error-cause: java.lang.IllegalStateException\r\n\r\n")
    return True


def end_twice(to: Connection, body: bytes) -> bool:
    to.send_body(body)
    to.send(b"0\r\n\r\n")
    return True


def end_in_the_headers(to: Connection, _body: bytes) -> bool:
    to.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; char")
    return False


def end_at_once(_to: Connection, _body: bytes) -> bool:
    return False


ENDS = [
    end_after_a_chunk,
    end_inside_a_chunk,
    end_inside_a_size,
    reset,
    answer_again,
    answer_again_and_stay,
    error_behind_the_body,
    end_twice,
    end_in_the_headers,
    end_at_once,
]
