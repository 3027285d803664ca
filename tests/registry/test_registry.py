"""Histories: what a source's schema was at an SCN, and that it stays so."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore, SqliteStore, StoredVersion
from databus.schemas.avro_rows import schema_id
from databus.schemas.errors import (
    IncompatibleSchemaError,
    SchemaError,
    SchemaNotFoundError,
    UnknownSourceError,
)
from tests import PATIENCE_S
from tests.registry.texts import ORDERS_1, ORDERS_2, ORDERS_3, TEXT_ID

SOURCE = "shop.orders"


@pytest.fixture
def registry() -> SchemaRegistry:
    """A registry that knows one source, without versions."""
    made = SchemaRegistry(MemoryStore())
    made.add_source(SOURCE, 40)
    return made


def test_versions_count_from_one_and_carry_their_id(registry: SchemaRegistry) -> None:
    first = registry.register(SOURCE, ORDERS_1, 10)
    second = registry.register(SOURCE, ORDERS_2, 20)
    assert (first.version, first.start_scn, first.src_id) == (1, 10, 40)
    assert (second.version, second.start_scn) == (2, 20)
    assert first.schema_id == schema_id(ORDERS_1)
    assert registry.versions(SOURCE) == (first, second)
    assert registry.latest(SOURCE) == second


def test_a_version_holds_from_its_start_to_the_next_ones(registry: SchemaRegistry) -> None:
    first = registry.register(SOURCE, ORDERS_1, 10)
    second = registry.register(SOURCE, ORDERS_2, 20)
    assert [registry.at(SOURCE, scn) for scn in (10, 19, 20, 1 << 60)] == [
        first,
        first,
        second,
        second,
    ]
    with pytest.raises(SchemaNotFoundError, match="at scn 9"):
        registry.at(SOURCE, 9)


def test_the_latest_text_again_makes_no_version(registry: SchemaRegistry) -> None:
    first = registry.register(SOURCE, ORDERS_1, 10)
    assert registry.register(SOURCE, ORDERS_1, 500) == first
    assert len(registry.versions(SOURCE)) == 1


def test_reading_the_log_again_gives_the_versions_it_gave_before(registry: SchemaRegistry) -> None:
    log = [(ORDERS_1, 10), (ORDERS_2, 20), (ORDERS_1, 30), (ORDERS_3, 40)]
    once = [registry.register(SOURCE, text, scn, check=False) for text, scn in log]
    again = [registry.register(SOURCE, text, scn, check=False) for text, scn in log]
    assert again == once
    assert [version.version for version in once] == [1, 2, 3, 4]


def test_history_is_never_rewritten(registry: SchemaRegistry) -> None:
    registry.register(SOURCE, ORDERS_1, 10)
    registry.register(SOURCE, ORDERS_2, 20)
    with pytest.raises(SchemaError, match="before version 2, which starts at 20"):
        registry.register(SOURCE, ORDERS_3, 15)
    assert len(registry.versions(SOURCE)) == 2


def test_an_incompatible_version_is_refused_by_field_unless_unchecked(
    registry: SchemaRegistry,
) -> None:
    registry.register(SOURCE, ORDERS_1, 10)
    with pytest.raises(IncompatibleSchemaError, match="field 'id'"):
        registry.register(SOURCE, TEXT_ID, 20)
    assert registry.register(SOURCE, TEXT_ID, 20, check=False).version == 2


def test_what_is_no_schema_is_refused_even_unchecked(registry: SchemaRegistry) -> None:
    with pytest.raises(SchemaError, match="not an Avro schema"):
        registry.register(SOURCE, "{}", 10, check=False)
    with pytest.raises(SchemaNotFoundError, match="no schema yet"):
        registry.latest(SOURCE)


def test_a_schema_is_found_by_its_id(registry: SchemaRegistry) -> None:
    version = registry.register(SOURCE, ORDERS_1, 10)
    assert registry.by_id(version.schema_id) == version
    with pytest.raises(SchemaNotFoundError, match="00" * 16):
        registry.by_id(bytes(16))


def test_an_unknown_source_is_answered_with_the_known_ones(registry: SchemaRegistry) -> None:
    for call in (registry.versions, registry.latest):
        with pytest.raises(UnknownSourceError, match=r"'shop\.nothing'; known: shop\.orders"):
            call("shop.nothing")
    with pytest.raises(UnknownSourceError):
        registry.register("shop.nothing", ORDERS_1, 1)


def test_a_source_keeps_its_id(registry: SchemaRegistry) -> None:
    registry.add_source(SOURCE, 40)
    with pytest.raises(SchemaError, match="has id 40, and an id never changes"):
        registry.add_source(SOURCE, 41)
    with pytest.raises(SchemaError, match=r"id 40 belongs to shop\.orders"):
        registry.add_source("shop.items", 40)
    with pytest.raises(SchemaError, match=r"not in 1\.\.32767"):
        registry.add_source("shop.items", 32768)
    assert registry.sources() == {SOURCE: 40}


def test_versions_of_a_source_that_is_not_added_yet_wait_for_it() -> None:
    registry = SchemaRegistry(MemoryStore([StoredVersion(SOURCE, 1, ORDERS_1, 0)]))
    with pytest.raises(UnknownSourceError):
        registry.latest(SOURCE)
    registry.add_source(SOURCE, 40)
    assert registry.latest(SOURCE).src_id == 40
    assert registry.by_id(schema_id(ORDERS_1)).source == SOURCE


def test_a_store_with_a_gap_is_refused_with_the_version() -> None:
    store = MemoryStore([StoredVersion(SOURCE, 2, ORDERS_1, 0)])
    with pytest.raises(SchemaError, match="version 2 comes where 1 is"):
        SchemaRegistry(store)


def test_a_version_that_cannot_be_saved_is_not_given_out() -> None:
    class FullStore(MemoryStore):
        def save_versions(self, versions: Sequence[StoredVersion]) -> None:
            raise SchemaError("disk full")

    registry = SchemaRegistry(FullStore())
    registry.add_source(SOURCE, 40)
    with pytest.raises(SchemaError, match="disk full"):
        registry.register(SOURCE, ORDERS_1, 10)
    assert registry.versions(SOURCE) == ()


def test_another_process_finds_ids_and_histories_again(tmp_path: Path) -> None:
    first = SchemaRegistry(SqliteStore(tmp_path / "schemas.db"))
    first.add_source(SOURCE, 40)
    made = [first.register(SOURCE, ORDERS_1, 10), first.register(SOURCE, ORDERS_2, 20)]
    second = SchemaRegistry(SqliteStore(tmp_path / "schemas.db"))
    assert second.sources() == {SOURCE: 40}
    assert list(second.versions(SOURCE)) == made


def test_threads_that_register_the_same_text_get_the_same_version(tmp_path: Path) -> None:
    registry = SchemaRegistry(SqliteStore(tmp_path / "schemas.db"))
    registry.add_source(SOURCE, 40)
    start = threading.Barrier(8)
    found: list[int] = []

    def run() -> None:
        start.wait(PATIENCE_S)
        found.append(registry.register(SOURCE, ORDERS_1, 10).version)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == [1] * 8


TEXTS = st.sampled_from([ORDERS_1, ORDERS_2, ORDERS_3, TEXT_ID])


@given(st.lists(st.tuples(TEXTS, st.integers(0, 50)), max_size=12), st.integers(0, 600))
def test_the_text_in_force_is_the_one_last_seen_in_the_log(
    steps: list[tuple[str, int]], asked: int
) -> None:
    registry = SchemaRegistry(MemoryStore())
    registry.add_source(SOURCE, 1)
    scn, expected = 0, None
    for text, distance in steps:
        scn += distance
        registry.register(SOURCE, text, scn, check=False)
        if scn <= asked:
            expected = text
    if expected is None:
        with pytest.raises(SchemaNotFoundError):
            registry.at(SOURCE, asked)
    else:
        assert registry.at(SOURCE, asked).text == expected
