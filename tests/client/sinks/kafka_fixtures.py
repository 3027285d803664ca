"""Fixtures with a real broker of Kafka, a plugin of pytest.

One private broker serves the whole session; each test makes topics of its own. Without the archives
these tests are left out, and the end of the run says so (`tests/conftest.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.client.sinks.kafka_broker import PrivateKafka
from tests.client.sinks.schema_registry import PrivateRegistry
from tools import fetch_kafka


@pytest.fixture(scope="session")
def new_kafka() -> Callable[[], PrivateKafka]:
    """Return what makes a private broker; not started."""
    archives = fetch_kafka.find()
    if archives is None:
        pytest.fail("Apache Kafka is not there: python -m tools.fetch_kafka fetches it", False)
    return partial(PrivateKafka, archives)


@pytest.fixture(scope="session")
def kafka(new_kafka: Callable[[], PrivateKafka]) -> Iterator[PrivateKafka]:
    """Run a private broker for the session."""
    with new_kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def new_registry(new_kafka: Callable[[], PrivateKafka]) -> Callable[[], PrivateRegistry]:
    """Return what makes a private registry of schemas; not started."""
    archive = fetch_kafka.find_registry()
    assert archive is not None
    return partial(PrivateRegistry, archive)


@pytest.fixture(scope="session")
def registry(new_registry: Callable[[], PrivateRegistry]) -> Iterator[PrivateRegistry]:
    """Run a private registry for the session."""
    with new_registry() as one:
        yield one
