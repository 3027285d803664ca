"""A server in the list: what is written of it, and that it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from databus.servers.announcer import Announcer
from databus.servers.entry import HeldSource
from tests import PATIENCE_S
from tests.databus.servers.fake_directory import FakeDirectory

SHOP = HeldSource(("shop.orders",), 3, 9)


class Server:
    """A server with an announcer, in a list in memory."""

    def __init__(self, public_url: str = "") -> None:
        self.held = {"shop": SHOP}
        self.connections = 1
        self.directory = FakeDirectory()
        self.announcer = Announcer(
            self.directory, "relay", "cellar", public_url, lambda: self.held, every_s=0.01
        )
        self.announcer.enter("http://127.0.0.1:5", lambda: self.connections)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.005)


def test_a_server_is_listed_with_its_numbers_until_it_leaves() -> None:
    async def run() -> None:
        server = Server()
        there = server.directory.there
        await server.until(lambda: server.announcer.is_listed)
        (entry,) = there.values()
        assert (entry.kind, entry.url, entry.room) == ("relay", "http://127.0.0.1:5", "cellar")
        assert (entry.connections, entry.physical_sources) == (1, {"shop": SHOP})
        server.connections = 6
        await server.until(lambda: [one.connections for one in there.values()] == [6])
        puts = server.directory.puts
        await server.until(lambda: server.directory.puts > puts)
        await server.announcer.leave(5)
        assert not there
        assert server.directory.is_closed

    asyncio.run(run())


def test_it_is_listed_where_others_reach_it() -> None:
    async def run() -> None:
        server = Server("https://relay-a")
        await server.until(lambda: server.announcer.is_listed)
        assert [one.url for one in server.directory.there.values()] == ["https://relay-a"]
        await server.announcer.leave(5)

    asyncio.run(run())


def test_a_server_that_serves_nothing_is_not_listed() -> None:
    async def run() -> None:
        server = Server()
        await server.until(lambda: server.announcer.is_listed)
        server.held = {}
        await server.until(lambda: not server.announcer.is_listed)
        assert not server.directory.there
        await server.announcer.leave(5)

    asyncio.run(run())


@pytest.mark.parametrize(("trouble", "problem"), [("is_away", "away"), ("is_broken", "ZeroDiv")])
def test_while_the_list_is_away_it_says_so_and_tries_again(trouble: str, problem: str) -> None:
    async def run() -> None:
        server = Server()
        setattr(server.directory, trouble, True)
        await server.until(lambda: problem in server.announcer.problem)
        setattr(server.directory, trouble, False)
        await server.until(lambda: server.announcer.is_listed and not server.announcer.problem)
        await server.announcer.leave(5)

    asyncio.run(run())


def test_a_server_ends_though_the_list_is_away() -> None:
    async def run() -> None:
        server = Server()
        await server.until(lambda: server.announcer.is_listed)
        server.directory.is_away = True
        await server.announcer.leave(5)
        assert server.directory.is_closed

    asyncio.run(run())
