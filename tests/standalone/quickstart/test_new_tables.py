"""Tables that are not in databus.toml yet, and how they get into it."""

from __future__ import annotations

import tomllib

import pytest

from databus.standalone.quickstart.found import Found, FoundTable, Needs
from databus.standalone.quickstart.new_tables import new_tables, with_tables
from databus.standalone.quickstart.settings_file import settings_text

TABLES = (FoundTable("shop.orders"), FoundTable('shop.a "b" ü'))
TEXT = settings_text(Found("shop", "sqlite:a.db", "sqlite:a.db", TABLES, Needs()), 7, 8)
NEW = FoundTable("shop.new")


def sources(text: str) -> list[str]:
    (physical,) = tomllib.loads(text)["physical_sources"]
    found: list[str] = physical["sources"]
    return found


def test_a_table_is_new_if_the_file_does_not_name_it_and_it_can_be_captured() -> None:
    view = FoundTable("shop.view", "is a view")
    assert new_tables(TEXT, (*TABLES, NEW, view)) == [NEW]


def test_a_table_that_somebody_took_out_by_a_comment_is_not_new() -> None:
    text = TEXT.replace('    "shop.orders",', '    # "shop.orders",')
    assert new_tables(text, TABLES) == []


def test_a_pattern_names_new_tables_by_itself() -> None:
    assert new_tables(TEXT.replace('"shop.orders"', '"shop.*"'), (NEW,)) == []


def test_what_is_added_comes_last_and_all_else_stays() -> None:
    text = TEXT.replace('    "shop.orders",', '    "shop.orders",  # mine\n\n    # "shop.old",')
    changed = with_tables(text, ["shop.new", "shop.ü"])
    assert changed is not None
    assert sources(changed) == [*sources(text), "shop.new", "shop.ü"]
    assert changed.replace('    "shop.new",\n    "shop.ü",\n', "") == text


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("sources = [\n", "sources = [").replace(",\n]", "]"),
        TEXT.replace('"shop.orders"', '"shop.a]b"'),
        TEXT + TEXT[TEXT.index("[[physical_sources]]") :].replace('"shop"', '"other"'),
    ],
    ids=["one line", "a bracket", "two databases"],
)
def test_a_list_of_another_form_is_left_alone(text: str) -> None:
    assert with_tables(text, ["shop.new"]) is None
