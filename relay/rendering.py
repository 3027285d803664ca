"""The forms a stream's events are sent in, chosen by `output` and `maxev`."""

from __future__ import annotations

from databus.registry.registry import SchemaRegistry
from databus.relay.stream import Render
from databus.relay.stream_parameters import Output, StreamForm
from databus.schemas.event_v2 import decode, to_v1
from databus.schemas.json_event import json_line, json_plain_value_line
from databus.schemas.rows import row_codec

BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json; charset=UTF-8"


def choose_render(form: StreamForm, registry: SchemaRegistry) -> Render | None:
    """Return what makes an event's form of its version 2 bytes; None when those are it."""
    if form.is_version_2_binary:
        return None
    if form.output is Output.BINARY:
        return render_version_1
    if form.output is Output.JSON:
        return render_json
    return _plain_value_render(registry)


def content_type(form: StreamForm) -> str:
    """Return the answer's content type."""
    return BINARY_TYPE if form.output is Output.BINARY else JSON_TYPE


def render_version_1(event: bytes) -> bytes:
    """Return the event in version 1, for clients that do not ask for more."""
    return to_v1(decode(event)[0])


def render_json(event: bytes) -> bytes:
    """Return the event as a line of JSON, its value in base64."""
    return json_line(decode(event)[0])


def _plain_value_render(registry: SchemaRegistry) -> Render:
    def render_plain_value(data: bytes) -> bytes:
        event, _ = decode(data)
        codec = None if event.is_control else row_codec(registry.by_id(event.schema_id).text)
        return json_plain_value_line(event, codec)

    return render_plain_value
