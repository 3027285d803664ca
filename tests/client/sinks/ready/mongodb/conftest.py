"""A real MongoDB for the tests of this folder: one server, emptied for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from bson import Decimal128

from databus.client.sinks.contract import Change, Opening
from databus.client.sinks.ready.mongodb.sink import MongoSink
from databus.conf.loading import build_settings
from tests.client.sinks.ready.mongodb.mongo_server import PrivateMongo
from tools import fetch_mongodb

OPENING = Opening("test", "shop")


@pytest.fixture(scope="session")
def new_mongo() -> Callable[..., PrivateMongo]:
    """Return what makes a private server; not started."""
    program = fetch_mongodb.find()
    if program is None:
        pytest.fail("MongoDB is not there: python -m tools.fetch_mongodb fetches it", False)
    return partial(PrivateMongo, program)


@pytest.fixture(scope="session")
def mongo_server(new_mongo: Callable[..., PrivateMongo]) -> Iterator[PrivateMongo]:
    """Run a private server for the session."""
    with new_mongo() as server:
        yield server


class Target:
    """An empty server and sinks that write to it."""

    def __init__(self, server: PrivateMongo) -> None:
        self.server = server
        self.client = server.client()

    @contextmanager
    def opened(self, **options: Any) -> Iterator[MongoSink]:
        """Yield an open sink."""
        sink = self.sink(**options)
        try:
            sink.open(OPENING)
            yield sink
        finally:
            sink.close()

    def sink(self, **options: Any) -> MongoSink:
        """Return a sink, which is to be closed; not open."""
        given = {"url": self.server.url, **options}
        return MongoSink(build_settings(given, MongoSink.Options, "options of mongodb"))

    def put(self, *changes: Change, **options: Any) -> None:
        """Write changes in one flush of a sink of their own."""
        with self.opened(**options) as sink:
            sink.write(changes)
            sink.flush()

    def documents(self, collection: str = "t", database: str = "shop") -> dict[Any, Any]:
        """Return the documents by `_id`, without it; an `_id` of several columns as their tuple."""
        found = {}
        for one in self.client[database][collection].find():
            key = one.pop("_id")
            parts = tuple(map(_plain, key.values() if isinstance(key, dict) else [key]))
            found[parts if len(parts) > 1 else parts[0]] = one
        return found


def _plain(value: Any) -> Any:
    return value.to_decimal() if isinstance(value, Decimal128) else value


@pytest.fixture
def target(mongo_server: PrivateMongo) -> Iterator[Target]:
    """Return the server, without databases."""
    mongo_server.clear()
    made = Target(mongo_server)
    yield made
    made.client.close()
