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
from tools.fetch_archives import KAFKA, REGISTRY


@pytest.fixture(scope="session")
def new_kafka() -> Callable[[], PrivateKafka]:
    """Return what makes a private broker; not started."""
    archives = KAFKA.find()
    if archives is None:
        pytest.fail("Apache Kafka is not there: python -m tools.fetch_archives fetches it", False)
    return partial(PrivateKafka, archives)


@pytest.fixture(scope="session")
def kafka(new_kafka: Callable[[], PrivateKafka]) -> Iterator[PrivateKafka]:
    """Run a private broker for the session."""
    with new_kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def new_registry() -> Callable[[], PrivateRegistry]:
    """Return what makes a private registry of schemas; not started."""
    folder = REGISTRY.find()
    if folder is None:
        pytest.fail("the registry is not there: python -m tools.fetch_archives fetches it", False)
    (archive,) = folder.glob("*-runner.jar")
    return partial(PrivateRegistry, archive)


@pytest.fixture(scope="session")
def registry(new_registry: Callable[[], PrivateRegistry]) -> Iterator[PrivateRegistry]:
    """Run a private registry for the session."""
    with new_registry() as one:
        yield one
