"""Values as the converters of Kafka Connect write them: JSON, JSON with schemas, and Avro. Pure."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from functools import cached_property
from typing import Any

import fastavro

from databus.client.sinks.formats.debezium.connect import Schema, as_avro, as_json, avro_names
from databus.client.sinks.formats.json_bytes import encoder
from databus.client.sinks.formats.message import AvroPart


class Form:
    """A schema, and what the converters make of it once."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def plain_json(self, value: Any) -> bytes:
        """Return a value without its schema."""
        return connect_json(value)

    def json(self, value: Any) -> bytes:
        """Return a value with its schema."""
        return b'{"schema":%b,"payload":%b}' % (self._json, connect_json(value))

    def avro(self, value: Any) -> AvroPart:
        """Return a value in Avro; raise ValueError if it is none of the schema."""
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, self._parsed, _named(self._schema, value))
        except (TypeError, OverflowError, LookupError, AttributeError) as error:
            raise ValueError(f"it is not of its Avro schema: {error!r}") from error
        return AvroPart(self._avro_text, stream.getvalue())

    @cached_property
    def _json(self) -> bytes:
        return connect_json(as_json(self._schema))

    @cached_property
    def _avro_text(self) -> str:
        return json.dumps(as_avro(self._schema), separators=(",", ":"))

    @cached_property
    def _parsed(self) -> Any:
        return fastavro.parse_schema(json.loads(self._avro_text))


def connect_json(value: Any) -> bytes:
    """Return JSON without blanks, in UTF-8; bytes are base64."""
    return _to_bytes(value)


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_base64).encode
_to_bytes = encoder(_base64, _encode)


def _named(schema: Schema, value: Any) -> Any:
    """Return a value with the names of Avro in the place of those that it does not allow."""
    if schema.type != "struct" or value is None:
        return value
    names = avro_names(schema.fields)
    return {names[name]: _named(held, value[name]) for name, held in schema.fields}
