"""What a relay has delivered is looked for in another log, as a source reads that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.conf.named_places import NamedPlace
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.overlap.overlap_search import OVERLAP_SUFFIX, OverlapSearch
from databus.relay.capture.table_stops import NO_STOPS
from databus.relay.relay import Relay
from databus.relay.sources.epochs import NoOverlapError
from databus.relay.sources.source import Source, Transaction
from databus.schemas.errors import SourceStoppedError
from databus.schemas.windows import NO_SCN
from tests.relay.fakes import PERSON, FakeSource, ServedRelay, insert, transaction

ROWS = 40


class OtherServer(FakeSource):
    """A server whose log has other SCNs, and does not know the time that is asked for."""

    end_scn = NO_SCN

    def __init__(self, settings: PhysicalSourceSettings, log: list[Transaction]) -> None:
        super().__init__(settings, [PERSON])
        self.settings = settings
        self.put(*log)
        self.end_scn = log[-1].scn
        if settings.start.startswith("time:"):
            self.fail(SourceStoppedError(self.name, 0, "the log is younger than that"))

    def scn_at(self, place: NamedPlace) -> int:
        assert str(place) == "latest"
        return self.end_scn


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    """A relay that has delivered rows 1 to 40 from another server."""
    served = ServedRelay(tmp_path)
    try:
        served.relay.start()
        served.put(*(transaction(10 * key, insert(key)) for key in range(1, ROWS + 1)))
        yield served.relay
    finally:
        served.close()


def find(relay: Relay, log: list[Transaction]) -> int:
    """Look in a log for what the relay has delivered."""
    folder = relay.settings.data_dir / f"shop{OVERLAP_SUFFIX}"
    (settings,) = relay.settings.physical_sources
    opened: list[OtherServer] = []

    def open_source(searched: PhysicalSourceSettings, kept: Path) -> Source:
        assert (kept, searched.epoch) == (folder, 1)
        opened.append(OtherServer(searched, log))
        return opened[-1]

    search = OverlapSearch(
        relay.settings.data_dir / "shop.ring",
        open_source,
        lambda: relay._opener.make_encoder(settings),
        NO_STOPS,
        lambda: relay.catalog.src_ids_of("shop"),
        folder,
    )
    try:
        return search.find(settings, 1)
    finally:
        assert [one.settings.start for one in opened] == ["time:1969-12-31T23:59:10Z", "earliest"]
        assert not any(one.is_open for one in opened)
        assert not folder.exists()


def test_the_last_delivered_window_is_found_whatever_its_scn_is(relay: Relay) -> None:
    log: list[Transaction] = [transaction(7 * key, insert(key)) for key in range(1, ROWS + 9)]
    assert find(relay, log) == 7 * ROWS


def test_it_is_not_found_where_a_row_differs_or_is_missing(relay: Relay) -> None:
    log: list[Transaction] = [transaction(7 * key, insert(key)) for key in range(1, ROWS + 9)]
    other = transaction(7 * 30, insert(30, "another"))
    for wrong in ([*log[:29], other, *log[30:]], log[: ROWS - 1]):
        with pytest.raises(NoOverlapError, match="its log does not have the last 40 windows"):
            find(relay, wrong)
