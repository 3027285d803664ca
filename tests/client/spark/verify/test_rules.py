"""The rules of a comparison: chunks, replaying changes, what differs, reports."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.spark.verify.chunks import (
    ChunkDigest,
    KeyRanges,
    Span,
    batches,
    bucket_count,
    differing,
)
from databus.client.spark.verify.differences import Difference, Kind, comparer_of
from databus.client.spark.verify.replay import Candidate, Changes, LastChange, judge, since
from databus.client.spark.verify.report import (
    Compared,
    Report,
    findings_in,
    keys_of,
    read_report,
)
from databus.client.spark.verify.source_table import open_source_table
from databus.client.spark.verify.table_shape import Row, shape_of
from databus.client.spark.verify.texts import double_text
from databus.conf.settings import PhysicalSourceSettings
from databus.schemas.errors import SettingsError
from databus.schemas.table import Column, Table

ORDERS = Table(
    "shop.orders",
    (
        Column("at", "datetime(6)", 0, nullable=False, key_position=1),
        Column("price", "decimal(10,2)", 1, nullable=False, key_position=0),
        Column("code", "binary(2)", 2, nullable=False, key_position=2),
        Column("note", "text", 3),
    ),
)
State = dict[int, str]


@given(st.lists(st.integers(-50, 50), unique=True).map(sorted), st.integers(-60, 60))
def test_every_key_is_in_one_range_and_the_spans_say_the_same(bounds: list[int], key: int) -> None:
    chunks = KeyRanges(tuple(bounds))
    chunk = bisect_left(bounds, key)
    for number in range(chunks.count):
        assert covers(chunks.spans([number]), key) == (number == chunk)
    assert covers(chunks.spans(range(chunks.count)), key)
    assert chunks.spans(range(chunks.count)) == [Span(None, None)]


def covers(spans: list[Span], key: int) -> bool:
    return any(
        (span.after is None or key > span.after) and (span.last is None or key <= span.last)
        for span in spans
    )


def test_chunks_that_touch_are_read_as_one_span() -> None:
    assert KeyRanges((10, 20, 30)).spans([3, 0, 1]) == [Span(None, 20), Span(30, None)]


def test_a_chunk_that_one_side_lacks_differs_unless_it_has_no_rows() -> None:
    one, two = ChunkDigest(1, 5), ChunkDigest(1, 6)
    assert differing({0: one, 1: one, 2: ChunkDigest(0, 0)}, {0: one, 1: two, 3: one}) == [1, 3]


@given(st.lists(st.integers(0, 30), max_size=20))
def test_groups_hold_so_many_rows_unless_one_chunk_has_more(sizes: list[int]) -> None:
    digests = {number: ChunkDigest(size, 0) for number, size in enumerate(sizes)}
    groups = list(batches(range(len(sizes)), digests, {}, 20))
    assert [chunk for group in groups for chunk in group] == list(range(len(sizes)))
    assert all(len(g) == 1 or sum(digests[c].rows for c in g) <= 20 for g in groups)


@pytest.mark.parametrize(("rows", "count"), [(0, 1), (1, 1), (2000, 1), (2001, 2)])
def test_there_are_buckets_for_all_rows(rows: int, count: int) -> None:
    assert bucket_count(rows, 2000) == count


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int, str | None]]:
    """Changes of a table: SCN, key, and the note from then on; None = deleted."""
    size = draw(st.integers(0, 30))
    return [
        (scn, draw(st.integers(0, 5)), draw(st.none() | st.sampled_from("abc")))
        for scn in range(1, size + 1)
    ]


def state_at(history: list[tuple[int, int, str | None]], scn: int, base: State) -> State:
    state = dict(base)
    for at, key, note in history:
        if at <= scn:
            state.pop(key, None)
            if note is not None:
                state[key] = note
    return state


def changes_of(history: list[tuple[int, int, str | None]], after: int, until: int) -> Changes:
    last: dict[tuple[Any, ...], LastChange] = {}
    for scn, key, note in history:
        if after < scn <= until:
            row = None if note is None else {"id": key, "note": note}
            last[(key,)] = LastChange((scn, 0), row)
    return Changes(last, until)


def row_of(state: State, key: int) -> Row | None:
    return {"id": key, "note": state[key]} if key in state else None


@given(histories(), st.data())
def test_exactly_what_the_stream_will_not_mend_is_a_difference(
    history: list[tuple[int, int, str | None]], data: st.DataObject
) -> None:
    end = len(history)
    seen = {who: data.draw(st.integers(0, end), who) for who in ("source", "target")}
    base = {0: "x", 1: "y", 2: "z"}
    # Whoever reads has seen all up to an SCN, and of each key perhaps more.
    read: dict[str, dict[int, Row | None]] = {
        who: {
            key: row_of(state_at(history, data.draw(st.integers(scn, end)), base), key)
            for key in range(6)
        }
        for who, scn in seen.items()
    }
    damaged = data.draw(st.dictionaries(st.integers(0, 5), st.none() | st.just("damaged")))
    for key, note in damaged.items():
        read["target"][key] = None if note is None else {"id": key, "note": note}
    candidates = [
        Candidate((key,), read["source"][key], read["target"][key], seen["source"], seen["target"])
        for key in range(6)
    ]
    changes = changes_of(history, since(candidates), end)

    found = list(judge(candidates, changes, comparer_of(["id", "note"])))

    truth = state_at(history, end, base)
    expected = {
        (key,)
        for key, note in damaged.items()
        if note != truth.get(key)
        and not any(k == key and s > seen["target"] for s, k, _ in history)
    }
    assert {one.key for one in found} == expected
    assert all(one.in_source == row_of(truth, one.key[0]) for one in found)


def test_a_table_that_was_emptied_has_only_what_came_behind() -> None:
    row = {"id": 1, "note": "a"}
    changes = Changes({(1,): LastChange((7, 1), row)}, 9, truncated=(7, 0))
    assert changes.row_at_end((1,), None, 6) == row
    assert changes.row_at_end((2,), row, 6) is None
    assert changes.row_at_end((2,), row, 7) == row
    assert Changes({(1,): LastChange((7, 0), row)}, 9, (7, 1)).row_at_end((1,), row, 6) is None


def test_a_key_that_a_target_has_twice_differs_whatever_comes() -> None:
    row, newer = {"id": 1, "note": "a"}, {"id": 1, "note": "b"}
    one = Candidate((1,), row, row, 5, 5, source_rows=1, target_rows=2)
    comparer = comparer_of(["id", "note"])
    updated, deleted = LastChange((7, 0), newer), LastChange((7, 0), None)
    for changes in (Changes({}, 9), Changes({(1,): updated}, 9), Changes({(1,): deleted}, 9)):
        (found,) = judge([one], changes, comparer)
        assert (found.kind, found.source_rows, found.target_rows) == (Kind.DUPLICATE, 1, 2)
    assert not list(judge([one._replace(target_rows=1)], Changes({}, 9), comparer))


def is_near(source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    return bool(abs(source["n"] - target["n"]) < 1)


def never(source: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    return source is target


NEAR, NEVER = f"{__name__}:is_near", f"{__name__}:never"


@pytest.mark.parametrize(
    ("compare", "source", "target", "columns"),
    [
        ((), {"n": 1.5, "t": "a"}, {"n": 1.6, "t": "a"}, ("n",)),
        ((f"n={NEAR}",), {"n": 1.5, "t": "a"}, {"n": 1.6, "t": "a"}, ()),
        ((f"n={NEAR}",), {"n": 1.5, "t": "a"}, {"n": 1.6, "t": "a "}, ("t",)),
        ((NEAR,), {"n": 1.5, "t": "a"}, {"n": 1.6, "t": "b"}, ()),
        ((NEAR,), {"n": 1.5, "t": "a"}, {"n": 9.6, "t": "a"}, ("n",)),
        ((NEVER,), {"n": 1.5, "t": "a"}, {"n": 1.5, "t": "a"}, ("n", "t")),
        ((), {"n": None, "t": ""}, {"n": None, "t": None}, ("t",)),
    ],
)
def test_rows_are_compared_by_value_or_as_a_user_says(
    compare: tuple[str, ...], source: Row, target: Row, columns: tuple[str, ...]
) -> None:
    assert comparer_of(("n", "t"), compare).differing(source, target) == columns


@pytest.mark.parametrize(
    ("compare", "says"),
    [
        (["x=m:f"], "the columns are n"),
        (["n=no_such_module:f"], r"\[column=\]module:function"),
        (["json:nothing"], "module:function"),
        (["json:__name__"], "not a function"),
        ([NEAR, f"n={NEAR}"], "one function for rows"),
    ],
)
def test_a_comparison_that_cannot_be_had_is_refused(compare: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        comparer_of(["n"], compare)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_double_is_that_number_and_no_other(value: float) -> None:
    text = double_text(value)
    digits, _, exponent = text.lstrip("-").partition("e")
    read = Decimal(f"0.{digits}e{exponent or 0}") if exponent else Decimal(digits)
    assert float(-read if text.startswith("-") else read) == value
    assert not exponent or (digits[0] != "0" and digits[-1] != "0")


def test_a_report_that_was_written_names_the_same_keys_when_it_is_read(tmp_path: Path) -> None:
    shape = shape_of(ORDERS)
    key = (Decimal("12.50"), datetime(2026, 11, 21, 10, 0, 0, 1), b"\x00\xff")
    row = {**dict(zip(shape.key_names, key, strict=True)), "note": None}
    compared = Compared("shop.orders", "delta:x", "shop", shape.names, "price > 1")
    path, report = tmp_path / "report.jsonl", Report(compared)
    twice = (Decimal(1), *key[1:])
    with findings_in(path, report, shape, most_kept=0) as findings:
        findings.add(Difference(key, Kind.MISSING, shape.names, row, None, 5, None, 9, 1, 0))
        findings.add(Difference(twice, Kind.DUPLICATE, shape.names, row, row, 5, None, 9, 1, 2))
        findings.end()

    reported = read_report(path)

    assert (reported.compared, report.differences) == (compared, [])
    assert keys_of(shape, reported.keys) == [key, twice]
    assert keys_of(shape, reported.duplicates) == [twice]
    assert json.loads(path.read_text().splitlines()[-1])["totals"]["missing"] == 1


def test_a_report_that_is_none_or_has_no_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    with pytest.raises(SettingsError, match="No such file"):
        read_report(path)
    path.write_text("[]\n")
    with pytest.raises(SettingsError, match="is not a file of databus spark verify"):
        read_report(path)
    compared = Compared("s", "t", "p", ("id",))
    with findings_in(path, Report(compared), shape_of(ORDERS), 1):
        pass
    with pytest.raises(SettingsError, match="did not finish"):
        read_report(path)
    # A comparison that was killed: nothing was flushed, or the middle of a line was the end.
    for text in ("", path.read_text() + '{"key": {"id'):
        path.write_text(text)
        with pytest.raises(
            SettingsError, match=r"no totals: .* did not finish; compare again with"
        ):
            read_report(path)
    with pytest.raises(SettingsError, match="compare again"):
        keys_of(shape_of(ORDERS), [{"id": 1}])


def test_a_table_is_compared_by_its_key_and_in_columns_that_it_has() -> None:
    shape = shape_of(ORDERS, ["note"])
    assert (shape.names, shape.key_names) == (
        ("at", "price", "code", "note"),
        ("price", "at", "code"),
    )
    assert not shape.has_key_ranges
    with pytest.raises(SettingsError, match="no column 'x'; it has at, price, code, note"):
        shape_of(ORDERS, ["x"])
    with pytest.raises(SettingsError, match="no primary key"):
        shape_of(Table("shop.log", (Column("line", "text", 0),)))


def test_a_table_with_protected_columns_is_not_compared_or_repaired() -> None:
    entry = {"tables": ["shop.orders"], "exclude": ["note"]}
    settings = PhysicalSourceSettings(
        name="shop", uri="mysql://me@db", sources=("shop.orders",), columns=(entry,)
    )
    text = "shop.orders: `columns` in the settings protects some of its columns"
    with pytest.raises(SettingsError, match=text), open_source_table(settings, "shop.orders"):
        pass
