"""Names of sources: their own beside their tables', and which ones are refused or warned about."""

from __future__ import annotations

from typing import Any

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.conf.source_names import (
    NamedTable,
    SourceNames,
    espresso_names,
    name_warnings,
    source_problems,
    unclear_sources,
)
from databus.schemas.errors import SettingsError
from databus.schemas.table import Column, Table

ORDERS = "com.example.shop.Orders"
OWN = {"name": ORDERS, "table": "shop.orders"}


def physical(*sources: Any, uri: str = "mysql://u@h", name: str = "shop") -> PhysicalSourceSettings:
    raw = {"name": name, "uri": uri, "sources": list(sources)}
    return build_settings(raw, PhysicalSourceSettings)


def refused(*sources: Any, uri: str = "mysql://u@h") -> str:
    with pytest.raises(SettingsError) as caught:
        physical(*sources, uri=uri)
    return str(caught.value)


def test_a_source_has_its_tables_name_unless_it_is_given_one_of_its_own() -> None:
    settings = physical(OWN, "shop.items", {"name": "shop.people", "id": 7})
    assert settings.source_names == [ORDERS, "shop.items", "shop.people"]
    assert settings.by_table().sources == ("shop.orders", "shop.items", "shop.people")
    names = settings.names
    assert (names.table_of(ORDERS), names.name_of("shop.orders")) == ("shop.orders", ORDERS)
    assert (names.table_of("shop.items"), names.name_of("shop.items")) == ("shop.items",) * 2


def test_a_tables_own_name_stays_what_it_is() -> None:
    names = physical(OWN).names
    assert names.table_of("shop.orders") == "shop.orders"
    assert SourceNames().name_of("shop.orders") == "shop.orders"


def test_settings_with_only_some_sources_keep_their_tables() -> None:
    settings = physical(OWN, "shop.items").only([ORDERS])
    assert settings.names.table_of(ORDERS) == "shop.orders"
    assert settings.source_names == [ORDERS]


def test_names_are_own_when_one_of_them_is() -> None:
    assert physical(OWN, "shop.items").names.have_own
    assert not physical("shop.items", {"name": "shop.a", "table": "shop.a"}).names.have_own


@pytest.mark.parametrize("name", ["Orders", "com.example.shop.Orders", "_x.y1.z", "a.b"])
def test_an_own_name_is_made_of_avro_names(name: str) -> None:
    assert physical({"name": name, "table": "shop.orders"}).source_names == [name]


@pytest.mark.parametrize(
    "name", ["com..Orders", "com.2nd.Orders", ".a", "a.", "com.ex-ample", "a b", "日本", "a/b"]
)
def test_an_own_name_with_other_characters_is_refused(name: str) -> None:
    text = refused({"name": name, "table": "shop.orders"})
    assert f"{name!r} is no source name" in text
    assert "letters, digits and _" in text


@pytest.mark.parametrize("name", ["int", "null", "string"])
def test_a_source_is_not_named_like_a_type_of_avro(name: str) -> None:
    text = refused({"name": name, "table": "shop.orders"})
    assert f"{name!r} is a type of Avro" in text
    assert '{ name = "…", table = "shop.orders" }' in text
    assert physical({"name": f"shop.{name}", "table": "shop.orders"}).source_names


