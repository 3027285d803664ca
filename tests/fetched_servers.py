"""Servers that are fetched: what is done about the tests of one that is not there.

They are left out of the run, not skipped one by one, and the end of the run
names the server, the number of tests and what to do. Where the environment says
that the servers must be there, the tests are run and fail with the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mysql_server import mysql_basedir
from tools import fetch_avro, fetch_canal, fetch_canal_clients, fetch_mongodb, fetch_ptubes
from tools.fetch_archives import KAFKA, OPENSEARCH, REGISTRY
from tools.fetch_test_servers import MYSQL, NEWER_MARIADB, POSTGRES, ArchivedServer, is_required

COMMAND = "python -m tools.fetch_test_servers"


def needed(server: ArchivedServer, folder: Path | None) -> Path:
    """Return a server's folder, or fail the test with what to do."""
    if folder is None:
        pytest.fail(f"{server.title} is not there: {COMMAND} fetches it, or says why not", False)
    return folder


def split_by_presence(
    items: list[pytest.Item],
) -> tuple[list[pytest.Item], dict[str, list[pytest.Item]]]:
    """Return the tests that can be run, and the others by why they cannot."""
    lacking = {} if is_required() else dict(_absent())
    kept: list[pytest.Item] = []
    left_out: dict[str, list[pytest.Item]] = {}
    for item in items:
        marker = next((m for m in lacking if item.get_closest_marker(m)), None)
        (kept if marker is None else left_out.setdefault(lacking[marker], [])).append(item)
    return kept, left_out


def not_run(why: str, count: int) -> str:
    """Say which tests were not run, and what to do."""
    return f"not run: {count} tests: {why}"


def _not_fetched(server: ArchivedServer) -> str:
    return f"{server.title} could not be fetched; {COMMAND} says why"


def _absent() -> Iterator[tuple[str, str]]:
    if mysql_basedir() is None:
        yield "mysql", _not_fetched(MYSQL)
    if NEWER_MARIADB.find() is None:
        yield "newer_mariadb", _not_fetched(NEWER_MARIADB)
    if POSTGRES.find() is None:
        yield "postgres", _not_fetched(POSTGRES)
    for client in fetch_canal_clients.CLIENTS:
        if client.find() is None:
            why = f"{client.title} is not there; python -m tools.fetch_canal_clients says why"
            yield f"canal_client_{client.name}", why
    if fetch_avro.find() is None:
        yield "avro_java", "Avro 1.4.0 or Java is not there; python -m tools.fetch_avro says why"
    if fetch_canal.find() is None:
        yield "canal_java", "Canal or Java is not there; python -m tools.fetch_canal says why"
    if KAFKA.find() is None or REGISTRY.find() is None:
        why = (
            "Apache Kafka, a registry or Java is not there; python -m tools.fetch_archives says why"
        )
        yield "kafka", why
    if OPENSEARCH.find() is None:
        why = "OpenSearch or a JDK is not there; python -m tools.fetch_archives says why"
        yield "opensearch", why
    if fetch_mongodb.find() is None:
        yield (
            "mongodb",
            f"{fetch_mongodb.TITLE} is not there; python -m tools.fetch_mongodb says why",
        )
    if fetch_ptubes.find() is None:
        why = "Ptubes' client or a JDK is not there; python -m tools.fetch_ptubes says why"
        yield "ptubes_sdk", why
