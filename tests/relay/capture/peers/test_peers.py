"""One relay and what its peers say: it agrees with all of them, or waits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.epoch_table import EpochTable
from databus.relay.capture.peers.agreement import Claim, PeerTable
from databus.relay.capture.peers.peers import Peers
from databus.relay.sources.epochs import (
    Agreed,
    Epoch,
    EpochWaitError,
    PeersElsewhereError,
)
from databus.schemas.errors import ServerError, SourceStoppedError
from databus.schemas.scn import epoch_begin

B, C = "http://b:1", "http://c:1"


def epoch(number: int, server: str) -> Epoch:
    scn = epoch_begin(number) + 1000
    return Epoch(number, server, f"mysql://{server}", scn, -1, "b.000001", 1000, None, 0)


class Others:
    """What peers would answer, None if they do not; nothing comes while `answering` is unset."""

    def __init__(self, *urls: str) -> None:
        self.tables: dict[str, PeerTable | None] = {url: PeerTable(url) for url in urls}
        self.asked: list[str] = []
        self.answering = threading.Event()
        self.answering.set()

    def ask(self, url: str) -> PeerTable:
        self.asked.append(url)
        self.answering.wait()
        found = self.tables[url]
        if found is None:
            raise ServerError(url, "does not answer")
        return found


def peers(others: Others, table: EpochTable | None = None) -> Peers:
    settings = PhysicalSourceSettings.model_validate(
        {
            "name": "shop",
            "uri": "mysql://databus@one",
            "sources": ["shop.orders"],
            "epoch_peers": list(others.tables),
        }
    )
    known = EpochTable() if table is None else table
    return Peers(settings, known, others.ask, lambda: "mysql://databus:secret@one")


def test_it_claims_an_epoch_before_it_asks_and_holds_it_once_all_have_answered() -> None:
    others, seen = Others(B, C), []
    asked = others.ask
    found = peers(others)

    def ask(url: str) -> PeerTable:
        seen.append(found.claim)
        return asked(url)

    found._ask = ask
    before = found.is_agreed
    assert found.agree(0, "s0") == Agreed(0)
    claimed = Claim(0, "s0", "mysql://databus@one")
    assert seen == [None, None, claimed, claimed]
    assert found.claim == claimed._replace(is_confirmed=True)
    assert (before, found.is_agreed) == (False, True)
    found.begun()
    assert not found.claim


def test_a_peer_that_does_not_answer_is_waited_for_and_named() -> None:
    others = Others(B, C)
    others.tables[C] = None
    found = peers(others)
    with pytest.raises(EpochWaitError, match=r"waits for peers to agree on epoch 0: .*c:1"):
        found.agree(0, "s0")
    assert not found.is_agreed
    assert C in found.problem
    assert [*found.silent] == [C]
    assert found.claim is None


def test_a_settled_epoch_goes_on_without_peers_also_after_a_restart(tmp_path: Path) -> None:
    table, others = EpochTable(tmp_path / "shop.epochs.json"), Others(B)
    found = peers(others, table)
    found.agree(0, "s0")
    table.begin(epoch(0, "s0"))
    found.begun()
    others.tables[B] = None
    again = peers(others, EpochTable(tmp_path / "shop.epochs.json"))
    assert again.is_agreed
    assert again.agree(0, "s0") == Agreed(0)
    with pytest.raises(EpochWaitError, match="on epoch 1"):
        again.agree(1, "s1")


def test_a_peer_that_is_added_must_agree_first() -> None:
    table = EpochTable()
    peers(Others(B), table).agree(0, "s0")
    table.begin(epoch(0, "s0"))
    others = Others(B, C)
    found = peers(others, table)
    assert not found.is_agreed
    others.tables[C] = PeerTable(C, (epoch(0, "other"),))
    with pytest.raises(
        SourceStoppedError, match="epoch 0 of this source is server s0 at this relay"
    ):
        found.agree(0, "s0")
    others.tables[C] = PeerTable(C)
    assert found.agree(0, "s0") == Agreed(0)
    assert found.is_agreed


def test_it_takes_over_what_was_begun_for_its_server() -> None:
    others = Others(B)
    others.tables[B] = PeerTable(B, (epoch(0, "s0"), epoch(1, "s1"), epoch(2, "s2")))
    found = peers(others)
    assert found.agree(0, "s2") == Agreed(2)
    with pytest.raises(PeersElsewhereError) as raised:
        found.agree(0, "s1")
    assert raised.value.uri == "mysql://s2"
    assert found.claim is None


def test_what_a_peer_has_begun_otherwise_since_is_seen_and_nothing_is_served() -> None:
    table, others = EpochTable(), Others(B)
    found = peers(others, table)
    found.agree(0, "s0")
    table.begin(epoch(0, "s0"))
    others.tables[B] = PeerTable(B, (epoch(0, "other"),))
    found.look()
    assert found.problem == found.conflict != ""
    seen = found.is_agreed
    others.tables[B] = PeerTable(B)
    found.look()
    assert (seen, found.is_agreed) == (False, True)


def test_a_newer_epoch_of_a_peer_is_ahead() -> None:
    table, others = EpochTable(), Others(B)
    table.begin(epoch(0, "s0"))
    others.tables[B] = PeerTable(B, (epoch(0, "s0"),))
    found = peers(others, table)
    found.look()
    before = found.ahead
    others.tables[B] = PeerTable(B, (epoch(0, "s0"), epoch(1, "s1")))
    found.look()
    assert before is None
    assert found.ahead is not None
    assert (before, found.ahead.number, found.ahead.uri) == (None, 1, "mysql://s1")
