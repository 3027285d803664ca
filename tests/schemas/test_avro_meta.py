"""The string attribute `meta` of schemas gives back what was written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.schemas.avro_meta import (
    column_of,
    decimal_members,
    field_meta,
    field_meta_text,
    record_meta,
    record_meta_text,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("%;,=\n25C3 ")
NUMBERS = st.integers(0, 999_999_999)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{"column": TEXTS, "sqlType": TEXTS, "position": NUMBERS, "key": NUMBERS},
            **{"precision": NUMBERS, "scale": NUMBERS},
        },
    )
)
def test_a_field_gives_back_what_was_written(members: dict[str, Any]) -> None:
    text = field_meta_text(members)
    assert field_meta({"name": "f", "meta": text}) == members


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **{"source": TEXTS, "table": TEXTS, "dialect": TEXTS, "change": TEXTS},
            "key": st.lists(TEXTS, max_size=4),
        },
    )
)
def test_a_record_gives_back_what_was_written(members: dict[str, Any]) -> None:
    assert record_meta({"meta": record_meta_text(members)}) == members


def test_members_have_a_fixed_order_and_readable_values() -> None:
    members = {"sqlType": "enum('a;b','50%')", "key": 0, "position": 3, "column": "größe, in cm"}
    text = "column=größe, in cm;position=3;sqlType=enum('a%3Bb','50%25');key=0;"
    assert field_meta_text(members) == text
    assert record_meta_text({"key": ["a,b", "", "c"]}) == "key=a%2Cb,%,c;"


@pytest.mark.parametrize(
    "meta",
    [None, 5, [], "", "x;", "dbFieldName=KEY;dbFieldPosition=1;", "position=first;key=-1;key=9x;"],
)
def test_what_is_not_ours_says_nothing(meta: object) -> None:
    assert field_meta({"name": "f", "meta": meta}) == {}
    assert column_of({"name": "f", "meta": meta}) == "f"


def test_the_object_of_earlier_versions_is_read() -> None:
    meta = {"column": "a b", "position": 0, "sqlType": "int", "key": 0}
    assert field_meta({"name": "a_b", "meta": meta}) == meta
    assert column_of({"name": "a_b", "meta": meta}) == "a b"
    assert record_meta({"meta": {"key": ["a b"]}}) == {"key": ["a b"]}


@pytest.mark.parametrize(
    ("avro_type", "expected"),
    [
        ("int", {}),
        (["null", "long"], {}),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5}, {"precision": 5}),
        (
            ["null", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}],
            {"precision": 5, "scale": 2},
        ),
    ],
)
def test_a_decimal_has_its_precision_and_scale(avro_type: Any, expected: dict[str, int]) -> None:
    assert decimal_members(avro_type) == expected
