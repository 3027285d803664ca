"""Pages that are read before they are asked for; the clock stands still until it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from databus.bootstrap.server.pages import Page
from databus.bootstrap.server.pages_ahead import AHEAD_S, MOST_AHEAD, PagesAhead
from databus.bootstrap.server.parameters import PageRequest, parse_page_request
from databus.bootstrap.server.reader_pool import StoreReaders, Work
from databus.bootstrap.server.source_lookup import Stores
from databus.conf.settings import HttpSettings
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from tests.bootstrap.filled import PERSON, make_filled
from tests.client.shop import FakeClock

LISTED = {"shop": (PERSON.source,)}
PERSONS = 80
Result = TypeVar("Result")


class CountedReaders(StoreReaders):
    """Readers that count what they were given."""

    begun = 0

    def run(self, function: Callable[[Stores], Result]) -> Work[Result]:
        self.begun += 1
        return super().run(function)


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[CountedReaders]:
    made = CountedReaders({"shop": tmp_path / "shop.db"})
    made.start()
    yield made
    made.stop()


def request_of(after_id: int = 0, size_bytes: int = 2000) -> PageRequest:
    checkpoint = Checkpoint(
        ConsumptionMode.SNAPSHOT,
        0,
        bootstrap_since_scn=0,
        bootstrap_start_scn=101,
        snapshot_source=PERSON.source,
        snapshot_offset=after_id,
    )
    parameters = {
        "sources": PERSON.source,
        "checkPoint": checkpoint.to_json(),
        "output": "binary",
        "batchSize": str(size_bytes),
        "maxev": "2",
        "truncate": "true",
    }
    return parse_page_request(parameters, HttpSettings())


def asked_again(request: PageRequest, page: Page) -> PageRequest:
    """Return the request of a client that has received a page."""
    return replace(request, checkpoint=Checkpoint.from_json(page.checkpoint.to_json()))


def test_a_page_is_read_before_it_is_asked_for_and_is_the_same(
    tmp_path: Path, readers: CountedReaders
) -> None:
    filled = make_filled(tmp_path / "shop.db", PERSONS)
    pages, request = PagesAhead(readers, LISTED, FakeClock()), request_of()
    page = pages.read(request).result()
    rows, count = page.rows, 1
    while not page.is_phase_over:
        pages.read_after(request, page)
        request, begun = asked_again(request, page), readers.begun
        page = pages.read(request).result()
        assert readers.begun == begun
        assert page.body == PagesAhead(readers, LISTED).read(request).result().body
        rows, count = rows + page.rows, count + 1
    begun = readers.begun
    pages.read_after(request, page)  # the last one
    assert readers.begun == begun
    assert count > 3
    assert rows == PERSONS
    filled.close()


def test_a_page_is_held_for_seconds_and_given_once(tmp_path: Path, readers: CountedReaders) -> None:
    filled = make_filled(tmp_path / "shop.db", PERSONS)
    clock = FakeClock()
    pages, request = PagesAhead(readers, LISTED, clock), request_of()
    page = pages.read(request).result()
    following = asked_again(request, page)
    for passed_s, read_anew in ((AHEAD_S, 0), (AHEAD_S + 1, 1)):
        pages.read_after(request, page)
        clock.now_s += passed_s
        begun = readers.begun
        pages.read(following).result()
        assert readers.begun == begun + read_anew
    pages.read_after(request, page)
    begun = readers.begun
    assert pages.read(following).result().body == pages.read(following).result().body
    assert readers.begun == begun + 1
    filled.close()


def test_only_so_many_are_held_the_newest(tmp_path: Path, readers: CountedReaders) -> None:
    filled = make_filled(tmp_path / "shop.db", PERSONS)
    pages = PagesAhead(readers, LISTED, FakeClock())
    requests = [request_of(0, 1000 + 100 * number) for number in range(MOST_AHEAD + 1)]
    following = []
    for request in requests:
        page = pages.read(request).result()
        pages.read_after(request, page)
        following.append(asked_again(request, page))
    begun = readers.begun
    for request in reversed(following):
        pages.read(request).result()
    assert readers.begun == begun + 1
    filled.close()


def test_one_that_failed_is_read_again(tmp_path: Path, readers: CountedReaders) -> None:
    filled = make_filled(tmp_path / "shop.db", PERSONS)
    request = request_of()
    page = PagesAhead(readers, LISTED).read(request).result()
    readers.stop()
    elsewhere = CountedReaders({"shop": tmp_path / "later" / "shop.db"}, threads=1)
    elsewhere.start()
    pages = PagesAhead(elsewhere, LISTED, FakeClock())
    pages.read_after(request, page)
    elsewhere.run(lambda _: None).result()  # the one before it has ended: there is no store
    (tmp_path / "later").mkdir()
    filled.close()
    (tmp_path / "shop.db").rename(tmp_path / "later" / "shop.db")
    assert pages.read(asked_again(request, page)).result().rows > 0
    elsewhere.stop()
