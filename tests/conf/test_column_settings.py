"""The settings of columns that are left out or masked, and how wrong ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from databus.conf.settings import PhysicalSourceSettings


def settings(*columns: Any, **more: Any) -> PhysicalSourceSettings:
    values = {"uri": "mysql://me@db:3306", "sources": ["shop.users", "crm.*"], **more}
    return PhysicalSourceSettings(name="shop", columns=columns, **values)


def entry(*tables: str, **values: Any) -> dict[str, Any]:
    return {"tables": tables or ("shop.users",), **(values or {"exclude": ["note"]})}


def test_entries_are_about_tables_by_name_and_by_pattern_in_any_case() -> None:
    found = settings(entry(), entry("crm.*", "!crm.log"))
    tables = ("shop.users", "SHOP.users", "crm.contact", "crm.log", "shop.orders")
    assert [found.protects(table) for table in tables] == [True, True, True, False, False]


def test_the_choice_stays_with_settings_that_are_made_of_them() -> None:
    found = settings(entry(), {**entry(mask={"email": "hash"})}, mask_key_file=Path("/key"))
    for copy in (found.by_table(), found.only(["shop.users"]), found.at(found.uri)):
        assert (copy.columns, copy.mask_key_file) == (found.columns, Path("/key"))


def test_settings_of_some_tables_have_the_entries_of_those_alone_and_are_valid() -> None:
    entries = (entry("shop.users"), entry("crm.*", "!crm.log"), entry("crm.lead", "shop.users"))
    whole = settings(*entries, sources=["shop.*", "crm.*"])
    found = whole.with_found(["shop.users", "shop.orders", "crm.log"])
    assert found.only([]).columns == ()
    assert found.only(["shop.orders"]).columns == ()
    users = found.only(["shop.users", "shop.orders"])
    assert [one.tables for one in users.columns] == [("shop.users",), ("shop.users",)]
    assert PhysicalSourceSettings.model_validate(users.model_dump()).columns == users.columns
    both = found.only(["shop.users", "crm.log"])
    assert both.columns[1].tables == ("crm.*", "!crm.log")
    assert not both.protects("crm.log")


@pytest.mark.parametrize(
    ("columns", "more", "text"),
    [
        (entry(include=["a"], exclude=["b"]), {}, "`include` or `exclude`, not both"),
        ({"tables": ["shop.users"]}, {}, "it says nothing of columns"),
        (entry(exclude=["a", "a"]), {}, "exclude: a is named twice"),
        (entry(exclude=["!a"]), {}, "'!a' leaves out of what no pattern takes in"),
        (entry("!shop.users"), {}, "tables: '!shop.users' leaves out"),
        (entry(mask={"a": "sha256"}), {}, "a = 'sha256' is no mask: write `hash`, `redact`"),
        (entry(mask={"a": "truncate:0"}), {}, "truncate:0' is no mask"),
        (entry(mask={"!a": "redact"}), {}, "'!a' leaves a column out"),
        (entry(exclude=["a"], mask={"a": "redact"}), {}, "a is left out and masked"),
        (entry(mask={"a": "hash"}), {}, "mask_key_file: .*openssl rand -base64 32"),
        (entry("shop.user"), {}, "'shop.user' is no table among `sources`"),
        (entry("tenant_*.users"), {"sources": ["shop.users"]}, r"'tenant_\*.users' is no table"),
        (
            entry("com.shop.Users"),
            {"sources": [{"name": "com.shop.Users", "table": "shop.users"}]},
            "is no table among `sources`: its table is shop.users",
        ),
        (entry(), {"on_statement": "deliver"}, "on_statement: `deliver` hands statements over"),
        (entry(), {"uri": "databus+http://relay:1", "sources": ["shop.users"]}, "from a relay"),
    ],
)
def test_what_cannot_be_meant_is_refused(columns: Any, more: Any, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        settings(columns, **more)
