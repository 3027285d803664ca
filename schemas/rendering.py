"""The forms in which events are sent, chosen by `output` and `maxev`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from databus.schemas.avro_rows import row_codec
from databus.schemas.event.json import json_line, json_plain_value_line
from databus.schemas.event.v2 import decode, to_v1

NEWEST_EVENT_VERSION = 2
BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json; charset=UTF-8"

Render = Callable[[bytes], bytes]  # a version 2 event to its form in the answer
SchemaText = Callable[[bytes], str]  # a schema id to its text; raises SchemaNotFoundError


class Output(StrEnum):
    """The representation of events in the body."""

    BINARY = "binary"
    JSON = "json"
    JSON_PLAIN_VALUE = "json_plain_value"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of an answer with events: size, output and event version."""

    size_bytes: int
    output: Output = Output.BINARY
    event_version: int = NEWEST_EVENT_VERSION

    @property
    def is_version_2_binary(self) -> bool:
        """Whether the stored bytes are sent unchanged."""
        return self.output is Output.BINARY and self.event_version == NEWEST_EVENT_VERSION

    @property
    def content_type(self) -> str:
        """The answer's content type."""
        return BINARY_TYPE if self.output is Output.BINARY else JSON_TYPE


def choose_render(form: AnswerForm, schema_text: SchemaText) -> Render | None:
    """Return the function that converts version 2 bytes to the form; None if they are unchanged."""
    if form.is_version_2_binary:
        return None
    if form.output is Output.BINARY:
        return render_version_1
    if form.output is Output.JSON:
        return render_json
    return _plain_value_render(schema_text)


def render_version_1(event: bytes) -> bytes:
    """Return the event in version 1, for clients that request no higher version."""
    return to_v1(decode(event)[0])


def render_json(event: bytes) -> bytes:
    """Return the event as a line of JSON, its value in base64."""
    return json_line(decode(event)[0])


def _plain_value_render(schema_text: SchemaText) -> Render:
    def render_plain_value(data: bytes) -> bytes:
        event, _ = decode(data)
        has_row = event.payload is not None and not event.is_control
        codec = row_codec(schema_text(event.schema_id)) if has_row else None
        return json_plain_value_line(event, codec)

    return render_plain_value
