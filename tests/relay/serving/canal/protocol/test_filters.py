"""Canal's filters of tables."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from databus.relay.serving.canal.protocol.errors import CanalError
from databus.relay.serving.canal.protocol.filters import MOST_CHARS, TableFilter, split_filter


@pytest.mark.parametrize(
    ("text", "passing", "others"),
    [
        (r".*\..*", ["shop.orders", "a.b"], []),
        (".*\\..*", ["shop.orders"], []),
        (r"canal\..*", ["canal.a", "CANAL.B"], ["canal2.a", "xcanal.a"]),
        (r"canal\.canal.*", ["canal.canal", "canal.canal_2"], ["canal.other"]),
        (r"canal.test1", ["canal.test1", "Canal.Test1"], ["canal.test10", "acanal.test1"]),
        (r"a\.x, b\.(y|z)", ["a.x", "b.y", "b.z"], ["a.y", "a.x b.y"]),
        (r"a\.x{1,2},b\.[,y]", ["a.x", "a.xx", "b.,", "b.y"], ["a.xxx"]),
        ("", ["any.table"], []),
        (" , ", ["any.table"], []),
    ],
)
def test_whole_names_pass_without_regard_to_case(
    text: str, passing: list[str], others: list[str]
) -> None:
    tables = TableFilter(text)
    assert [table for table in (*passing, *others) if tables.passes(table)] == passing


def test_the_black_list_wins_and_what_is_of_no_table_passes() -> None:
    tables = TableFilter(r"shop\..*", r"shop\.secret.*,other\..*")
    assert tables.passes("shop.orders")
    assert not tables.passes("shop.SECRETS")
    assert not tables.passes("other.t")
    assert tables.passes("")


def test_commas_in_brackets_do_not_separate() -> None:
    assert split_filter(r"a\.b{1,2},c\.(d,e),f\,g,,h") == [
        r"a\.b{1,2}",
        r"c\.(d,e)",
        r"f\,g",
        "h",
    ]


@pytest.mark.parametrize("text", ["(", r"(?!a)b\.c", r"(a)\1", "a{1000}{1000}", "a)|(b"])
def test_what_cannot_be_used_is_refused_with_a_way_on(text: str) -> None:
    with pytest.raises(CanalError, match="black_filter"):
        TableFilter(text)


def test_what_is_too_long_is_refused() -> None:
    with pytest.raises(CanalError, match="characters"):
        TableFilter("a" * (MOST_CHARS + 1))
    with pytest.raises(CanalError, match="expressions"):
        TableFilter("a," * 2000)


def test_an_expression_that_would_take_years_elsewhere_takes_no_time() -> None:
    assert not TableFilter(r"(a+)+(b+)+\.c").passes("a" * 200 + "." + "b" * 200)


@given(st.text(alphabet="ab.*+?()[]{}|\\,^$", max_size=30))
def test_any_filter_is_compiled_or_refused(text: str) -> None:
    with contextlib.suppress(CanalError):
        TableFilter(text, text).passes("a.b")
