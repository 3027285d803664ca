"""Several sources in one order: by commit times, whole windows, no source waits for ever."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st

from databus.daemon.fair_queue import FairQueue
from databus.relay.monitoring.clients import Caller
from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.ring.selection import Selection
from databus.relay.serving.merging import Merge, MergedFeed, Run
from databus.relay.serving.reading.feed import Feed
from databus.relay.sources.source import Transaction
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ProtocolError, ScnNotFoundError, SourceUnavailableError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import decode, encode
from tests.relay.fakes import ORDERS, PERSON, ServedRelay, insert, transaction

WAIT_S = 2.0
CALLER, QUEUE = Caller("session", "127.0.0.1", "a stock client"), FairQueue()
ALL = 1 << 30


def window(scn: int, at_ns: int, rows: int = 1) -> bytes:
    row = Event(scn, at_ns, 1, 0, 7, Opcode.UPSERT, Part(b"row", b"m" * 16, 1), None)
    return encode(row) * rows + encode(end_of_period(scn, at_ns))


def scns(runs: list[Run]) -> list[tuple[str, int]]:
    """Return source and SCN of each event."""
    found = []
    for run in runs:
        at = 0
        while at < len(run.body):
            event, at = decode(run.body, at)
            found.append((run.source, event.scn))
    return found


def whole(*windows: tuple[int, int]) -> tuple[bytes, Position]:
    """Return an answer of whole windows (SCN, commit time)."""
    return b"".join(window(*one, rows=0) for one in windows), (windows[-1][0], WINDOW_DONE)


def test_windows_come_by_their_commit_times_and_places_follow() -> None:
    merge = Merge(["a", "b"], WAIT_S, 0.0)
    merge.add("a", *whole((1, 10), (2, 30)))
    merge.add("b", *whole((7, 20), (8, 40)))
    assert scns(merge.take(1, 0.0)) == [("a", 1)]
    assert merge.places == {"a": (1, WINDOW_DONE)}
    assert scns(merge.take(ALL, 0.0)) == [("b", 7), ("a", 2)]
    assert merge.places == {"a": (2, WINDOW_DONE), "b": (7, WINDOW_DONE)}
    assert merge.empty == ["a"]


def test_a_silent_source_holds_the_others_back_for_so_long_and_then_not_at_all() -> None:
    merge = Merge(["a", "b"], WAIT_S, 0.0)
    merge.add("a", *whole((1, 10), (2, 30)))
    assert merge.take(ALL, 1.5) == []
    assert merge.due_s(1.5) == 0.5
    assert [one.is_waited_for for one in merge.status(1.5)] == [False, True]
    assert scns(merge.take(ALL, 2.0)) == [("a", 1), ("a", 2)]
    merge.add("a", *whole((3, 50)))
    assert merge.due_s(2.1) is None
    assert scns(merge.take(ALL, 2.1)) == [("a", 3)]
    # Once it says something again, it is waited for again.
    merge.add("b", *whole((7, 60)))
    merge.add("a", *whole((4, 70)))
    assert scns(merge.take(ALL, 9.0)) == [("b", 7)]
    assert merge.due_s(9.0) == WAIT_S


def test_a_source_that_is_past_a_commit_time_is_not_waited_for() -> None:
    merge = Merge(["a", "b"], WAIT_S, 0.0)
    merge.add("a", *whole((1, 50)))
    merge.add("b", *whole((7, 40)))
    merge.take(1, 0.0)
    merge.take(1, 5.0)
    merge.add("b", *whole((8, 45)))
    assert scns(merge.take(ALL, 5.0)) == [("b", 8)]


def test_a_window_in_parts_is_finished_first_however_long_it_takes() -> None:
    merge = Merge(["a", "b"], WAIT_S, 0.0)
    body = window(1, 10, rows=2)
    length = len(window(1, 10, rows=1)) - len(window(1, 10, rows=0))
    merge.add("a", body[:length], (1, 1))
    merge.add("b", *whole((7, 11)))
    assert merge.take(ALL, 0.0) == [Run("a", body[:length], (1, 1))]
    assert merge.take(ALL, 99.0) == []
    assert merge.open_source == "a"
    merge.add("a", body[length:], (1, WINDOW_DONE))
    assert scns(merge.take(ALL, 99.0)) == [("a", 1), ("a", 1)]
    assert scns(merge.take(ALL, 99.0 + WAIT_S)) == [("b", 7)]


def test_the_place_is_after_windows_without_anything_that_is_wanted() -> None:
    merge = Merge(["a"], WAIT_S, 0.0)
    merge.add("a", b"", (5, WINDOW_DONE))
    assert merge.places == {"a": (5, WINDOW_DONE)}
    merge.add("a", whole((6, 1))[0], (9, WINDOW_DONE))
    merge.take(ALL, 0.0)
    assert merge.places == {"a": (9, WINDOW_DONE)}


@pytest.mark.parametrize("body", [window(1, 1)[:-1], window(1, 1)[:20], bytes(60)])
def test_damaged_events_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        Merge(["a"], WAIT_S, 0.0).add("a", body, (1, WINDOW_DONE))


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=8), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 3)), max_size=40),
    st.booleans(),
)
def test_each_source_keeps_its_order_and_nothing_is_lost(
    times: list[list[int]], steps: list[tuple[int, int, int]], is_sorted: bool
) -> None:
    """`times` are the commit times of each source's windows, in its order: clocks may go back."""
    times = [sorted(one) for one in times] if is_sorted else times
    names = [f"s{number}" for number in range(len(times))]
    left = {name: deque(enumerate(one, 1)) for name, one in zip(names, times, strict=True)}
    merge, now_s, found = Merge(names, WAIT_S, 0.0), 0.0, []
    for number, count, pause in [*steps, *((n, 99, 9) for n in (0, 1, 2))]:
        name = names[number % len(names)]
        read = [left[name].popleft() for _ in range(min(count, len(left[name])))]
        if read:
            merge.add(name, *whole(*read))
        now_s += pause
        found += scns(merge.take(120, now_s))
    for _ in range(30):
        now_s += WAIT_S
        found += scns(merge.take(120, now_s))
    for name, one in zip(names, times, strict=True):
        assert [scn for source, scn in found if source == name] == list(range(1, len(one) + 1))


