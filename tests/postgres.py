"""Fixtures with a real PostgreSQL, which is a target only; load as a pytest plugin.

One private server serves the whole session; each test that asks for
`postgres_url` gets a fresh database. Where PostgreSQL could not be fetched these
tests are left out, and the end of the run says so (`tests/conftest.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fetched_servers import needed
from tests.postgres_server import PrivatePostgres, fresh_url
from tools.fetch_test_servers import POSTGRES


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """Run a private server for the session."""
    with PrivatePostgres(needed(POSTGRES, POSTGRES.find())) as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PrivatePostgres) -> Iterator[str]:
    """Make a fresh database, dropped at the end; gives SQLAlchemy's URL of it."""
    with fresh_url(postgres) as url:
        yield url
