"""A relay follows its peers to another server, once."""

from __future__ import annotations

from dataclasses import replace

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.epoch_table import EpochTable
from databus.relay.capture.peers.agreement import PeerTable
from databus.relay.capture.peers.peers import Peers
from databus.relay.capture.peers.watch import PeerWatch
from databus.relay.capture.servers import Servers
from tests import PATIENCE_S
from tests.relay.capture.peers.test_peers import B, Others, epoch

S0, S1 = "mysql://databus@s0", "mysql://databus@s1"


class Watched:
    """A watch over a relay of two servers, which reads the first."""

    def __init__(self) -> None:
        self.others, self.doubts = Others(B), list[str]()
        table = EpochTable()
        settings = PhysicalSourceSettings.model_validate(
            {"name": "shop", "uri": [S0, S1], "sources": ["shop.orders"], "epoch_peers": [B]}
        )
        self.servers = Servers(settings, table)
        self.peers = Peers(settings, table, self.others.ask, lambda: S0)
        self.servers.peers = self.peers
        self.peers.agree(0, "s0")
        table.begin(epoch(0, "s0"))
        self.peers.begun()
        self.watch = PeerWatch(self.servers, self.doubts.append)

    def say(self, number: int, server: str, uri: str) -> None:
        begun = epoch(number, server)
        newer = type(begun)(number, server, uri, begun.first_scn, -1, "b.000001", 1000, None, 0)
        self.others.tables[B] = PeerTable(B, (epoch(0, "s0"), newer))
        self.watch.look()


def test_it_goes_where_a_peer_has_gone_once() -> None:
    found = Watched()
    found.watch.look()
    assert found.doubts == []
    found.say(1, "s1", S1)
    assert found.servers.settings.uri == S1
    assert found.doubts == [f"follows {B}, which reads epoch 1 from {S1}"]
    found.servers.switch(S0)  # it was gone, or refused
    found.watch.look()
    assert found.servers.settings.uri == S0
    assert len(found.doubts) == 1


def test_it_connects_again_to_the_server_to_which_the_others_came_back() -> None:
    found = Watched()
    found.say(2, "s0", "mysql://databus@another-name")
    assert (found.servers.settings.uri, len(found.doubts)) == (S0, 1)


def test_it_warns_of_a_server_that_it_does_not_know_and_of_a_silent_peer() -> None:
    found = Watched()
    assert not found.watch.warnings
    found.say(1, "s9", "mysql://databus@s9")
    (behind,) = found.watch.warnings
    assert f"{B} reads epoch 1 of this source from server s9 at mysql://databus@s9" in behind
    assert f"Its `uri` has {S0}, {S1}" in behind
    assert found.doubts == []
    found.others.tables[B] = None
    found.watch.look()
    assert any("does not answer" in text for text in found.watch.warnings)


def test_an_epoch_that_a_peer_gave_to_another_server_makes_capture_connect_again() -> None:
    found = Watched()
    found.others.tables[B] = PeerTable(B, (epoch(0, "other"),))
    found.watch.look()
    found.watch.look()
    assert len(found.doubts) == 1
    assert "epoch 0 of this source is server s0" in found.doubts[0]


def test_it_looks_on_a_thread_of_its_own_until_it_is_stopped() -> None:
    found = Watched()
    watch = PeerWatch(found.servers, found.doubts.append, every_s=0.001)
    watch.start()
    try:
        before = len(found.others.asked)
        while len(found.others.asked) < before + 3:
            pass
    finally:
        assert watch.stop(PATIENCE_S)


def test_an_error_that_nobody_expected_is_a_warning_and_it_looks_on() -> None:
    found = Watched()
    asked: list[str] = []

    def fail(text: str) -> None:
        asked.append(text)
        found.others.answering.clear()  # the next look waits until this test has seen the warning
        raise OSError("no more files")

    watch = PeerWatch(found.servers, fail, every_s=0.001)
    newer = replace(epoch(0, "s0"), number=1, server="s1", uri=S1)
    found.others.tables[B] = PeerTable(B, (epoch(0, "s0"), newer))
    watch.start()
    try:
        while not any("no more files" in text for text in watch.warnings):
            pass
        found.others.answering.set()
        while any("no more files" in text for text in watch.warnings):
            pass
    finally:
        found.others.answering.set()
        assert watch.stop(PATIENCE_S)
    assert len(asked) == 1


def test_without_peers_there_is_nothing_to_look_at() -> None:
    settings = PhysicalSourceSettings.model_validate(
        {"name": "shop", "uri": S0, "sources": ["shop.orders"]}
    )
    watch = PeerWatch(Servers(settings, EpochTable()), lambda _text: None)
    watch.start()
    watch.look()
    assert watch.warnings == ()
    assert watch.stop(0)
