"""A relay's answer about its epochs is what another one reads."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.peers.agreement import PeerTable
from databus.relay.capture.peers.asking import asker, parse_table
from databus.relay.capture.peers.peers import Peers
from databus.relay.sources.epochs import Epoch
from databus.schemas.errors import ServerError
from databus.schemas.log_mark import LogMark
from tests.relay.fakes import ServedRelay, insert, transaction


def ask(url: str, name: str = "shop", relay_id: str = "me", **more: Any) -> PeerTable:
    settings = PhysicalSourceSettings.model_validate(
        {"name": name, "uri": "mysql://databus@one", "sources": ["shop.orders"], **more}
    )
    return asker(settings, relay_id)(url)


def test_the_table_of_a_running_relay_is_read(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        source = relay.relay.physical_sources["shop"]
        relay.relay.start()
        relay.put(transaction(7, insert(1)))
        mark = LogMark(7, '{"server":"1"}')
        source.ring.note_mark(mark)
        first = Epoch(0, "1", "mysql://databus:secret@one", 5, -1, "b.000001", 5, None, 11)
        second = Epoch(1, "2", "mysql://two", (1 << 55) + 9, 7, "c.000002", 9, "0-1-7", 12)
        for one in (first, second):
            source.capture.servers.table.begin(one)
        shown = (Epoch(0, "1", "mysql://databus@one", 5, -1, "b.000001", 5, None, 11), second)
        assert ask(relay.url) == PeerTable(relay.url, shown, None, mark)
        with pytest.raises(ServerError, match=r"404.* captures no physical source of this name"):
            ask(relay.url, "another")
    finally:
        relay.close()


def test_a_relay_is_no_peer_of_itself(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        source = relay.relay.physical_sources["shop"]
        servers = source.capture.servers
        servers.peers = Peers(source.settings, servers.table, ask, str, "me")
        assert ask(relay.url, relay_id="another").epochs == ()
        with pytest.raises(ServerError, match="is this relay itself"):
            ask(relay.url, relay_id="me")
    finally:
        relay.close()


def test_bytes_of_what_is_no_web_server_do_not_reach_a_terminal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"J\0\0\0\x0a5.5.5-10.11\x1b[2J\n")

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            with pytest.raises(ServerError) as caught:
                ask(f"http://127.0.0.1:{server.getsockname()[1]}")
        finally:
            thread.join()
        assert str(caught.value).isprintable()


def test_what_does_not_answer_or_is_no_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"does not answer: .*take it out of `epoch_peers`"):
        ask("http://127.0.0.1:1")
    with pytest.raises(ServerError, match="token"):
        ask("http://127.0.0.1:1", epoch_peers_token_file=tmp_path / "missing")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"claim": None, "logMark": "no mark", "epochs": []},
        {"claim": None, "logMark": None, "epochs": [{"number": "x"}]},
        {"claim": 7, "logMark": None, "epochs": []},
    ],
)
def test_a_table_that_is_not_valid_is_refused(value: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse_table("http://b:1", value)
