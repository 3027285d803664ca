"""A relay's answer about its epochs is what another one reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.peers.agreement import PeerTable
from databus.relay.capture.peers.asking import asker, parse_table
from databus.relay.sources.epochs import Epoch
from databus.schemas.errors import ServerError
from databus.schemas.log_mark import LogMark
from tests.relay.fakes import ServedRelay, insert, transaction


def ask(url: str, name: str = "shop", **more: Any) -> PeerTable:
    settings = PhysicalSourceSettings.model_validate(
        {"name": name, "uri": "mysql://databus@one", "sources": ["shop.orders"], **more}
    )
    return asker(settings)(url)


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
        with pytest.raises(ServerError, match="404"):
            ask(relay.url, "another")
    finally:
        relay.close()


def test_what_does_not_answer_or_is_no_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="does not answer"):
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
