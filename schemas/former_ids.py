"""The schema ids of earlier versions of this project, which stored events may have."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import md5

from databus.schemas.avro_rows import schema_id


def former_schema_id(text: str) -> bytes:
    """Return the id that earlier versions gave a schema: the MD5 of its text."""
    return md5(text.encode(), usedforsecurity=False).digest()


def ids_of_now(texts: Iterable[str]) -> dict[bytes, bytes]:
    """Return a map from each schema's former id to today's."""
    return {former_schema_id(text): schema_id(text) for text in texts}
