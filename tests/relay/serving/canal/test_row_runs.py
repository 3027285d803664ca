"""Runs of rows: compiled code takes those that Python takes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from databus.relay.serving.canal import row_runs
from databus.relay.serving.canal._row_runs import take_rows
from databus.relay.serving.canal.row_runs import MOST_RUN_BYTES, Run, take_run
from databus.relay.serving.columns.column_writer import ColumnWriter
from databus.schemas.event.metadata import Op
from tests.relay.serving.canal.test_entries import ID, TEXT, eop, row

WRITER = ColumnWriter(TEXT)
ROW: dict[str, Any] = {"id": 1, "note": "a"}


def runs_of(body: bytes) -> list[Run]:
    found, at = [], 0
    while at < len(body):
        found.append(take_run(body, at, lambda _: WRITER))
        at = found[-1].end
    return found


def rows(ops: list[Op]) -> bytes:
    return b"".join(
        row(op, ROW | {"id": number}, number, ROW if op is Op.UPDATE else None)
        for number, op in enumerate(ops)
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE, Op.SNAPSHOT]), max_size=30))
def test_runs_are_those_that_python_takes(ops: list[Op]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        compiled = runs_of(rows(ops))
        patch.setattr(row_runs, "is_compiled", False)
        assert compiled == runs_of(rows(ops))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_run_ends_at_its_size_and_at_a_control_event(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_runs, "is_compiled", is_compiled)
    body = rows([Op.INSERT] * 200)
    first, *others = runs_of(body)
    assert MOST_RUN_BYTES <= first.end < MOST_RUN_BYTES + 200
    assert first.row_count + sum(run.row_count for run in others) == 200
    assert take_run(body[: first.end] + eop(), 0, lambda _: WRITER) == first


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 255), st.integers(1, 1000))
def test_damaged_events_are_taken_without_a_look_beyond_their_bytes(
    at: int, byte: int, end: int
) -> None:
    body = bytearray(rows([Op.INSERT, Op.UPDATE, Op.UPDATE]))
    body[at % len(body)] = byte
    part = bytes(body[:end])
    taken = take_rows(part, 0, MOST_RUN_BYTES, WRITER.compiled, ID)
    assert taken is None or taken[2] <= len(part)
