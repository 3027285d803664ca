"""Checks whether rows that were written with one schema can be read with another.

The result is that of the Avro project's own checker (`avro.compatibility`); this module
adds the name of the field, which the checker does not always give. Like that checker, it
compares only the types beneath logical types: values are decoded with the writer's
logical type and so keep their meaning, whatever the reader declares.

Logical types are removed before the check, because the checker warns about those that it
has no class for.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, cast

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityType,
    lookup_writer_field,
)
from avro.errors import AvroException
from avro.schema import Field, RecordSchema, Schema, make_avsc_object

from databus.schemas.errors import IncompatibleSchemaError, SchemaError


def check_new_version(old_text: str, new_text: str) -> None:
    """Check that a reader with the new schema can read rows of the old one.

    Raises IncompatibleSchemaError naming the first field that it cannot read.
    """
    check_reader(str(parse_record(new_text).fullname), old_text, new_text)


def check_reader(source: str, writer_text: str, reader_text: str) -> None:
    """Check that rows of the writer's schema can be read with the reader's.

    Raises IncompatibleSchemaError naming the source and the first field that
    cannot be read, SchemaError when one of them is no Avro record.
    """
    reader, writer = parse_record(reader_text), parse_record(writer_text)
    problem = _find_problem(reader, writer)
    if problem is not None:
        raise IncompatibleSchemaError(source, *problem)


@lru_cache(maxsize=1024)
def parse_record(text: str) -> RecordSchema:
    """Parse a schema that must be a record; raises SchemaError."""
    try:
        schema = make_avsc_object(_without_logical_types(json.loads(text)))
    except (ValueError, TypeError, RecursionError, AvroException) as error:
        raise SchemaError(f"not an Avro schema: {error}") from error
    if not isinstance(schema, RecordSchema):
        raise SchemaError(f"a source's schema is a record, not {schema.type}")
    return schema


def _find_problem(reader: RecordSchema, writer: RecordSchema) -> tuple[str, str] | None:
    """Return the field and the reason, or None when the reader can read it all."""
    reason = _why_not(reader, writer)
    if reason is None:
        return None
    for field in cast("list[Field]", reader.fields):
        written = lookup_writer_field(writer, field)
        if written is None and not field.has_default:
            return str(field.name), "the writer does not have it, and it has no default"
        inner_reason = written and _why_not(field.type, written.type)
        if inner_reason:
            return str(field.name), inner_reason
    return str(reader.name), reason  # not about a field: the names of the records differ


def _why_not(reader: Schema, writer: Schema) -> str | None:
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(reader, writer)
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    kinds = dict.fromkeys(kind.value.replace("_", " ") for kind in result.incompatibilities)
    return f"{', '.join(kinds)} ({'; '.join(sorted(result.messages))})"


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        kept = {k: v for k, v in schema.items() if k != "logicalType"}
        return {key: _without_logical_types(value) for key, value in kept.items()}
    if isinstance(schema, list):
        return [_without_logical_types(item) for item in schema]
    return schema