def test_a_table_may_have_a_name_that_no_source_could_have() -> None:
    tables = ["shop.a,b", "shop.a b", "shop.42", "shop.日本"]
    settings = physical(*({"name": f"x.y.T{n}", "table": t} for n, t in enumerate(tables)))
    assert list(settings.by_table().sources) == tables


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ([OWN, {**OWN, "table": "shop.other"}], f"source {ORDERS} is listed more than once"),
        (["shop.orders", "shop.orders"], "source shop.orders is listed more than once"),
        (
            [OWN, "shop.orders"],
            f"table shop.orders is captured as {ORDERS} and shop.orders: a table is one source",
        ),
        ([OWN, {**OWN, "name": "a.b.C"}], f"table shop.orders is captured as a.b.C and {ORDERS}"),
        (
            [{"name": "shop.items", "table": "shop.orders"}, {"name": "X", "table": "shop.items"}],
            "'shop.items' is the name of the source of table shop.orders and the table of another",
        ),
        ([{"name": ORDERS, "table": ""}], "'' is no table"),
        ([{"name": ORDERS, "table": " shop.orders"}], "' shop.orders' is no table"),
        ([{"name": ORDERS, "table": "shop.a\nb"}], "'shop.a\\nb' is no table"),
        ([{"name": ORDERS, "table": "orders"}], "'orders' is no table of a server"),
        (["Orders"], "'Orders' is no table of a server: write DATABASE.TABLE, or `table` beside"),
        ([{"name": "a,b", "table": "shop.orders"}], "give the source a name of its own"),
    ],
)
def test_names_and_tables_that_clash_or_are_none_are_refused(sources: list[Any], says: str) -> None:
    assert says in refused(*sources)


def test_other_kinds_name_their_tables_as_they_like() -> None:
    source = {"name": "com.example.Orders", "table": "orders"}
    for uri in ("sqlite:/shop.db", "generator:", "abacus:"):
        assert physical(source, uri=uri).by_table().sources == ("orders",)


def test_one_name_in_two_databases_is_refused_and_one_table_is_not() -> None:
    def relay(*sources: Any) -> RelaySettings:
        blocks = [
            {"name": f"shop{n}", "uri": "mysql://u@h", "sources": [one]}
            for n, one in enumerate(sources)
        ]
        return build_settings({"data_dir": "x", "physical_sources": blocks}, RelaySettings)

    with pytest.raises(
        SettingsError, match=r"source shop\.orders is listed in two physical sources"
    ):
        relay("shop.orders", "shop.orders")
    first, second = relay(OWN, "shop.orders").physical_sources
    assert first.by_table().sources == second.by_table().sources


def test_a_name_of_three_parts_without_a_table_is_unclear() -> None:
    (text,) = unclear_sources(physical("com.shop.customers").named_tables, "mysql")
    assert "'com.shop.customers' is read as the name of table 'shop.customers'" in text
    assert "of database 'com'" in text
    assert '{ name = "com.shop.customers", table = "shop.customers" }' in text
    (text,) = unclear_sources(physical("a.b.c", uri="sqlite:/x").named_tables, "sqlite")
    assert "read as the name of table 'b.c'" in text


def test_nothing_is_unclear_with_a_table_or_where_names_have_no_parts() -> None:
    given = physical({"name": "shop.a.b", "table": "shop.a.b"}, OWN, "shop.items")
    assert list(unclear_sources(given.named_tables, "mysql")) == []
    assert (
        list(unclear_sources(physical("a.b.c", uri="generator:").named_tables, "generator")) == []
    )


def test_an_own_name_of_two_parts_is_warned_about() -> None:
    settings = physical(
        {"name": "shop.Orders", "table": "shop.orders"}, "shop.items", OWN | {"table": "s.t"}
    )
    (text,) = name_warnings(settings.named_tables)
    assert "'shop.Orders' has two parts" in text
    assert "Espresso" in text
    assert espresso_names(settings.named_tables) == ["shop.Orders", "shop.items"]


def test_a_table_is_named_once() -> None:
    table = Table("shop.orders", (Column("id", "int", 0),))
    assert table.named("shop.orders") is table
    named = table.named(ORDERS)
    assert (named.source, named.table) == (ORDERS, "shop.orders")
    assert named.columns is table.columns


def test_problems_come_in_the_order_of_the_file() -> None:
    listed = [NamedTable("1", "s.a"), NamedTable("x", "y")]
    first, second = source_problems(listed, "mysql")
    assert first.startswith("'1'")
    assert second.startswith("'y'")