@given(st.lists(st.lists(st.integers(0, 50)), min_size=1, max_size=4))
def test_what_all_sources_have_at_once_is_sorted(times: list[list[int]]) -> None:
    names = [f"s{number}" for number in range(len(times))]
    at = {name: sorted(one) for name, one in zip(names, times, strict=True)}
    merge = Merge(names, WAIT_S, 0.0)
    for name, one in at.items():
        if one:
            merge.add(name, *whole(*enumerate(one, 1)))
    # A source of which all was taken might have more, and is waited for.
    taken = [merge.take(ALL, number * WAIT_S) for number in range(1, 6)]
    found = [at[name][scn - 1] for runs in taken for name, scn in scns(runs)]
    assert found == sorted(time for one in times for time in one)


class Answered(NamedTuple):
    """What a fake feed reads."""

    body: bytes
    resume: Position | None


class FakeFeed:
    """Answers what a test has put there; waits where there is nothing."""

    def __init__(self, *answers: Answered | Exception) -> None:
        self.answers = deque(answers)

    async def read(self, size_bytes: int, wait_s: float) -> Answered:
        while not self.answers:
            await asyncio.sleep(0.001)
        found = self.answers.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def disconnect(self) -> None:
        """Nothing waits."""


async def read_all(feeds: dict[str, FakeFeed], count: int) -> list[tuple[str, int]]:
    merged = MergedFeed(feeds, merge_wait_s=0.05)
    found: list[tuple[str, int]] = []
    try:
        while len(found) < count:
            found += scns(await merged.read(ALL, 5.0))
        return found
    finally:
        await merged.close()


def test_a_source_that_cannot_be_read_is_shown_and_the_others_go_on() -> None:
    async def run() -> None:
        away = SourceUnavailableError("the disk is away")
        feeds = {"a": FakeFeed(away), "b": FakeFeed(Answered(*whole((7, 20))))}
        merged = MergedFeed(feeds, merge_wait_s=0.05)
        assert scns(await merged.read(ALL, 5.0)) == [("b", 7)]
        assert [one.problem for one in merged.status()] == ["the disk is away", ""]
        assert merged.places == {"b": (7, WINDOW_DONE)}
        await merged.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "feeds",
    [
        {"a": FakeFeed(SourceUnavailableError("gone"))},
        {"a": FakeFeed(ScnNotFoundError(1, 5)), "b": FakeFeed()},
        {
            "a": FakeFeed(Answered(window(1, 1)[:70], (1, 1)), SourceUnavailableError("gone")),
            "b": FakeFeed(),
        },
    ],
)
def test_an_error_that_would_lose_windows_is_raised(feeds: dict[str, FakeFeed]) -> None:
    first = encode(Event(1, 1, 1, 0, 7, Opcode.UPSERT, Part(b"row", b"m" * 16, 1), None))
    for feed in feeds.values():
        for number, answer in enumerate(feed.answers):
            if isinstance(answer, Answered):
                feed.answers[number] = Answered(first, (1, 1))

    with pytest.raises((SourceUnavailableError, ScnNotFoundError)):
        asyncio.run(read_all(feeds, 99))


TWO = [
    {"name": "shop", "uri": "fake:", "sources": [PERSON.source]},
    {"name": "market", "uri": "fake:", "sources": [ORDERS.source]},
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRelay]:
    relay = ServedRelay(tmp_path, physical_sources=TWO)
    yield relay
    relay.close()


def test_two_sources_of_a_relay_are_read_as_one_and_one_paused_does_not_stop_the_other(
    served: ServedRelay,
) -> None:
    """T73 of the acceptance list: two sources, one paused."""

    def order(scn: int) -> Transaction:
        return transaction(scn, insert(scn, table=ORDERS))

    async def make() -> MergedFeed:
        feeds = {
            name: Feed(
                served.relay, QUEUE, CALLER, Selection(name, Checkpoint.flexible()), "of a test"
            )
            for name in ("shop", "market")
        }
        return MergedFeed(feeds, merge_wait_s=0.3)

    served.put(transaction(1, insert(1)), transaction(4, insert(4)))
    served.put(order(2), order(3), name="market")
    merged = served.server.run(make())
    found: list[tuple[str, int]] = []

    def read_to(count: int) -> list[tuple[str, int]]:
        while len(found) < count:
            found.extend(scns(served.server.run(merged.read(1 << 20, 5.0))))
        return [one for number, one in enumerate(found) if number % 2]  # each row has its end

    try:
        windows = [("shop", 1), ("market", 2), ("market", 3), ("shop", 4)]
        assert read_to(8) == windows
        served.relay.physical_sources["market"].capture.pause(5.0)
        for scn in (5, 6):
            served.put(transaction(scn, insert(scn)))
        windows += [("shop", 5), ("shop", 6)]
        assert read_to(12) == windows
        silent = {one.source: one.silent_s for one in merged.status()}
        assert silent["market"]
        served.relay.physical_sources["market"].capture.start()
        served.put(order(7), name="market")
        assert read_to(14) == [*windows, ("market", 7)]
        assert merged.places == {"shop": (6, WINDOW_DONE), "market": (7, WINDOW_DONE)}
    finally:
        served.server.run(merged.close())
