"""Patterns of names choose what they say, whatever their order and the names' characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import permutations, text

from databus.conf.patterns import NamePatterns, escaped, head, is_pattern, unescaped


@pytest.mark.parametrize(
    ("patterns", "chosen", "others"),
    [
        (["shop.*"], ["shop.a", "shop.a.b", "shop."], ["shop", "shopx.a", "Shop.a", "x.shop.a"]),
        (["shop.*", "!shop.tmp_*"], ["shop.a", "shop.atmp_"], ["shop.tmp_", "shop.tmp_1"]),
        (["!shop.tmp_*", "shop.*"], ["shop.a"], ["shop.tmp_1"]),
        (["tenant_?.orders"], ["tenant_1.orders"], ["tenant_12.orders", "tenant_.orders"]),
        (["a.*", "b.*"], ["a.x", "b.x"], ["c.x"]),
        (["shop.a\\*b*"], ["shop.a*b", "shop.a*bc"], ["shop.axb"]),
        (["shop.[ab]*"], ["shop.[ab]c"], ["shop.ac"]),
        (["shop.a+*"], ["shop.a+", "shop.a+b"], ["shop.aab"]),
        (["*\\\\"], ["x\\"], ["x", "x\\\\y"]),
        (["!shop.*"], [], ["shop.a", "x"]),
        ([], [], ["", "x"]),
    ],
)
def test_a_name_is_chosen_by_a_pattern_unless_one_leaves_it_out(
    patterns: list[str], chosen: list[str], others: list[str]
) -> None:
    found = NamePatterns(patterns)
    assert [name for name in (*chosen, *others) if found.match(name)] == chosen


@given(
    permutations(["shop.*", "!shop.t*", "x.?", "!x.a", "shop.tt*"]), text("shop.xtab", max_size=8)
)
def test_the_order_of_patterns_does_not_matter(patterns: list[str], name: str) -> None:
    assert NamePatterns(patterns).match(name) == NamePatterns(sorted(patterns)).match(name)


@given(text())
def test_an_escaped_name_is_no_pattern_and_stands_for_itself_alone(name: str) -> None:
    assert not is_pattern(escaped(name))
    assert unescaped(escaped(name)) == name
    assert NamePatterns([escaped(name)]).match(name)


def test_case_matters_only_where_it_does_in_the_database() -> None:
    found = NamePatterns(["Shop.*", "!Shop.TMP*"])
    assert not found.match("shop.a")
    assert found.folding_case().match("SHOP.a")
    assert not found.folding_case().match("shop.tmp1")


def test_a_pattern_that_matches_nothing_is_named() -> None:
    found = NamePatterns(["shop.*", "crm.*", "!x.*"])
    assert found.unmatched(["shop.a"]) == ["crm.*"]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("shop.*", True), ("!shop.a", True), ("a?", True), ("shop.a", False), ("a\\*", False)],
)
def test_a_name_without_wild_characters_is_no_pattern(text: str, is_one: bool) -> None:
    assert is_pattern(text) is is_one


def test_the_head_of_a_pattern_is_its_database() -> None:
    assert [head(one) for one in ("shop.*", "!t_*.a.b", "*")] == ["shop", "t_*", "*"]
