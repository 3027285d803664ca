"""An ALTER while a client is connected that fetches schemas once per connection."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from databus.relay.sources.source import RowChange
from databus.schemas.checkpoint import Checkpoint, CheckpointMult
from databus.schemas.event.metadata import Op
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table import Column
from tests import PATIENCE_S
from tests.relay.fakes import PERSON, Answer, ServedRelay, insert, transaction

WIDER = replace(PERSON, columns=(*PERSON.columns, Column("age", "integer", 2)))
WIDEST = replace(WIDER, columns=(*WIDER.columns, Column("town", "text", 3)))


def row(key: int, table: Any) -> RowChange:
    return RowChange(table, Op.INSERT, dict.fromkeys(c.name for c in table.columns) | {"id": key})


@pytest.fixture
def stock(relay: ServedRelay) -> Iterator[http.client.HTTPConnection]:
    """One connection, kept as long as the relay keeps it."""
    with closing(
        http.client.HTTPConnection(urlsplit(relay.url).netloc, timeout=PATIENCE_S)
    ) as connection:
        yield connection


def ask(
    connection: http.client.HTTPConnection, target: str, agent: str = "Java"
) -> tuple[Answer, bool]:
    """Return the answer, and whether the connection is kept."""
    connection.request("GET", target, headers={"User-Agent": agent, "Host": "localhost"})
    response = connection.getresponse()
    return Answer(response), not response.will_close and connection.sock is not None


def read(
    connection: http.client.HTTPConnection, after: int | None = None, more: str = "", **named: str
) -> tuple[list[int], bool]:
    """Return the SCNs of the windows that are sent, and whether the connection is kept."""
    checkpoint = Checkpoint.flexible() if after is None else Checkpoint.at(after)
    target = f"/stream?sources=1&size=100000&maxev=2&checkPoint={quote(checkpoint.to_json())}"
    answer, is_kept = ask(connection, target + more, **named)
    assert answer.status == 200
    return [event.scn for event in walk(answer.body) if event.is_eop], is_kept


def versions(answer: Answer) -> list[int]:
    return [schema["version"] for schema in json.loads(answer.body)]


@pytest.mark.parametrize("more", ["", "&wait=3000"])
def test_the_connection_ends_before_the_first_row_of_a_version_that_it_was_not_sent(
    relay: ServedRelay, stock: http.client.HTTPConnection, more: str
) -> None:
    relay.put(transaction(1, insert(1)), transaction(2, insert(2)))
    assert versions(ask(stock, "/register?sources=1")[0]) == [1]
    assert read(stock) == ([1, 2], True)
    relay.put(
        transaction(3, insert(3)),
        transaction(4, insert(4), row(5, WIDER)),
        transaction(5, row(6, WIDER)),
    )
    assert read(stock, 2, more) == ([3], False)
    # What a connection knows that has not registered is not known.
    assert read(stock, 2, more) == ([3, 4, 5], True)
    assert versions(ask(stock, "/register?sources=1")[0]) == [1, 2]
    assert read(stock, 3) == ([4, 5], True)
    relay.put(transaction(6, row(7, WIDEST)))
    assert read(stock, 5) == ([], False)


def test_a_request_from_behind_the_change_is_answered_empty(
    relay: ServedRelay, stock: http.client.HTTPConnection
) -> None:
    relay.put(transaction(1, insert(1)))
    ask(stock, "/register")
    relay.put(transaction(2, row(2, WIDER)), transaction(3, row(3, WIDER)))
    assert read(stock, 2) == ([], False)


def test_the_change_of_a_table_that_is_not_read_ends_nothing(
    relay: ServedRelay, stock: http.client.HTTPConnection
) -> None:
    relay.put(transaction(1, insert(1)))
    ask(stock, "/register?sources=2")
    relay.put(transaction(2, row(2, WIDER)))
    assert read(stock) == ([1, 2], True)
    target = (
        f"/stream?sources=2&size=9999&maxev=2&checkPoint={quote(Checkpoint.flexible().to_json())}"
    )
    answer, is_kept = ask(stock, target)
    assert (len(list(walk(answer.body))), is_kept) == (2, True)


def test_this_projects_clients_are_not_sent_away(
    relay: ServedRelay, stock: http.client.HTTPConnection
) -> None:
    relay.put(transaction(1, insert(1)))
    ask(stock, "/register?sources=1", "databus/0.1.0")
    relay.put(transaction(2, row(2, WIDER)))
    assert read(stock, agent="databus/0.1.0") == ([1, 2], True)


def test_checkpoints_by_physical_source_end_in_the_same_way(
    relay: ServedRelay, stock: http.client.HTTPConnection
) -> None:
    relay.put(transaction(1, insert(1)))
    ask(stock, "/register?protocolVersion=4")
    relay.put(transaction(2, row(2, WIDER)))
    mult = CheckpointMult({'{"id":-1,"name":"*"}': Checkpoint.flexible()}).to_json()
    target = f"/stream?sources=1&size=9999&maxev=2&checkPointMult={quote(mult)}"
    answer, is_kept = ask(stock, target)
    assert [event.scn for event in walk(answer.body) if event.is_eop] == [1]
    assert answer.headers["x-databus-resume"] == '{"shop":[1,-1]}'
    assert not is_kept
