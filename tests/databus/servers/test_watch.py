"""A watch of the list of servers: what it tells, and what it does without the list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from databus.servers.entry import HeldSource, ServerEntry
from databus.servers.watch import ServerWatch
from tests.client.shop import wait_until
from tests.databus.servers.fake_directory import FakeDirectory

SHOP = {"shop": HeldSource(("shop.orders",))}
A, B = (ServerEntry(name, "relay", f"http://{name}:1", "", 0, SHOP) for name in "ab")


@pytest.fixture
def directory() -> FakeDirectory:
    return FakeDirectory()


@pytest.fixture
def told() -> list[Sequence[ServerEntry]]:
    return []


@pytest.fixture
def watch(directory: FakeDirectory, told: list[Sequence[ServerEntry]]) -> Iterator[ServerWatch]:
    found = ServerWatch(directory, told.append)
    yield found
    found.stop()
    assert directory.is_closed


def test_it_tells_of_servers_that_come_and_go(
    directory: FakeDirectory, told: list[Sequence[ServerEntry]], watch: ServerWatch
) -> None:
    watch.start()
    wait_until(lambda: told == [[]])
    directory.put(B)
    wait_until(lambda: told[-1] == [B])
    directory.put(A)
    wait_until(lambda: told[-1] == [A, B])
    directory.remove("b")
    wait_until(lambda: told[-1] == [A])
    assert not watch.problem


def test_without_the_list_the_known_servers_stay_and_that_is_said(
    directory: FakeDirectory, told: list[Sequence[ServerEntry]], watch: ServerWatch
) -> None:
    directory.put(A)
    watch.start()
    wait_until(lambda: told == [[A]])
    directory.is_away = True
    wait_until(lambda: "away; going on with the 1 servers that are known" in watch.problem)
    directory.is_away = False
    directory.put(B)
    wait_until(lambda: told[-1] == [A, B] and not watch.problem)


def test_an_empty_list_after_one_with_servers_is_not_believed(
    directory: FakeDirectory, told: list[Sequence[ServerEntry]], watch: ServerWatch
) -> None:
    directory.put(A)
    watch.start()
    wait_until(lambda: told == [[A]])
    directory.remove("a")
    wait_until(lambda: "no server is listed at memory:" in watch.problem)
    assert told == [[A]]
    directory.put(B)
    wait_until(lambda: told[-1] == [B] and not watch.problem)


@pytest.mark.parametrize("trouble", ["is_away", "is_broken"])
def test_at_the_start_without_a_list_it_says_so_and_goes_on(
    directory: FakeDirectory,
    told: list[Sequence[ServerEntry]],
    watch: ServerWatch,
    trouble: str,
) -> None:
    setattr(directory, trouble, True)
    watch.start()
    wait_until(lambda: "no server is known" in watch.problem)
    setattr(directory, trouble, False)
    directory.put(A)
    wait_until(lambda: told == [[A]] and not watch.problem)


def test_one_that_never_began_is_closed(watch: ServerWatch) -> None:
    watch.stop()
    watch.start()
