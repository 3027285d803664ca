from __future__ import annotations

import pytest

from databus.relay.sources.mysql.search.search_progress import SearchProgress, bytes_between
from databus.relay.sources.mysql.server.start_position import LogFile
from databus.relay.sources.source import LogSearch
from databus.schemas.scn import BinlogPosition


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_it_is_told_twice_a_second_and_at_the_end() -> None:
    told: list[LogSearch | None] = []
    clock = Clock()
    progress = SearchProgress(told.append, "why", 1000, clock)
    for _ in progress.of_chunks((memoryview(bytes(100)), 100) for _ in range(8)):
        clock.now_s += 0.2
    progress.end()
    progress.end()
    assert told == [LogSearch("why", 400, 1000), LogSearch("why", 700, 1000), None]


def test_a_short_search_is_not_told() -> None:
    told: list[LogSearch | None] = []
    progress = SearchProgress(told.append, "why", 1000, Clock())
    assert list(progress.of_events([b"1", b"2"])) == [b"1", b"2"]
    progress.end()
    assert told == []


def test_a_log_that_grows_has_no_more_done_than_there_is() -> None:
    told: list[LogSearch | None] = []
    clock = Clock()
    progress = SearchProgress(told.append, "why", 10, clock)
    clock.now_s = 1
    progress.add(25)
    assert told == [LogSearch("why", 25, 25)]


@pytest.mark.parametrize(
    ("begin", "end", "size"),
    [((1, 40), (1, 90), 50), ((1, 40), (3, 10), 60 + 200 + 10), ((2, 4), (9, 1), 196 + 300)],
)
def test_the_bytes_between_two_positions(
    begin: tuple[int, int], end: tuple[int, int], size: int
) -> None:
    files = [LogFile(f"log.{number}", number * 100) for number in (1, 2, 3)]
    assert bytes_between(files, BinlogPosition(0, *begin), BinlogPosition(0, *end)) == size
