"""Merging rows into a snapshot table: many in one statement are stored as one by one."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from databus.bootstrap.store import snapshot_table
from databus.bootstrap.store.values import StoredEvent

NOW_NS = 77


def events_of(count: int, seed: int) -> list[StoredEvent]:
    """Return events of few rows, so that most have a row before: older, newer, deleted, partial."""
    chosen = random.Random(seed)
    keys: list[int | bytes] = [*range(count // 3 + 1), -5, b"12", b"a key", b"\xff\x00"]
    found = []
    for number in range(count):
        kind = chosen.choice(("whole", "whole", "deleted", "partial"))
        scn, key, event = chosen.randrange(1, 9), chosen.choice(keys), b"event %d" % number
        found.append(StoredEvent(scn, key, kind == "deleted", event, is_partial=kind == "partial"))
    return found


def merged(pieces: Sequence[Sequence[StoredEvent]]) -> tuple[int, list[tuple[Any, ...]]]:
    """Merge pieces one after another; return how many were stored, and the table."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        snapshot_table.create(connection, 1)
        taken = sum(snapshot_table.merge(connection, 1, piece, NOW_NS) for piece in pieces)
        return taken, connection.execute("select * from snapshot_1 order by id").fetchall()


@pytest.mark.parametrize("count", [0, 1, 19, 20, 21, 40, 333])
def test_rows_merged_together_are_those_merged_one_by_one(count: int) -> None:
    events = events_of(count, seed=count)
    assert merged([events]) == merged([[event] for event in events])


def test_the_newest_of_many_events_of_a_row_stays() -> None:
    events = [StoredEvent(scn, 7, False, b"of %d" % scn) for scn in (3, *range(1, 40), 12)]
    taken, rows = merged([events])
    assert rows == [(1, 7, 7, 0, 39, 0, b"of 39")]
    # 3, and then from 3 on.
    assert taken == 1 + 37
