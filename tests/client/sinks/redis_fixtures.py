"""Fixtures with a real Redis, a plugin of pytest: one server, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.sinks.redis_server import PrivateRedis


@pytest.fixture(scope="session")
def redis_server() -> Iterator[PrivateRedis]:
    """Run a private server for the session."""
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def redis(redis_server: PrivateRedis) -> Iterator[Any]:
    """Return a client of an empty server."""
    with redis_server.client() as client:
        client.flushall()
        yield client
