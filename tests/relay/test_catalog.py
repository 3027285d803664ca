from __future__ import annotations

from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.catalog import check_tables, make_catalog
from databus.schemas.errors import SettingsError, UnknownSourceError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema


def physical(name: str, *sources: Any) -> PhysicalSourceSettings:
    raw = {"name": name, "uri": "fake:", "sources": sources}
    return PhysicalSourceSettings.model_validate(raw)


def test_ids_are_given_in_the_order_of_listing_over_all_physical_sources() -> None:
    catalog = make_catalog([physical("a", "x.one", "x.two"), physical("b", "y.three")], {})
    assert catalog.ids == {"x.one": 1, "x.two": 2, "y.three": 3}
    assert catalog.src_ids_of("b") == {"y.three": 3}


def test_explicit_ids_are_kept_free() -> None:
    catalog = make_catalog([physical("a", "x.one", {"name": "x.two", "id": 1}, "x.three")], {})
    assert catalog.ids == {"x.one": 2, "x.two": 1, "x.three": 3}


def test_a_source_keeps_its_id_when_others_are_listed_before_it() -> None:
    first = make_catalog([physical("a", "x.one", "x.two")], {})
    then = make_catalog([physical("a", "x.zero", "x.two", "x.one")], first.ids)
    assert then.ids == {"x.zero": 3, "x.two": 2, "x.one": 1}


def test_an_id_of_a_source_no_longer_listed_is_not_given_again() -> None:
    catalog = make_catalog([physical("a", "x.two")], {"x.one": 1})
    assert catalog.ids == {"x.two": 2}
    assert catalog.former_ids == {1}


@pytest.mark.parametrize(
    ("listed", "known", "says"),
    [
        ([physical("a", "x.one"), physical("a", "x.two")], {}, "physical source a"),
        ([physical("a", "x.one"), physical("b", "x.one")], {}, "source x.one"),
        (
            [physical("a", {"name": "x.one", "id": 7}, {"name": "x.two", "id": 7})],
            {},
            "source id 7",
        ),
        ([physical("a", {"name": "x.one", "id": 7})], {"x.one": 3}, "never changes"),
    ],
)
def test_settings_that_clash_are_named(
    listed: list[PhysicalSourceSettings], known: dict[str, int], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        make_catalog(listed, known)


def captured(name: str, table: str) -> SchemaRegistry:
    """Return a registry with a source that was captured from a table."""
    registry = SchemaRegistry(MemoryStore())
    registry.add_source(name, 1)
    columns = (Column("id", "integer", 0, key_position=0),)
    registry.register(name, avro_schema(Table(table, columns).named(name)), 0)
    return registry


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("com.example.shop.Orders", "shop.orders", "shop.orders2"),
        ("shop.orders", "shop.orders", "shop.orders2"),
        ("shop.orders", "shop.orders2", "shop.orders"),
    ],
)
def test_a_source_never_changes_its_table(name: str, before: str, now: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_tables([physical("a", {"name": name, "table": now})], captured(name, before))
    assert f"was captured from table {before}, and is now to be captured from {now}" in str(
        caught.value
    )


def test_a_source_of_the_same_table_or_a_new_one_is_well() -> None:
    registry = captured("com.example.shop.Orders", "shop.orders")
    own = {"name": "com.example.shop.Orders", "table": "shop.orders"}
    check_tables([physical("a", own, "shop.new")], registry)
    check_tables([physical("a", {"name": "a.b.Orders", "table": "shop.orders"})], registry)


def test_a_schema_that_names_no_table_is_no_reason_to_refuse() -> None:
    registry = SchemaRegistry(MemoryStore())
    registry.add_source("shop.orders", 1)
    registry.register("shop.orders", '{"type": "record", "name": "orders", "fields": []}', 0)
    check_tables([physical("a", {"name": "shop.orders", "table": "shop.x"})], registry)


def test_sources_are_found_by_id_and_by_name() -> None:
    catalog = make_catalog([physical("a", "x.one"), physical("b", "y.two")], {})
    assert catalog.resolve("2") == catalog.resolve(" y.two ") == 2
    assert catalog.name_of(1) == "x.one"


@pytest.mark.parametrize("text", ["3", "0", "-1", "x.three", "", "٣", "1" * 30, "1.0"])
def test_an_unknown_source_is_an_error_that_lists_the_known_ones(text: str) -> None:
    catalog = make_catalog([physical("a", "x.one", "x.two")], {})
    with pytest.raises(UnknownSourceError, match=r"1 \(x\.one\), 2 \(x\.two\)"):
        catalog.resolve(text)
