"""Parameters that the relay's commands and the bootstrap server's have in common.

They come as text, already split at `&`; JSON in them may have arrived
URL-encoded or not. Everything wrong is refused here, with the parameter's name
and the rule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from databus.schemas.errors import InvalidParameterError
from databus.schemas.protocol import Parameter
from databus.schemas.rendering import NEWEST_EVENT_VERSION, AnswerForm, Output

PROTOCOL_VERSIONS = (2, 3, 4)
_NUMBER_CHARS = 19

Parameters = Mapping[str, str]


def parse_number(parameters: Parameters, name: str, default: int, least: int) -> int:
    """Return a whole number; the default when it is absent or empty."""
    text = parameters.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _NUMBER_CHARS):
        raise InvalidParameterError(name, text, "a whole number")
    if int(text) < least:
        raise InvalidParameterError(name, text, f"at least {least}")
    return int(text)


def parse_bool(parameters: Parameters, name: str) -> bool:
    """Return whether it is `true`; absent is false."""
    text = parameters.get(name, "").strip().lower()
    if text not in ("", "true", "false"):
        raise InvalidParameterError(name, text, "true or false")
    return text == "true"


def parse_json(name: str, text: str) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidParameterError(name, text, "valid JSON") from None


def parse_form(parameters: Parameters, size_name: str, most_bytes: int) -> AnswerForm:
    """Return how much is wanted (required, cut to `most_bytes`) and in which form."""
    if not parameters.get(size_name, "").strip():
        raise InvalidParameterError(size_name, "", "the most bytes of the answer; it is required")
    return AnswerForm(
        size_bytes=min(parse_number(parameters, size_name, 0, least=1), most_bytes),
        output=_parse_output(parameters),
        event_version=_parse_event_version(parameters),
    )


def parse_protocol_version(parameters: Parameters) -> int:
    """Return the version of the registration's answer; the oldest when it is absent."""
    text = parameters.get(Parameter.PROTOCOL_VERSION, "").strip() or str(PROTOCOL_VERSIONS[0])
    if text not in map(str, PROTOCOL_VERSIONS):
        raise InvalidParameterError(Parameter.PROTOCOL_VERSION, text, "2, 3 or 4")
    return int(text)


def _parse_output(parameters: Parameters) -> Output:
    text = parameters.get(Parameter.OUTPUT, "").strip().lower() or Output.BINARY
    try:
        return Output(text)
    except ValueError:
        raise InvalidParameterError(Parameter.OUTPUT, text, f"one of {', '.join(Output)}") from None


def _parse_event_version(parameters: Parameters) -> int:
    newest = parse_number(parameters, Parameter.EVENT_VERSION, 0, least=0)
    return min(newest, NEWEST_EVENT_VERSION) if newest >= NEWEST_EVENT_VERSION else 0
