"""Ptubes' partition of a key, by its vectors, in Python and compiled."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from databus.relay.serving.ptubes.rows.java_hashes import (
    key_of_value,
    partition_id,
    partition_id_in_python,
    skip_unowned,
)
from databus.schemas.event.event import Event, Opcode
from databus.schemas.event.v2 import encode

VECTORS: list[tuple[int | str | bytes, int]] = [
    (0, 961),
    (1, 962),
    (10, 971),
    (-1, 961),
    (1 << 40, 1217),
    ("a", 1089),
    ("order-1", 6805),
    ("中文", 24813),
    (b"\x61", 1120),
]
WAYS = [partition_id, partition_id_in_python]
KEYS = st.one_of(st.integers(-(1 << 63), (1 << 64) - 1), st.text(max_size=30), st.binary())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("key", "expected"), VECTORS)
def test_a_key_has_the_partition_id_of_the_vectors(
    way: Callable[[int | str | bytes], int], key: int | str | bytes, expected: int
) -> None:
    assert way(key) == expected


def test_three_partitions_are_those_of_the_vectors() -> None:
    assert [partition_id(key) % 3 for key, _ in VECTORS] == [1, 2, 2, 1, 2, 0, 1, 0, 1]


@given(key=KEYS)
def test_both_ways_have_the_same_ids(key: int | str | bytes) -> None:
    found = partition_id(key)
    assert found == partition_id_in_python(key)
    assert 0 <= found < 32767


def test_ids_in_a_row_are_spread_evenly() -> None:
    counts = [0] * 11
    for number in range(100_000):
        counts[partition_id(number) % 11] += 1
    assert max(counts) / min(counts) <= 1.05


def test_values_of_every_type_have_a_key() -> None:
    assert key_of_value(None) == 0
    assert key_of_value(Decimal("18446744073709551615")) == (1 << 64) - 1
    assert key_of_value(Decimal("1.50")) == "1.50"
    assert key_of_value(date(2026, 11, 28)) == "2026-11-28"
    assert key_of_value(2.5) == "2.5"
    assert partition_id(key_of_value(b"\xff\x00")) != partition_id(key_of_value(b"\xff"))


@given(keys=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20), data=st.data())
def test_only_events_of_others_are_passed_by(keys: list[int], data: st.DataObject) -> None:
    owned = bytes(data.draw(st.lists(st.booleans(), min_size=5, max_size=5)))
    events = [encode(Event(1, 1, 3, 0, key, Opcode.DELETE, None, None)) for key in keys]
    body, at, kept = b"".join(events), 0, []
    starts = {sum(map(len, events[:i])): i for i in range(len(events))}
    while (at := skip_unowned(body, at, owned, bytes([0, 0, 0, 1, 0]))) < len(body):
        kept.append(starts[at])
        at += len(events[starts[at]])
    wanted = [i for i, key in enumerate(keys) if owned[partition_id_in_python(key) % 5]]
    assert [i for i in kept if i in wanted] == wanted  # Python's way passes none by
    assert skip_unowned(body, 0, owned, bytes(5)) == 0
