"""Fixtures with a ClickHouse, a plugin of pytest: one server, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.sinks.clickhouse_server import PrivateClickHouse


@pytest.fixture(scope="session")
def clickhouse_server() -> Iterator[PrivateClickHouse]:
    """Run a private server for the session."""
    with PrivateClickHouse() as server:
        yield server


@pytest.fixture
def clickhouse(clickhouse_server: PrivateClickHouse) -> PrivateClickHouse:
    """Return the server, with the empty database `shop`."""
    clickhouse_server.clear()
    return clickhouse_server
