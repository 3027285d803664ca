"""The checksum over all rows is that of the rows, in whatever order they were added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, strategies as st

from databus.registry import seal, sqlite_store
from databus.registry.seal import Seal
from databus.registry.sqlite_store import SqliteStore
from databus.registry.version import StoredVersion

ROWS = st.dictionaries(
    st.tuples(st.integers(0, 1), st.text(max_size=3), st.integers(0, 3)),
    st.tuples(st.text(max_size=4)),
    max_size=8,
)


@given(rows=ROWS, order=st.randoms(use_true_random=False), known=st.integers(0, 8))
def test_rows_that_are_added_give_the_checksum_of_all(
    rows: dict[tuple[int, str, int], tuple[str]], order: Random, known: int
) -> None:
    keys = list(rows)
    order.shuffle(keys)
    begun = sorted(keys[:known])
    made = Seal((key, rows[key]) for key in begun)
    for key in keys[known:]:
        assert made.value == sealed({k: rows[k] for k in begun})
        made.add(key, rows[key])
        begun = sorted([*begun, key])
    assert made.value == sealed(rows)


def sealed(rows: dict[tuple[int, str, int], tuple[str]]) -> int:
    whole = tuple(rows[key] for key in sorted(rows))
    return crc32(repr(whole).encode("utf-8", "surrogatepass"))


def test_a_version_costs_the_store_as_much_after_many_as_after_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "schemas.db")
    store.save_sources({"shop.a": 1, "shop.b": 2})
    work: list[str] = []
    for module, name in ((seal, "_piece"), (sqlite_store, "_rows_of"), (sqlite_store, "_prepare")):
        monkeypatch.setattr(module, name, counted(getattr(module, name), name, work))
    for number in range(1, 41):
        store.save_versions([StoredVersion("shop.b", number, "{}", number)])
    store.save_versions([StoredVersion("shop.a", 1, "{}", 1)])  # in the middle
    assert work == ["_piece"] * 41
    assert len(SqliteStore(store.path).load_versions()) == 41  # the seal is right


def counted(function: Callable[..., Any], name: str, work: list[str]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        work.append(name)
        return function(*arguments)

    return call
