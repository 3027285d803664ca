"""Our relay is sent each request that a stock client was recorded with, as it was sent.

Compared with what a stock relay answered: status, headers by name and value, chunking, names of
errors, the JSON of `/sources` and `/register`. What differs on purpose is named here.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from databus.relay.sources.source import RowChange
from databus.schemas.event.metadata import Op
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table import Column, Table
from tests.promises.stock_databus.recordings import CODE, PERSON, client_requests, recorded
from tests.relay.fakes import Answer, ServedRelay, connect, transaction

NEVER_HELD = '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":3,"windowOffset":-1}'
# Our types say more. Any site's page may read what stock servers send. A host's name is no
# client's business: stock clients only write it to their logs.
NOT_OURS = {"content-type", "access-control-allow-origin", "x-dbus-server-host"}
OUR_TEXTS = {"x-dbus-error-message", "x-dbus-error-cause-message"}
COLUMNS = (Column("key", "bigint", 0, nullable=False, key_position=0), Column("name", "text", 1))
TABLES = [Table(PERSON, COLUMNS, "sqlite"), Table(CODE, COLUMNS, "sqlite")]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay with the recorded sources and some rows, the oldest of which are gone."""
    sources = [{"name": PERSON, "id": 101}, {"name": CODE, "id": 102}]
    shop = {"name": "shop", "uri": "fake:", "sources": sources, "ring_bytes": 1 << 20}
    served = ServedRelay(tmp_path, physical_sources=[shop])
    name = "x" * 60_000
    for scn in range(1000, 1020):
        row = {"key": scn, "name": name}
        served.put(transaction(scn, *(RowChange(table, Op.INSERT, row) for table in TABLES)))
    yield served
    served.close()


def send(relay: ServedRelay, target: str, headers: dict[str, str]) -> tuple[str, Answer]:
    """Return the head of an answer as it came, and the answer."""
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    with connect(relay.url) as sock:
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        head = sock.recv(1 << 16, socket.MSG_PEEK).partition(b"\r\n\r\n")[0].decode()
        response = http.client.HTTPResponse(sock)
        response.begin()
        with response:
            return head, Answer(response)


def fields(head: str) -> dict[str, str]:
    """Return the headers of a head, by name in lower case."""
    pairs = (line.partition(": ") for line in head.splitlines()[1:] if line)
    return {name.lower(): value for name, _, value in pairs}


def check_head(head: str, like: str) -> None:
    """Compare a head with a recorded one; statuses of errors are HTTP's own here."""
    stock_head = recorded(like).decode()
    ours, stock = fields(head), fields(stock_head)
    if "200" in stock_head.splitlines()[0]:
        assert head.splitlines()[0] == stock_head.splitlines()[0]
    assert set(stock) - NOT_OURS <= set(ours)
    compared = set(stock) - NOT_OURS - OUR_TEXTS
    assert {name: ours[name] for name in compared} == {name: stock[name] for name in compared}
    assert "content-length" not in ours


def plain(answer: Answer) -> bytes:
    packed = answer.headers.get("Content-Encoding") == "gzip"
    return gzip.decompress(answer.body) if packed else answer.body


REQUESTS = [(target, headers) for target, headers in client_requests()]


@pytest.mark.parametrize(("target", "headers"), REQUESTS, ids=[t[:40] for t, _ in REQUESTS])
def test_each_recorded_request_is_answered_as_the_stock_relay_did(
    relay: ServedRelay, target: str, headers: dict[str, str]
) -> None:
    assert "/" in headers["Host"]
    head, answer = send(relay, target, headers)
    path = urlsplit(target).path
    suffix = "4" if path == "/register" and "protocolVersion=4" in target else ""
    check_head(head, f"v2.{path[1:]}{suffix}.headers")
    body = plain(answer)
    if path == "/stream":
        assert body[0] == (2 if "maxev=2" in target else 0)
        assert {event.src_id for event in walk(body)} == {101, 102, -2}
    elif path == "/sources":
        assert json.loads(body) == json.loads(recorded("v2.sources.json"))
    else:
        check_registered(json.loads(body), json.loads(recorded(f"v2.register{suffix}.json")))


def check_registered(ours: object, stock: object) -> None:
    if isinstance(stock, dict):
        assert isinstance(ours, dict)
        # [+] A stock relay without metadata leaves it out.
        assert set(ours) - {"metadataSchemas"} == set(stock)
        ours, stock = ours["sourceSchemas"], stock["sourceSchemas"]
    assert isinstance(ours, list)
    assert isinstance(stock, list)
    assert [set(entry) for entry in ours] == [set(entry) for entry in stock]
    assert [(e["id"], e["version"]) for e in ours] == [(e["id"], e["version"]) for e in stock]
    assert all(json.loads(entry["schema"])["type"] == "record" for entry in ours)


@pytest.mark.parametrize(
    ("target", "name", "status"),
    [
        (f"/stream?sources=101,102&size=9999&checkPoint={NEVER_HELD}", "gone", 404),
        ("/nosuch", "unknown", 404),
    ],
)
def test_errors_have_the_names_that_the_stock_relay_sent(
    relay: ServedRelay, target: str, name: str, status: int
) -> None:
    _, headers = REQUESTS[0]
    head, answer = send(relay, target, headers)
    check_head(head, f"v2.{name}.headers")
    stock = json.loads(recorded(f"v2.{name}.body"))
    ours = json.loads(plain(answer))
    assert answer.status == status
    assert ours["error"] == stock["error"]
    assert set(ours) - {"cause"} == set(stock)


def test_an_empty_answer_has_a_length_of_none_and_is_not_in_chunks(relay: ServedRelay) -> None:
    _, headers = REQUESTS[0]
    head, answer = send(relay, "/stream?sources=101&size=9999&streamFromLatestScn=true", headers)
    assert fields(head)["content-length"] == "0"
    assert "transfer-encoding" not in fields(head)
    assert not answer.body


def test_the_folder_of_the_recordings_has_each_of_them() -> None:
    assert {path.name for path in Path(__file__).with_name("recorded").glob("v2.*.headers")} == {
        f"v2.{name}.headers"
        for name in ("gone", "register", "register4", "sources", "stream", "unknown")
    }
