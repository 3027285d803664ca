"""What the process of a sink answers, as JSON, and as databus reads it. Pure.

The code of a stranger may have written it: so every value is checked, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from databus.client.sinks.contract import Change, Position
from databus.client.sinks.errors import (
    SinkCodeError,
    SinkError,
    SinkRefusedError,
    SinkUnavailableError,
)
from databus.client.sinks.isolated.texts import shown
from databus.client.sinks.rules.failures import FailureKind, kind_of
from databus.schemas.errors import CheckpointError, DatabusError

MOST_BYTES = 1 << 20
_MOST_TEXT = 2000
_MOST_TRACE = 8000
_MOST_WAIT_S = 86400.0
OUT_OF_MEMORY = b'{"memory": true}'


class AnswerError(Exception):
    """It is no answer."""


class Facts(NamedTuple):
    """What a class says of itself."""

    keeps_position: bool
    has_position_per_source: bool
    follows_schemas: bool


class ChildTrace(Exception):  # noqa: N818 - it is no error, but shows where one was raised
    """The traceback of an error in the process of a sink."""


def answer_of(value: Any) -> bytes:
    """Return the answer of a call that has worked; raise TypeError for a value of the wrong type.

    A value is None, a position, facts, or the unique keys of a source.
    """
    match value:
        case None:
            plain: Any = None
        case Position():
            plain = value.to_json()
        case Facts():
            plain = value._asdict()
        case _:
            plain = [[str(column) for column in columns] for columns in value]
    return json.dumps({"ok": plain}).encode()


def error_answer(error: BaseException, changes: Sequence[Change]) -> bytes:
    """Return the answer of a call that has failed, with the place of the row that it names."""
    kind = kind_of(error)
    named = error.change if isinstance(error, SinkRefusedError) else None
    rows = (at for at, one in enumerate(changes) if one is named)
    told = {
        "kind": kind.value,
        "text": _text(error),
        "retryAfterS": error.retry_after_s if isinstance(error, SinkUnavailableError) else None,
        "row": next(rows, None),
        "trace": _trace(error),
    }
    return json.dumps({"error": told}, default=str).encode()


def read_answer(message: bytes, changes: Sequence[Change]) -> Any:
    """Return the value of an answer, still unchecked.

    Raises MemoryError, the error of the sink, or AnswerError. `changes` are those that were sent.
    """
    try:
        answer = json.loads(message)
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"no JSON: {error}") from error
    match answer:
        case {"ok": value}:
            return value
        case {"memory": True}:
            raise MemoryError
        case {"error": {"kind": str(kind), "text": str(text), **rest}}:
            trace = shown(str(rest.get("trace") or ""), _MOST_TRACE)
            raise _error(kind, shown(text, _MOST_TEXT), rest, changes) from (
                ChildTrace(trace) if trace else None
            )
    raise AnswerError(f"{message[:100]!r}")


def read_position(value: Any) -> Position | None:
    """Return a position, or None; raise AnswerError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise AnswerError(f"{str(value)[:100]} is no position")
    try:
        return Position.from_json(value)
    except (CheckpointError, RecursionError) as error:
        raise AnswerError(str(error)) from error


def read_facts(value: Any) -> Facts:
    """Return what a class says of itself; raise AnswerError."""
    match value:
        case {
            "keeps_position": bool(keeps),
            "has_position_per_source": bool(per_source),
            "follows_schemas": bool(follows),
        }:
            return Facts(keeps, per_source, follows)
    raise AnswerError(f"{str(value)[:100]} are no facts")


def read_unique_keys(value: Any) -> list[list[str]]:
    """Return unique keys; raise AnswerError."""
    is_list = isinstance(value, list) and all(isinstance(one, list) for one in value)
    if not is_list or not all(isinstance(name, str) for one in value for name in one):
        raise AnswerError(f"{str(value)[:100]} are no unique keys")
    return [list(one) for one in value]


def _error(kind: str, text: str, rest: Mapping[Any, Any], changes: Sequence[Change]) -> SinkError:
    if kind == FailureKind.UNAVAILABLE:
        return SinkUnavailableError(text, _wait_s(rest.get("retryAfterS")))
    if kind == FailureKind.REFUSED:
        row = rest.get("row")
        if not isinstance(row, int) or not 0 <= row < len(changes):
            return SinkRefusedError(text)
        return SinkRefusedError(text, changes[row])
    return SinkCodeError(text)


def _wait_s(value: Any) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return min(float(value), _MOST_WAIT_S)


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # it is an error of the user, too
        text = "its text cannot be shown"
    # Those of the project say all in their text.
    is_ours = isinstance(error, DatabusError)
    return (text if is_ours else f"{type(error).__name__}: {text}")[:_MOST_TEXT]


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))[-_MOST_TRACE:]
    except Exception:
        return ""
