"""What the mix draws: the same from the same seed, and nothing that would wait for a lock."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from benchmarks.torture.mix import (
    COLUMN_VALUE,
    DDL_EVERY,
    DDL_TABLE,
    EMPTIED_TABLE,
    MIXES,
    XA_TABLE,
    Act,
    Kind,
    Mixer,
    columns_at,
    counts_of,
    decision,
)
from benchmarks.torture.workload import End, Workload

COUNT = 2000


def acts(mix: tuple[str, ...] = MIXES, seed: int = 1) -> list[Act]:
    return list(Mixer(Workload(seed), COUNT, mix, seed).acts())


def test_a_plain_mix_is_the_workload_as_it_was() -> None:
    assert [act.work for act in acts(("plain",))] == list(Workload(1).transactions(COUNT))


def test_a_seed_gives_the_same_acts_again() -> None:
    assert acts() == acts()
    assert acts() != acts(seed=2)


def test_committed_transactions_are_numbered_without_a_gap() -> None:
    ended = [act.work for act in acts() if act.kind in (Kind.RUN, Kind.END)]
    assert [w.number for w in ended if w.end is End.COMMIT] == list(range(1, COUNT + 1))


def test_every_prepared_transaction_is_ended_later_and_once() -> None:
    open_ones: set[str] = set()
    seen: Counter[End] = Counter()
    for act in acts():
        if act.kind is Kind.PREPARE:
            assert act.xid not in open_ones
            open_ones.add(act.xid)
        elif act.kind is Kind.END:
            open_ones.remove(act.xid)
            seen[act.work.end] += 1
            assert decision(act).split()[1] == act.work.end.upper()
    assert open_ones == set()
    assert min(seen[End.COMMIT], seen[End.ROLLBACK]) > 10


def test_nobody_touches_rows_of_a_prepared_transaction() -> None:
    held: dict[str, set[object]] = {}
    for act in acts():
        if act.kind is Kind.PREPARE:
            held[act.xid] = {parameters[0] for _, parameters in act.work.statements}
            tables = {sql.split()[2] for sql, _ in act.work.statements}
            assert tables == {XA_TABLE.name}
        elif act.kind is Kind.END:
            del held[act.xid]
        elif act.kind is Kind.RUN:
            locked = set().union(*held.values())
            for sql, parameters in act.work.statements:
                if re.search(rf"\b{XA_TABLE.name}\b", sql):
                    assert locked.isdisjoint((parameters[0], parameters[-1]))


def test_a_row_has_the_columns_of_the_ddl_before_it() -> None:
    columns: dict[str, object] = {}
    for act in acts(("plain", "ddl")):
        if act.kind is Kind.STATEMENT:
            words = act.work.statements[0][0].split()
            assert words[:3] == ["ALTER", "TABLE", DDL_TABLE.name]
            made = {"ADD": words[5], "RENAME": words[-1], "DROP": ""}[words[3]]
            columns = {made: COLUMN_VALUE} if made else {}
        else:
            assert columns_at(abs(act.work.number), ("ddl",)) == columns
    assert columns_at(DDL_EVERY, ("plain",)) == {}


def test_rows_of_an_emptied_table_are_not_changed_any_more() -> None:
    keys: set[object] = set()
    emptied = 0
    for act in acts(("plain", "truncate")):
        for sql, parameters in act.work.statements:
            if EMPTIED_TABLE.name not in sql or act.work.end is End.ROLLBACK:
                continue
            if sql.startswith("TRUNCATE"):
                keys.clear()
                emptied += 1
            elif sql.startswith("INSERT"):
                keys.add(parameters[:2])
            else:
                assert parameters[-2:] in keys
                if sql.startswith("UPDATE stock SET sku = ?, branch = ?"):
                    keys.add(parameters[:2])
    assert emptied > 10


@pytest.mark.parametrize("name", [name for name in MIXES if name != "plain"])
def test_each_part_of_the_mix_occurs(name: str) -> None:
    assert counts_of(1, COUNT, ("plain", name))[name] > 10
