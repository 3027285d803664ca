"""A log probe asks whatever server is read, and a relay that stands by its own database, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.current_probe import current_probe
from databus.relay.sources.log_status import Holding, LogStatus
from databus.relay.sources.source import Newest
from databus.schemas.errors import SourceUnavailableError

DATABASE, RELAY = "mysql://databus@db", "databus+http://relay:11115"
HELD = LogStatus(Holding.HELD, behind_s=1.0)


def settings(uri: str) -> PhysicalSourceSettings:
    raw = {"name": "shop", "uri": uri, "sources": ["shop.orders"]}
    return PhysicalSourceSettings.model_validate(raw)


class Asked:
    """The servers that are probed, by URI; those that are away."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.cancelled: list[str] = []
        self.away: set[str] = set()

    def open(self, settings: PhysicalSourceSettings) -> AskedProbe:
        return AskedProbe(self, settings.uri)


class AskedProbe:
    def __init__(self, asked: Asked, uri: str) -> None:
        self._asked, self._uri = asked, uri

    def probe(self, newest: Callable[[], Newest | None]) -> LogStatus:
        self._asked.uris.append(self._uri)
        if self._uri in self._asked.away:
            raise SourceUnavailableError("shop", 0, f"{self._uri} refuses")
        return HELD

    def cancel(self) -> None:
        self._asked.cancelled.append(self._uri)


def test_a_relay_that_stands_by_warns_when_it_could_not_take_over() -> None:
    asked, reads = Asked(), [DATABASE]
    probe = current_probe(asked.open, lambda: settings(reads[0]), lambda: settings(DATABASE))
    assert probe is not None
    assert probe.probe(lambda: None) == HELD
    assert asked.uris == [DATABASE], "one that captures is asked once"
    reads[0] = RELAY
    assert probe.probe(lambda: None) == HELD
    assert asked.uris[1:] == [RELAY, DATABASE]
    asked.away = {DATABASE}
    found = probe.probe(lambda: None)
    assert (found.holding, found.behind_s) == (Holding.HELD, 1.0)
    assert "stands by, and could not take over" in found.warning
    assert f"{DATABASE} refuses" in found.warning
    asked.away = {RELAY}
    with pytest.raises(SourceUnavailableError, match="relay:11115 refuses"):
        probe.probe(lambda: None)
    probe.cancel()
    assert {*asked.cancelled} == {DATABASE, RELAY}


def test_a_relay_alone_asks_what_it_reads() -> None:
    asked = Asked()
    probe = current_probe(asked.open, lambda: settings(DATABASE))
    assert probe is not None
    probe.probe(lambda: None)
    assert asked.uris == [DATABASE]
