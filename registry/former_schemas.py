"""Schemas of earlier versions of this project, and the ids that they had. Pure.

Those versions wrote each `meta` as a JSON object, and a schema's id was the MD5 of its text.
`rewritten` rewrites such texts in the form of `avro_meta`. Stored events and a client's
checkpoint may have ids of former versions: `ids_of_now` derives these from the rewritten
texts, so that only the texts need to be stored.

Both take all texts of a source at once, because a version that a DDL statement made names
its predecessor by an id. Schemas that were written by hand stay as they are: this version
reads both forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import md5
from typing import Any

from databus.schemas.avro_meta import (
    FIELD_MEMBERS,
    RECORD_MEMBERS,
    Meta,
    decimal_members,
    field_meta,
    field_meta_text,
    record_meta,
    record_meta_text,
)
from databus.schemas.avro_rows import schema_id

_Record = dict[str, Any]
_DECIMAL = frozenset(("precision", "scale"))
_Form = tuple[Callable[[_Record], Meta], Callable[[Meta], str]]  # how a `meta` is read and written
_RECORD_FORM: _Form = (record_meta, record_meta_text)
_FIELD_FORM: _Form = (field_meta, field_meta_text)


def rewritten(texts: Iterable[str]) -> list[str]:
    """Return texts as this version writes them; those written by hand unchanged."""
    listed = [(text, _record(text)) for text in texts]
    records = [_with_text_meta(record) for _, record in listed if record is not None]
    shapes = {_former_shape_id(_with_object_meta(one)): _shape_id(one) for one in records}
    return [
        text if record is None else _dump(_with_before(_with_text_meta(record), shapes))
        for text, record in listed
    ]


def ids_of_now(texts: Iterable[str]) -> dict[bytes, bytes]:
    """Return a map from each schema's former id to its id of now, given rewritten texts."""
    listed = [(text, _record(text)) for text in texts]
    records = [record for _, record in listed if record is not None]
    shapes = {_shape_id(one): _former_shape_id(_with_object_meta(one)) for one in records}
    found = {}
    for text, record in listed:
        found[former_schema_id(text)] = schema_id(text)
        if record is not None:
            before = _with_object_meta(_with_before(record, shapes))
            found[former_schema_id(_dump(before))] = schema_id(text)
    return {earlier: now for earlier, now in found.items() if earlier != now}


def former_schema_id(text: str) -> bytes:
    """Return the id that former versions gave a schema: the MD5 of its text."""
    return md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()


def _record(text: str) -> _Record | None:
    """Return a record that we wrote, in either form; None for one that was written by hand."""
    try:
        record = json.loads(text)
        metas = [field["meta"] for field in record["fields"]]
        is_ours = _is_ours(record["meta"], RECORD_MEMBERS, _RECORD_FORM) and all(
            _is_ours(meta, FIELD_MEMBERS, _FIELD_FORM) for meta in metas
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return record if is_ours and _dump(record) == text else None


def _is_ours(meta: object, names: frozenset[str], form: _Form) -> bool:
    """Return whether a `meta` is one that we made: nothing of it is lost in the other form."""
    if isinstance(meta, dict):
        return meta.keys() <= names
    read, write = form
    return isinstance(meta, str) and write(read({"meta": meta})) == meta


def _with_text_meta(record: Mapping[str, Any]) -> _Record:
    """Return a record with each `meta` as one string."""
    meta = dict(record_meta(record))
    change = meta.get("change")
    if isinstance(change, dict):
        meta["change"] = _dump_text(change)
    return _with_metas(
        record,
        record_meta_text(meta),
        lambda field: field_meta_text({**field_meta(field), **decimal_members(field["type"])}),
    )


def _with_object_meta(record: Mapping[str, Any]) -> _Record:
    """Return a record with each `meta` as earlier versions wrote it."""
    meta = dict(record_meta(record))
    change = meta.get("change")
    if isinstance(change, str):
        meta["change"] = json.loads(change)
    return _with_metas(
        record,
        meta,
        lambda field: {k: v for k, v in field_meta(field).items() if k not in _DECIMAL},
    )


def _with_metas(
    record: Mapping[str, Any], meta: object, meta_of: Callable[[Mapping[str, Any]], object]
) -> _Record:
    # Each key stays at its place: the text is compared with one that is made anew.
    fields = [{**field, "meta": meta_of(field)} for field in record["fields"]]
    return {**record, "fields": fields, "meta": meta}


def _with_before(record: _Record, shapes: Mapping[str, str]) -> _Record:
    """Return a record of string `meta` whose change names the version before by another id.

    An id that is not known stays: of a version that this store never had.
    """
    meta = dict(record_meta(record))
    if "change" not in meta:
        return record
    change = json.loads(meta["change"])
    before = shapes.get(change["before"], change["before"])
    meta["change"] = _dump_text({**change, "before": before})
    return {**record, "meta": record_meta_text(meta)}


def _shape_id(record: Mapping[str, Any]) -> str:
    meta = {name: value for name, value in record_meta(record).items() if name != "change"}
    return schema_id(_dump({**_bare(record), "meta": record_meta_text(meta)})).hex()


def _former_shape_id(record: Mapping[str, Any]) -> str:
    meta = {name: value for name, value in record["meta"].items() if name != "change"}
    return former_schema_id(_dump({**_bare(record), "meta": meta})).hex()


def _bare(record: Mapping[str, Any]) -> _Record:
    """Return a record without what it says of the version before it, `meta` apart."""
    if "change" not in record_meta(record):
        return dict(record)
    fields = [dict(field) for field in record["fields"]]
    for field in fields:
        field.pop("aliases", None)
        if not isinstance(field["type"], list):
            field.pop("default", None)
    return {**record, "fields": fields}


def _dump(record: Mapping[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"))


def _dump_text(change: Mapping[str, Any]) -> str:
    return json.dumps(change, ensure_ascii=False, separators=(",", ":"))
