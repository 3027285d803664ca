"""Answers of a sink's process: what it says comes through, and nothing else does."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from databus.client.sinks.contract import Position
from databus.client.sinks.errors import (
    SinkCodeError,
    SinkError,
    SinkRefusedError,
    SinkUnavailableError,
)
from databus.client.sinks.isolated.answers import (
    OUT_OF_MEMORY,
    AnswerError,
    Facts,
    answer_of,
    error_answer,
    read_answer,
    read_facts,
    read_position,
    read_unique_keys,
)
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.changes import made

CHANGES = [made("insert", 1), made("insert", 1)]  # equal, and not the same
PLACE = Position("shop", Checkpoint.at(5))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_values_come_back_as_they_were() -> None:
    assert read_position(read_answer(answer_of(PLACE), ())) == PLACE
    assert read_position(read_answer(answer_of(None), ())) is None
    for facts in (Facts(True, False, True), Facts(False, True, False)):
        assert read_facts(read_answer(answer_of(facts), ())) == facts
    assert read_unique_keys(read_answer(answer_of([("a", "b")]), ())) == [["a", "b"]]
    assert read_unique_keys(read_answer(answer_of(()), ())) == []


@pytest.mark.parametrize("error", [OSError(28, "no space"), ConnectionError("gone")])
def test_errors_that_pass_are_known_as_such(error: Exception) -> None:
    with pytest.raises(SinkUnavailableError, match=str(error).replace("[", r"\[")):
        read_answer(error_answer(error, ()), ())


def test_the_refused_row_is_the_very_one_and_not_an_equal_one() -> None:
    with pytest.raises(SinkRefusedError, match="no") as refused:
        read_answer(error_answer(SinkRefusedError("no", CHANGES[1]), CHANGES), CHANGES)
    assert refused.value.change is CHANGES[1]
    with pytest.raises(SinkRefusedError) as refused:
        read_answer(error_answer(SinkRefusedError("no", made("insert", 1)), CHANGES), CHANGES)
    assert refused.value.change is None


@pytest.mark.parametrize("row", [2, -1, "0", None, 1.0, [0]])
def test_a_row_that_was_not_sent_is_not_believed(row: Any) -> None:
    answer = {"error": {"kind": "refused", "text": "no", "row": row}}
    with pytest.raises(SinkRefusedError) as refused:
        read_answer(json.dumps(answer).encode(), CHANGES)
    assert refused.value.change is None


@pytest.mark.parametrize(
    ("asked", "waits"),
    [(3, 3.0), (-1, None), (float("nan"), None), (1e30, 86400.0), ("9", None), (None, None)],
)
def test_a_wait_is_a_number_of_seconds_of_a_day_at_most(asked: Any, waits: float | None) -> None:
    answer = {"error": {"kind": "unavailable", "text": "away", "retryAfterS": asked}}
    with pytest.raises(SinkUnavailableError) as away:
        read_answer(json.dumps(answer).encode(), ())
    assert away.value.retry_after_s == waits


def test_texts_neither_steer_a_terminal_nor_break_what_encodes_them() -> None:
    answer = {"error": {"kind": "other", "text": "\x1b[2J\ud800 ä\n", "trace": "\x07"}}
    with pytest.raises(SinkCodeError) as failed:
        read_answer(json.dumps(answer).encode(), ())
    assert str(failed.value) == "\ufffd[2J\ufffd ä\n"
    assert str(failed.value.__cause__) == "\ufffd"


class UnshowableError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_texts_and_traces_are_bounded() -> None:
    with pytest.raises(SinkCodeError) as failed:
        read_answer(error_answer(ValueError("x" * 100_000), ()), ())
    assert len(str(failed.value)) == 2000
    assert len(str(failed.value.__cause__)) <= 8000
    with pytest.raises(SinkCodeError, match="UnshowableError: its text cannot be shown"):
        read_answer(error_answer(UnshowableError(), ()), ())


def test_the_end_of_memory_has_an_answer_of_its_own() -> None:
    with pytest.raises(MemoryError):
        read_answer(OUT_OF_MEMORY, ())


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"\xff\xfe", b"[]", b"1", b'{"error": 1}', b'{"error": {}}', b"[" * 100_000],
)
def test_other_bytes_are_no_answer(message: bytes) -> None:
    with pytest.raises(AnswerError):
        read_answer(message, ())


@given(json_values)
def test_whatever_it_says_is_an_answer_or_an_error_that_is_known(value: Any) -> None:
    for told in (value, {"ok": value}, {"error": value}, {"error": {"kind": value, "text": value}}):
        with suppress(AnswerError, SinkError):
            found = read_answer(json.dumps(told).encode(), CHANGES)
            for read in (read_position, read_facts, read_unique_keys):
                with suppress(AnswerError):
                    read(found)
