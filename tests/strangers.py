"""What anybody may send to an HTTP server, by the thousand, and what no server may do about it.

    besiege(url, PATHS, Random(1), 300)

Paths, parameters and headers that are wrong in every way that is known; requests that are
no requests, are never whole, or come several in one packet. Whatever is sent: no answer is
a 500, and each connection is answered or closed soon.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from random import Random
from urllib.parse import quote

from tests import PATIENCE_S
from tests.relay.fakes import connect

NAMES = (
    *("sources", "source", "subs", "checkPoint", "checkPointMult", "size", "batchSize", "wait"),
    *("output", "maxev", "filters", "filter", "since", "untilScn", "streamFromLatestScn"),
    *("rows", "bytes", "afterRow", "untilRow", "protocolVersion", "limit", "name", "at", "", "x"),
)
# What stands at such a name when a request is to get further than its first mistake.
GOOD = {
    "sources": "1",
    "source": "1",
    "size": "10000",
    "batchSize": "10000",
    "wait": "1",
    "checkPoint": '{"windowScn":1,"windowOffset":-1,"consumption_mode":"ONLINE_CONSUMPTION"}',
}
NUMBERS = (
    *("0", "-1", "--1", "-0", "+1", "1.5", "1e999", "1e3", "0x10", "1_000", " 1 ", "9" * 19),
    *("9" * 20, "9" * 5000, "2147483648", "9223372036854775807", "18446744073709551616"),
    *(
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "\u0663",
        "\uff11\uff12",
        "\u00b2",
        "\u2167",
        "1\u20602",
    ),
)
TEXTS = (
    *("", " ", ",", ",,1,", "null", "true", "[]", "{}", "*", "..", "../../etc/passwd", "/", "\\"),
    *("\0", "a\0b", "a\r\nX: y", "\u202e", "\U0001f600", "é" * 300, "'", '"', "`", "%", "%zz"),
    *("x" * 3000, "a" * 70_000, "shop.person", "shop.person,shop.person", "1," * 2000),
)
PIECES = (
    *('{"windowScn":1e999}', '{"windowScn":NaN}', '{"windowScn":"1"}', '{"windowScn":[]}'),
    *('{"windowScn":-9,"windowOffset":9}', '{"windowScn":9999999999999999999999}', "[" * 9000),
    *('{"a":' * 9000, '"\\ud800"', '{"consumption_mode":"ONLINE_CONSUMPTION"}', "[[]]", "[1]"),
    *('{"consumption_mode":[]}', '{"consumption_mode":"BOOTSTRAP_SNAPSHOT"}'),
    '{"consumption_mode":"BOOTSTRAP_SNAPSHOT","bootstrap_since_scn":1e400,"snapshot_offset":"x"}',
    '{"consumption_mode":"BOOTSTRAP_SNAPSHOT","bootstrap_start_scn":1,"snapshot_offset":-7}',
    '{"logicalPartition":{"source":{"id":true,"name":[]}}}',
    '{"physicalPartition":{"name":[]}}',
    '{"physicalPartition":{"name":{}},"logicalPartition":{"source":{"name":"*"}}}',
    '{"logicalPartition":{"source":{"id":1e30}}}',
    '{"1":{"partitionType":"RANGE","filters":[{"keyRange":[1,"x"]}]}}',
    '{"1":{"partitionType":"MOD","filters":[{"mod":0,"buckets":[[0,9]]}]}}',
    '{"1":{"partitionType":[],"filters":{}}}',
    '{"partitionType":"NONE"}',
    '{"{\\"name\\":[]}":{"windowScn":1}}',
    '{"shop":{"windowScn":1,"windowOffset":-1}}',
    '{"shop":7}',
)
METHODS = ("GET", "POST", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "CONNECT", "FROB", "get")
HEADERS = (
    *("Accept-Encoding: gzip;q=\u00e9", "Accept-Encoding: " + "gzip," * 3000, "Content-Length: -1"),
    *("Content-Length: 99999999999999", "Content-Length: 3\r\nContent-Length: 4", "Expect: x"),
    *("Expect: 100-continue", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked"),
    *("Content-Type: application/x-www-form-urlencoded", "Content-Type: multipart/form-data"),
    *("Content-Type: multipart/form-data; boundary=x", "Content-Type: application/json; charset=z"),
    *("Authorization: Bearer \u00ff", "Authorization:", "Origin: null", "Origin: http://[", ": x"),
    *("Host:", "Host: [::1", "Host: a:99999", "Host: a@b", "no colon", "X: \0", "X: " + "y" * 9000),
    *(
        "x-databus-client: \u00ff{",
        "x-databus-client: " + "z" * 9000,
        "User-Agent: \u00e9{}",
        " x: y",
    ),
    *(
        "Connection: upgrade\r\nUpgrade: websocket",
        "If-None-Match: *",
        "Range: bytes=-1",
        "X: a\n b",
    ),
)
BODIES = (
    b"",
    b"size=1&size=NaN",
    b"\xff\xfe=%ff",
    b"{}",
    b"[" * 9000,
    b"--x\r\n\r\n--x--",
    b"a" * 9000,
)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


def besiege(url: str, paths: Sequence[str], draw: Random, count: int) -> None:
    """Send so many requests, one connection each; fails with the first that is not taken well."""
    for _ in range(count):
        sent = _siege(paths, draw)
        statuses = _STATUS.findall(_answer(url, sent))
        assert b"500" not in statuses, sent[:2000]


def _answer(url: str, sent: bytes) -> bytes:
    """Return what comes until the server closes; fails when it does not."""
    found = b""
    try:
        with connect(url, PATIENCE_S) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)  # half-closed: whoever waits for more hears of it
            while chunk := sock.recv(1 << 16):
                found = (found + chunk)[:100_000]
    except TimeoutError:
        raise AssertionError(f"neither answered nor closed: {sent[:2000]!r}") from None
    except OSError:
        pass  # closed before all was sent
    return found


def _siege(paths: Sequence[str], draw: Random) -> bytes:
    kind = draw.random()
    if kind < 0.05:
        return draw.randbytes(draw.choice((1, 10, 1000, 70_000)))
    request = _request(paths, draw)
    if kind < 0.12:
        return request[: draw.randrange(len(request))]
    if kind < 0.2:  # several at once
        return b"".join(_request(paths, draw) for _ in range(20))
    if kind < 0.25:
        place = draw.randrange(len(request))
        return request[:place] + draw.randbytes(3) + request[place + 1 :]
    return request


def _request(paths: Sequence[str], draw: Random) -> bytes:
    method = draw.choice(METHODS) if draw.random() < 0.3 else "GET"
    lines = [f"{method} {_target(paths, draw)} HTTP/1.{draw.choice('1111110')}", "Host: localhost"]
    lines += draw.sample(HEADERS, draw.choice((0, 0, 0, 1, 3)))
    body = b""
    if method == "POST":
        body = draw.choice(BODIES)
        lines += [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body


def _target(paths: Sequence[str], draw: Random) -> str:
    path = draw.choice(paths)
    if draw.random() < 0.2:
        path += draw.choice(
            ("/", "//", "/" + quote(_value(draw)), "%00", "%2F..%2F", ";a=b", "\u00e9")
        )
    given = dict(GOOD) if draw.random() < 0.7 else {}
    pairs = [
        *given.items(),
        *((draw.choice(NAMES), _value(draw)) for _ in range(draw.choice((0, 1, 1, 2, 5)))),
    ]
    draw.shuffle(pairs)
    query = "&".join(
        f"{quote(name)}={quote(value, safe=draw.choice(('', '%/{}')))}" for name, value in pairs
    )
    return f"{path}?{query}" + draw.choice(("", "", "", "&", "&&=", "%ff=%fe", "#x", "?"))


def _value(draw: Random) -> str:
    return draw.choice(draw.choice((NUMBERS, NUMBERS, TEXTS, PIECES)))
