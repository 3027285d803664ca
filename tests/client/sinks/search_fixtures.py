"""Fixtures with a real OpenSearch, a plugin of pytest: one server, emptied for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.client.sinks.search_server import PrivateOpenSearch
from tools.fetch_archives import OPENSEARCH


@pytest.fixture(scope="session")
def new_search() -> Callable[[], PrivateOpenSearch]:
    """Return what makes a private server; not started."""
    archives = OPENSEARCH.find()
    if archives is None:
        pytest.fail("OpenSearch is not there: python -m tools.fetch_archives fetches it", False)
    return partial(PrivateOpenSearch, archives)


@pytest.fixture(scope="session")
def search_server(new_search: Callable[[], PrivateOpenSearch]) -> Iterator[PrivateOpenSearch]:
    """Run a private server for the session."""
    with new_search() as server:
        yield server


@pytest.fixture
def search(search_server: PrivateOpenSearch) -> PrivateOpenSearch:
    """Return the server, without indexes."""
    search_server.clear()
    return search_server
